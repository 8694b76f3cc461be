"""What is one piece of memory, and what becomes of it."""

from mindswap.graph.storage import Placement, StorageKind, classify_saved, resolve_storage
from tests.graph.builders import KIB, copy_in, copy_out, graph, node


def fates(step):
    """(name of the storage, placement, kept bytes, copied bytes) of everything saved."""
    return [(s.storage.name, s.placement, s.kept_bytes, s.copied_bytes) for s in classify_saved(step)]


def test_a_saved_operator_is_kept():
    step = graph([node("mul", "Mul", "x")], saved="mul")
    assert fates(step) == [("mul", Placement.KEPT, KIB, 0)]


def test_views_of_one_tensor_count_once():
    step = graph(
        [
            node("mul", "Mul", "x"),
            node("a", "Reshape", "mul"),
            node("b", "ExpandDims", "a"),
            node("c", "Depend", "mul u"),
            node("d", "Flatten", "mul"),
            node("e", "Squeeze", "b"),
        ],
        saved="mul a b c d e",
    )
    assert fates(step) == [("mul", Placement.KEPT, KIB, 0)]


def test_a_swapped_view_swaps_the_storage():
    step = graph(
        [node("mul", "Mul", "x"), node("view", "Reshape", "mul"), copy_out("out", "view")],
        [copy_in("back", "out"), node("grad", "MulGrad", "back")],
        saved="out",
    )
    assert fates(step) == [("mul", Placement.SWAPPED, 0, KIB)]


def test_a_copy_is_wasted_while_another_name_stays():
    # As op_swap 'attention\.wq' does on the legacy Llama: wk holds the same normed input.
    step = graph(
        [
            node("norm", "Mul", "x"),
            node("wq", "Reshape", "norm"),
            copy_out("out", "wq"),
            node("wk", "Reshape", "norm"),
        ],
        [copy_in("back", "out"), node("grad", "MatMul", "back wk_b")],
        saved="out wk",
    )
    assert fates(step) == [("norm", Placement.WASTED, KIB, KIB)]


def test_one_storage_swapped_under_two_names_is_copied_twice():
    step = graph(
        [
            node("norm", "Mul", "x"),
            node("wq", "Reshape", "norm"),
            copy_out("out1", "wq"),
            node("wk", "Reshape", "norm"),
            copy_out("out2", "wk"),
        ],
        [copy_in("back1", "out1"), copy_in("back2", "out2")],
        saved="out1 out2",
    )
    assert fates(step) == [("norm", Placement.SWAPPED, 0, 2 * KIB)]


def test_the_first_user_is_that_of_any_name():
    """The tensor under its own name is read last, its view first, at position 1: a view itself computes nothing."""
    step = graph(
        [node("mul", "Mul", "x"), node("view", "Reshape", "mul")],
        [
            node("seen", "Reshape", "view_b"),
            node("first", "MulGrad", "seen"),
            node("second", "MulGrad", "first"),
            node("last", "MulGrad", "second mul_b"),
        ],
        saved="mul view",
    )
    assert [saved.first_user for saved in classify_saved(step)] == [1]


def test_the_first_user_is_the_first_of_several():
    step = graph(
        [node("mul", "Mul", "x")],
        [node("first", "MulGrad", "mul_b"), node("second", "MulGrad", "first"), node("last", "MulGrad", "mul_b")],
        saved="mul",
    )
    assert [saved.first_user for saved in classify_saved(step)] == [0]


def test_weights_and_inputs_are_no_activations():
    step = graph(
        [
            node("load", "Load", "weight u"),
            node("move", "TensorMove", "load"),
            node("cast", "Cast", "load"),
            node("view", "Reshape", "tokens"),
        ],
        saved="load move cast view",
    )
    # The cast of a weight is memory of its own, made in every step.
    assert fates(step) == [("cast", Placement.KEPT, KIB, 0)]
    assert resolve_storage(step, "move").kind is StorageKind.WEIGHT
    assert resolve_storage(step, "view").kind is StorageKind.INPUT


def test_each_output_of_an_operator_is_a_storage_of_its_own():
    step = graph(
        [
            node("split", "Split", "x"),
            node("first", "TupleGetItem", "split zero"),
            node("second", "TupleGetItem", "split one"),
        ],
        saved="first second",
        zero=0,
        one=1,
    )
    assert [(s.storage.name, s.storage.output_index) for s in classify_saved(step)] == [("split", 0), ("split", 1)]


def test_tuples_are_looked_through():
    step = graph(
        [
            node("a", "Mul", "x"),
            node("b", "Mul", "y"),
            node("pair", "MakeTuple", "a b", size_bytes=0),
            node("item", "TupleGetItem", "pair one"),
        ],
        saved="item",
        one=1,
    )
    assert fates(step) == [("b", Placement.KEPT, KIB, 0)]


def test_what_backward_does_not_read_is_not_kept():
    # As the float32 output of RmsNorm: handed over, and used by no operator.
    step = graph(
        [node("norm", "RmsNorm", "x"), node("cast", "Cast", "norm")],
        [node("grad", "MatMul", "cast_b")],
        saved="norm cast",
    )
    assert fates(step) == [("cast", Placement.KEPT, KIB, 0)]


def test_the_first_user_is_found_behind_views_and_copies():
    step = graph(
        [node("a", "Mul", "x"), copy_out("out", "a"), node("b", "Mul", "a"), node("view", "Reshape", "b")],
        [
            copy_in("back", "out"),
            node("flat", "Reshape", "view_b"),
            node("gb", "MulGrad", "flat"),
            node("ga", "MulGrad", "gb back"),
        ],
        saved="out view",
    )
    assert [(s.storage.name, step.backward[s.first_user].name) for s in classify_saved(step)] == [
        ("a", "ga"),
        ("b", "gb"),
    ]


def test_weights_and_inputs_are_memory_of_one_output():
    step = graph([node("load", "Load", "w u"), node("view", "Reshape", "x")])
    found = [resolve_storage(step, name) for name in ("load", "view", "x")]
    assert [(each.key, each.kind) for each in found] == [
        (("w", 0), StorageKind.WEIGHT), (("x", 0), StorageKind.INPUT), (("x", 0), StorageKind.INPUT),
    ]  # fmt: skip
