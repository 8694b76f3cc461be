"""Activation memory by layer and operator: kept, swapped, recomputed, and what one name would free."""

from dataclasses import replace

from mindswap.graph.analysis.liveness import LayerSample
from mindswap.graph.analysis.saved_tensors import (
    LayerMemory,
    Names,
    OperatorMemory,
    OperatorNames,
    _seen_from,
    measure_layer_memory,
)
from mindswap.graph.model import Identity
from mindswap.policy.cell_tree import CellNode
from tests.graph.builders import KIB, copy_in, copy_out, graph, node

# mlp.mul, mlp.add and mlp.view are attributes of a cell; SiLU is computed without one.
MLP = CellNode("mlp", "MLP", children=tuple(CellNode(name, op, True) for name, op in (("mul", "Mul"), ("add", "Add"))))
VIEWS = CellNode("views", "Views", children=(CellNode("reshape", "Reshape", True),))
LAYER = CellNode("", "Layer", children=(MLP, VIEWS))
ONE_LAYER = LayerSample((0,), (0,))


def names_of(step):
    return OperatorNames([LAYER], step)


def measured(step, plain=None):
    return measure_layer_memory(step, plain or step, names_of(plain or step), ONE_LAYER)


def test_what_one_operator_holds_alone_one_name_frees():
    # 1 KiB of Mul: kept; op_swap 'mlp\\.mul' alone takes it away.
    step = graph([node("a", "Mul", "x")], saved="a")
    expected = OperatorMemory("mlp.mul", "Mul", kept_bytes=KIB, swappable_bytes=KIB)
    assert measured(step) == (LayerMemory(0, (expected,)), LayerMemory(None, ()))


def test_what_is_held_under_two_names_no_name_frees_alone():
    # The product and a view of it are saved: 1 KiB once, charged to the product; naming one of them leaves the other.
    step = graph([node("a", "Mul", "x"), node("v", "Reshape", "a", cell_path="views")], saved="a v")
    expected = OperatorMemory("mlp.mul", "Mul", kept_bytes=KIB, swappable_bytes=0)
    assert measured(step)[0].operators == (expected,)


def test_what_has_no_name_nothing_frees():
    step = graph([node("a", "SiLU", "x")], saved="a")
    assert measured(step)[0].operators == (OperatorMemory("mlp.SiLU", "SiLU", kept_bytes=KIB),)


def test_what_is_outside_the_layers_cannot_be_named():
    # A mask of the root's cell `mask`: in no layer, so op_swap has no name for it, whatever its cell and type.
    step = graph([node("a", "Mul", "x", layer=None, cell_path="network.mlp")], saved="a")
    assert not names_of(step).can_name(step.forward[0])
    outside = OperatorMemory("mlp.Mul", "Mul", kept_bytes=KIB, swappable_bytes=0)
    assert measured(step) == (LayerMemory(0, ()), LayerMemory(None, (outside,)))


def test_a_tag_names_no_operator_outside_the_layers():
    step = graph([node("a", "Mul", "x", layer=None, path="mlp.mul")], saved="a")
    assert not names_of(step).can_name(step.forward[0])


def test_what_is_gone_is_recomputed():
    # Backward reads x instead of what Mul made of it.
    plain = graph([node("a", "Mul", "x"), node("b", "Add", "a")], saved="a b")
    step = graph([node("a", "Mul", "x", is_recomputed=True), node("b", "Add", "a")], saved="b")
    assert measured(step, plain)[0].operators == (
        OperatorMemory("mlp.mul", "Mul", recomputed_bytes=KIB, swappable_bytes=KIB),
        OperatorMemory("mlp.add", "Add", kept_bytes=KIB, swappable_bytes=KIB),
    )


def test_what_stays_under_one_of_its_names_is_not_recomputed():
    # Without a policy the product is held under its own name and as a view; with it, under the view only: the
    # memory is still there, and nothing is saved.
    forward = [node("a", "Mul", "x"), node("v", "Reshape", "a", cell_path="views")]
    plain, step = graph(forward, saved="a v"), graph(forward, saved="v")
    (product, view) = measured(step, plain)[0].operators
    assert (product.path, product.recomputed_bytes, view.path, view.kept_bytes) == ("mlp.mul", 0, "views.reshape", KIB)


def test_one_name_is_enough_to_know_memory_again():
    # The compiler gave the product another scope; the view of it is still held, so its memory is there.
    view = {"op": "Reshape", "cell_path": "views"}
    plain = graph([node("a", "Mul", "x"), node("v", inputs="a", **view)], saved="a v")
    step = graph([node("other", "Mul", "x"), node("v", inputs="other", **view)], saved="other v")
    assert [operator.recomputed_bytes for operator in measured(step, plain)[0].operators] == [0]


def test_what_is_swapped_is_not_recomputed():
    plain = graph([node("a", "Mul", "x")], saved="a")
    step = graph(
        [node("a", "Mul", "x"), copy_out("out", "a")],
        [copy_in("back", "out"), node("grad", "MulGrad", "back")],
        saved="out",
    )
    assert measured(step, plain)[0].operators == (
        OperatorMemory("mlp.mul", "Mul", swapped_bytes=KIB, swappable_bytes=KIB),
    )


def test_a_layer_is_held_against_the_one_that_is_like_it():
    """Without a policy layers 1 and 2 are alike, and layer 2 is not compiled; with it layer 2 runs again.

    The product has 1 KiB in layer 0, 2 KiB in the others. Its name is on the primitive, in the plain step only.
    """

    def product(index, paths=()):
        scope = f"Default/layers-CellList/{index}-Layer/mlp-MLP/Mul-op0"
        return replace(node(f"a{index}", "Mul", "x", min(index + 1, 2) * KIB, index), scope=scope, paths=paths)

    plain = graph([product(index, (f"mlp.mul{index}",)) for index in (0, 1)], saved="a0 a1")
    step = graph([product(index) for index in (0, 1, 2)], saved="a0 a1")
    like = {0: 0, 1: 1, 2: 1}
    names = OperatorNames([LAYER] * 2, plain)
    assert measure_layer_memory(step, plain, names, LayerSample((0, 4, 5), (0, 1, 1, 1, 1, 2)), like) == (
        LayerMemory(0, (OperatorMemory("mlp.mul0", "Mul", kept_bytes=KIB, swappable_bytes=KIB),)),
        *(
            LayerMemory(index, (OperatorMemory("mlp.mul1", "Mul", kept_bytes=2 * KIB, swappable_bytes=2 * KIB),))
            for index in (1, 2, 3, 4)
        ),
        LayerMemory(5, (OperatorMemory("mlp.mul1", "Mul", recomputed_bytes=2 * KIB, swappable_bytes=2 * KIB),)),
        LayerMemory(None, ()),
    )


def test_a_layer_is_named_as_the_one_that_it_is_like():
    """Layer 2 is like layer 1, also in a list of experts; what is outside the layers, and layer 0, is what it is."""

    def expert(index, paths=()):
        scope = f"Default/layers-CellList/{index}-Layer/experts-CellList/2-MLP/Mul-op0"
        return replace(node(f"a{index}", "Mul", "x", layer=index), scope=scope, paths=paths)

    names = OperatorNames([LAYER] * 2, graph([expert(0, ("zero",)), expert(1, ("one",))]))
    name = names.with_renumbered_layers({2: 1})
    assert [name(expert(index)) for index in (0, 1, 2)] == [("zero",), ("one",), ("one",)]
    assert name(node("b", "Add", "x", layer=None, cell_path="network.head")) == ("head.Add",)


def test_what_holds_memory_near_a_layer_has_its_number_there():
    assert _seen_from(5, 2, Identity(1, "scope", 3)) == (4, "scope", 3)
    assert _seen_from(5, 2, Identity(None, "scope", 3)) == (None, "scope", 3)
    assert _seen_from(None, None, Identity(1, "scope", 3)) == (1, "scope", 3)


# Names.


def test_several_names_are_one_text_for_people():
    assert f"keep {Names(('wq.cast', 'wk.cast'))}" == "keep wq.cast|wk.cast"
    assert str(Names.of("add")) == "add"


def test_a_path_is_one_name_whatever_stands_in_it():
    assert Names.of("a|b") == ("a|b",)
