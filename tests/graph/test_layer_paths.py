"""Where operators belong, by their scope and by what they read; no compiler needed."""

from dataclasses import replace

import pytest

from mindswap.graph.layer_paths import assign_forward_layers, assign_gradient_layers, assign_layer_indices
from mindswap.graph.load import _split_scope
from mindswap.graph.model import Graph, Node, Saved
from tests.graph.builders import graph, node


@pytest.mark.parametrize(
    ("scope", "place"),
    [
        ("Default/net-Net/layers-CellList/1-Layer/mlp-Mlp/Mul-op0", (1, "mlp")),
        ("Default/net-Net/norm-Norm/Mul-op0", (None, "net.norm")),
        # Experts of a layer are in a list, too; a layer of multi-token prediction is none of the model.
        ("Default/layers-CellList/2-Layer/layers-CellList/0-Expert/Mul-op0", (2, "layers.0")),
        ("Default/mtp-Mtp/layers-CellList/0-Layer/Mul-op0", (None, "mtp.layers.0")),
    ],
)
def test_a_scope_is_a_layer_and_a_path(scope, place):
    assert _split_scope(scope, None) == place


def test_a_list_that_is_not_that_of_the_layers_counts_for_nothing():
    assert _split_scope("Default/blocks-CellList/1-Layer/Mul-op0", "layers") == (None, "blocks.1")
    assert _split_scope("Default/blocks-CellList/1-Layer/Mul-op0", "blocks") == (1, "")


def test_a_function_that_layers_call_is_where_it_reads():
    """`one_hot` has the scope of no layer; this one reads layer 1 and is read there; the loss is read by none."""
    nodes = [
        node("a", "Mul", "x", layer=0),
        node("b", "Mul", "a", layer=1),
        node("one_hot", "OneHot", "b", layer=None, cell_path="router"),
        node("c", "Mul", "one_hot", layer=1),
        node("loss", "Sum", "c", layer=None, cell_path="loss"),
    ]
    assert [placed.layer_index for placed in assign_forward_layers(nodes)] == [0, 1, 1, 1, None]


def test_a_function_that_only_what_has_no_place_reads_is_where_it_reads():
    """A cast of GLM4's model, and a reshape that is marked by itself: it loses its scope. Layer 2 stays layer 2."""
    nodes = [
        node("a", "Mul", "x", layer=1),
        node("cast", "Cast", "a", layer=None, cell_path="model"),
        node("marked", "Reshape", "cast", layer=None, cell_path=""),
        node("b", "Mul", "marked", layer=1),
        node("c", "Mul", "b", layer=2),
        node("loss", "Cast", "c", layer=None, cell_path="loss"),
    ]
    assert [placed.layer_index for placed in assign_forward_layers(nodes)] == [1, 1, 1, 1, 2, None]


@pytest.mark.parametrize("inputs", ["a b", "b a"])
def test_what_reads_several_layers_is_of_the_last_of_them(inputs):
    nodes = [node("a", "Mul", "x", layer=0), node("b", "Mul", "a", layer=1), node("sum", "Add", inputs, layer=0)]
    assert [placed.layer_index for placed in assign_forward_layers(nodes)] == [0, 1, 1]


def test_what_is_outside_the_layers_stays_there():
    """Before them: an embedding. Behind them: the head, what sums its loss without a cell, and what reads the head."""
    nodes = [
        node("words", "Gather", "ids", layer=None, cell_path="embedding"),
        node("scaled", "Mul", "words", layer=None, cell_path="scale"),
        node("a", "Mul", "scaled", layer=0),
        node("norm", "Mul", "a", layer=None, cell_path="norm"),
        node("sum", "Sum", "norm", layer=None, cell_path=""),
        node("head", "Mul", "norm", layer=None, cell_path="head"),
        node("again", "OneHot", "head", layer=0),
    ]
    assert [(placed.layer_index, placed.cell_path) for placed in assign_forward_layers(nodes)] == [
        (None, "embedding"), (None, "scale"), (0, "mlp"), (None, "norm"), (None, ""), (None, "head"), (None, "head"),
    ]  # fmt: skip


def test_a_product_without_a_cell_is_in_that_of_its_weight():
    """`Morph` functions have no scope: what attention made, by token, times the weight of `linear_proj`."""
    nodes = [
        node("made", "Transpose", "x", layer=1, cell_path="attention.core"),
        node("tokens", "Reshape", "made", layer=None, cell_path=""),
        node("out", "MoveTo", "tokens", layer=None, cell_path=""),
        node("tied", "Depend", "tokens out", layer=None, cell_path=""),
        node("load", "Load", "▸model.layers.1.attention.linear_proj.weight ▸u", layer=1, cell_path="attention"),
        node("weight", "TensorMove", "load", layer=None, cell_path=""),
        node("product", "MatMul", "tied weight", layer=None, cell_path=""),
        node("back", "Reshape", "product", layer=None, cell_path=""),
        node("sum", "Add", "made back", layer=1, cell_path=""),
    ]
    cells = {placed.name: placed.cell_path for placed in assign_forward_layers(nodes)}
    assert {cells[name] for name in ("tokens", "out", "tied", "product", "back")} == {"attention.linear_proj"}
    assert (cells["made"], cells["sum"]) == ("attention.core", "")
    assert {placed.layer_index for placed in assign_forward_layers(nodes)} == {1}


@pytest.mark.parametrize("cell", ["mlp.up", ""])
def test_only_products_and_views_that_have_no_place_go_to_a_weight(cell):
    """A sum with a bias is where its first input is made, and a view that a placed product reads too."""
    nodes = [
        node("made", "Mul", "x", layer=1, cell_path="core"),
        node("view", "Reshape", "made", layer=None, cell_path=""),
        node("weight", "Load", "▸model.layers.1.mlp.up.weight ▸u", layer=1, cell_path="mlp"),
        node("product", "MatMul", "view weight", layer=1, cell_path=cell),
        node("bias", "Load", "▸model.layers.1.mlp.up.bias ▸u", layer=1, cell_path="mlp"),
        node("sum", "Add", "made bias", layer=None, cell_path=""),
    ]
    cells = {placed.name: placed.cell_path for placed in assign_forward_layers(nodes)}
    assert (cells["view"], cells["product"], cells["sum"]) == ("core", cell, "core")


def test_what_a_product_without_a_cell_reads_is_where_it_is_if_it_is_no_view():
    nowhere = {"layer": None, "cell_path": ""}
    nodes = [
        node("made", "Mul", "x", layer=1, cell_path="core"),
        node("gelu", "Gelu", "made", **nowhere),
        node("placed", "Reshape", "made", layer=1, cell_path="view"),
        node("weight", "Load", "▸model.layers.1.mlp.up.weight ▸u", layer=1),
        node("first", "MatMul", "gelu weight", **nowhere),
        node("second", "MatMul", "placed weight", **nowhere),
    ]
    cells = {placed.name: placed.cell_path for placed in assign_forward_layers(nodes)}
    assert (cells["gelu"], cells["placed"], cells["first"], cells["second"]) == ("core", "view", "mlp.up", "mlp.up")


def test_what_only_ties_an_order_or_reads_a_weight_stays_where_its_scope_says():
    """They read something of layer 1; an operator that computes with it would be of layer 1."""
    ops = ("UpdateState", "Load", "Mul")
    nodes = [node("a", "Mul", "x", layer=1), *(node(op, op, "a", layer=0) for op in ops)]
    assert [placed.layer_index for placed in assign_forward_layers(nodes)] == [1, 0, 0, 1]


def gradients(*backward):
    """Of `mul0` and `mul1`, which are of one function and so of one origin for the compiler."""
    forward = [node("mul0", "Mul", "x", layer=0), node("mul1", "Mul", "mul0", layer=1)]
    saved = [Saved("mul0", "mul0_b"), Saved("mul1", "mul1_b")]
    origins = {each.name: ["mul0", "mul1"] for each in backward}
    return [(n.layer_index, n.origin) for n in assign_gradient_layers(backward, origins, forward, saved, {})]


def test_of_several_origins_it_is_that_of_the_layer_it_reads():
    read_1 = node("g1", "MulGrad", "mul1_b", layer=None, cell_path="")
    read_0 = node("g0", "MulGrad", "mul0_b", layer=None, cell_path="")
    assert gradients(read_1, read_0) == [(1, "mul1"), (0, "mul0")]


def test_a_copy_is_where_its_own_scope_says():
    """It reads what the layer before made."""
    copy = replace(node("again", "Mul", "mul0_b", layer=1), is_duplicate=True)
    assert gradients(copy) == [(1, "mul1")]


def test_a_copy_that_has_a_layer_and_no_cell_stays_there_too():
    copy = replace(node("again", "Mul", "mul0_b", layer=1, cell_path=""), is_duplicate=True)
    assert gradients(copy) == [(1, "mul1")]


def test_of_several_origins_in_one_layer_it_is_that_of_the_half_it_reads():
    """A layer in two halves; one function is called for both, another one only for the second half."""
    forward = [node(f"x{half}", "StridedSlice", "x", cell_path=f"interleave1_inputs.{half}") for half in "01"]
    forward += [node(f"y{half}", "Mul", f"x{half}") for half in "01"]
    saved = [Saved(f"{name}{half}", f"{name}{half}_b") for name in "xy" for half in "01"]
    saved.append(Saved("far", "far_b"))
    forward.append(node("far", "Mul", "z", layer=1))
    grad = [node(f"g{i}", "MulGrad", name, layer=None) for i, name in enumerate(("x0_b", "x1_b", "far_b x0_b", "x0_b"))]
    origins = {"g0": ["y0", "y1"], "g1": ["y0", "y1"], "g2": ["y0", "y1"], "g3": ["y1"]}
    placed = assign_gradient_layers(grad, origins, forward, saved, {})
    assert [each.origin for each in placed] == ["y0", "y1", "y0", "y1"]


def test_a_read_of_a_weight_is_in_the_layer_and_cell_of_its_name():
    """Layers of multi-token prediction are behind those of the model."""
    reads = [
        node("load", "Load", "▸model.layers.2.mlp.w1.weight ▸u", layer=1, cell_path="x"),
        node("mtp", "Load", "▸model.mtp.layers.0.mlp.weight ▸u", layer=0, cell_path="x"),
        node("other", "Load", "▸model.norm.weight ▸u", layer=1, cell_path="x"),
        node("moved", "TensorMove", "▸model.layers.2.mlp.w1.weight", layer=1, cell_path="x"),
    ]
    assert [(placed.layer_index, placed.cell_path) for placed in assign_forward_layers(reads)] == [
        (2, "mlp.w1"), (None, "mlp"), (1, "x"), (1, "x"),
    ]  # fmt: skip


def test_what_has_no_origin_is_where_its_first_input_is_and_a_copy_without_place_where_its_origin_is():
    forward = [node("mul0", "Mul", "x", layer=0), node("mul1", "Mul", "mul0", layer=1, cell_path="mlp.up")]
    nowhere = {"layer": None, "cell_path": ""}
    backward = [
        node("copy", "MoveTo", "mul1_b", **nowhere),
        replace(node("again", "Mul", "mul0_b", **nowhere), is_duplicate=True),
        replace(node("lost", "Mul", "mul0_b", **nowhere), is_duplicate=True),
    ]
    saved = [Saved("mul0", "mul0_b"), Saved("mul1", "mul1_b")]
    placed = assign_gradient_layers(backward, {"again": ["mul1"]}, forward, saved, {})
    assert [(n.name, n.layer_index, n.cell_path, n.origin) for n in placed] == [
        ("copy", 1, "mlp.up", ""), ("again", 1, "mlp.up", "mul1"), ("lost", None, "", ""),
    ]  # fmt: skip


def scoped(*operator, **settings) -> Node:
    """An operator of the model, whose scope names a cell."""
    made = node(*operator, **settings)
    return replace(made, scope=f"Default/model-Model/{made.name}")


def first_norm(**changes) -> Graph:
    """Embedding and the cast that the compiler puts before the norm of layer 0, which backward casts once more."""
    forward = [
        node("load", "Load", "▸w", layer=None),
        scoped("embedding", "Gather", "load ids", layer=None, cell_path="embedding"),
        replace(node("cast", "Cast", "embedding", layer=None, cell_path=""), **changes),
        scoped("norm", "RmsNorm", "cast"),
        scoped("add", "Add", "embedding norm"),
        scoped("loss", "Sum", "add", layer=None, cell_path="loss"),
    ]
    backward = [
        replace(node("cast_again", "Cast", "embedding_b", layer=None, is_duplicate=True), origin="cast"),
        scoped("dnorm", "RmsNormGrad", "cast_again"),
        replace(node("dcast", "Cast", "dnorm", layer=None), origin="cast"),
    ]
    return graph(forward, backward, "embedding")


def layers_of(step: Graph) -> dict[str, int | None]:
    return {made.name: made.layer_index for made in (*step.forward, *step.backward)}


def test_an_operator_of_the_compiler_that_only_one_layer_reads_belongs_to_it():
    """Witness: pretrain_deepseek_33b_16k of benchmarks/dryrun/broad.yaml runs the cast again in backward of layer 0."""
    plain = first_norm()
    before, after = layers_of(plain), layers_of(assign_layer_indices(plain))
    assert {name for name in before if before[name] != after[name]} == {"cast", "cast_again", "dcast"}
    assert {after[name] for name in ("cast", "cast_again", "dcast")} == {0}


@pytest.mark.parametrize(
    ("changes", "readers"),
    [
        ({"scope": "Default/model-Model/Cast"}, ()),  # an operator of the model
        ({"inputs": ("ids",)}, ()),  # a mask: it depends on no weight
        ({}, [node("other", "Mul", "cast add", layer=1)]),  # another layer reads it
        ({}, [node("other", "Mul", "cast", layer=None, cell_path="loss")]),  # the loss reads it
        (
            {},
            [replace(node("copy", "Cast", "cast", layer=None, cell_path=""), scope="Default/copy")],
        ),  # nobody's reader
    ],
)
def test_an_operator_outside_the_layers_stays_there(changes, readers):
    step = first_norm(**changes)
    step = replace(step, forward=(*step.forward, *readers))
    assert layers_of(assign_layer_indices(step)) == layers_of(step)


def test_a_chain_of_operators_of_the_compiler_belongs_to_the_layer_that_reads_its_end():
    step = first_norm()
    copy = node("copy", "Cast", "cast", layer=None, cell_path="")
    forward = [replace(made, inputs=("copy",)) if made.name == "norm" else made for made in step.forward]
    step = replace(step, forward=(*forward[:3], copy, *forward[3:]))
    after = layers_of(assign_layer_indices(step))
    assert (after["cast"], after["copy"], after["embedding"]) == (0, 0, None)
