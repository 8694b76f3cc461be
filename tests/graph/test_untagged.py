"""Operators that are written in `construct`, as MindSpore hands them over: with the scope of the first layer."""

from mindswap.graph.load import assign_untagged_layers
from tests.graph.builders import node


def own(name, inputs, layer):
    """An operator with a path of its own, whose scope is right."""
    return node(name, "GeLU", inputs, layer=layer, paths=(name,))


def layers(*nodes):
    return {placed.name: placed.layer_index for placed in assign_untagged_layers(nodes, "blocks")}


def test_what_ends_a_layer_is_where_it_reads():
    """Layers `y = x + gelu(x)`: `+` of both has the scope of layer 0, reads `gelu` of its own."""
    assert layers(
        own("gelu0", "x", 0), node("add:1", "Add", "x gelu0"),
        own("gelu1", "add:1", 1), node("add:2", "Add", "add:1 gelu1"),
    ) == {"gelu0": 0, "add:1": 0, "gelu1": 1, "add:2": 1}  # fmt: skip


def test_what_begins_a_layer_is_where_it_is_read():
    """Layers `y = gelu(relu(x))`: the first `relu` reads nothing of layer 0, so those after it begin a layer, too."""
    assert layers(
        node("relu:1", "ReLU", "x"), own("gelu0", "relu:1", 0), node("relu:2", "ReLU", "gelu0"),
        own("gelu1", "relu:2", 1),
    ) == {"relu:1": 0, "gelu0": 0, "relu:2": 1, "gelu1": 1}  # fmt: skip


def test_each_place_in_the_code_begins_or_ends_layers():
    """Layers `y = x + gelu(relu(x))`."""
    assert layers(
        node("relu:1", "ReLU", "x"), own("gelu0", "relu:1", 0), node("add:1", "Add", "x gelu0"),
        node("relu:2", "ReLU", "add:1"), own("gelu1", "relu:2", 1), node("add:2", "Add", "add:1 gelu1"),
    ) == {"relu:1": 0, "gelu0": 0, "add:1": 0, "relu:2": 1, "gelu1": 1, "add:2": 1}  # fmt: skip


def test_what_several_layers_read_is_where_the_first_of_them_is():
    assert layers(
        node("cast:1", "Cast", "mask"), own("gelu0", "cast:1", 0), own("gelu1", "gelu0 cast:1", 1)
    ) == {"cast:1": 0, "gelu0": 0, "gelu1": 1}  # fmt: skip


def test_a_read_of_a_weight_is_where_its_name_says():
    """The second has the scope of layer 0; the third is of no list."""
    assert layers(
        node("a", "Load", "f:▸CR_net.blocks.0.norm.gamma u"), node("b", "Load", "f:▸CR_net.blocks.1.norm.gamma u"),
        node("c", "Load", "f:▸CR_net.head.weight u", layer=None),
        node("b_moved", "TensorMove", "b"), node("c_moved", "TensorMove", "c"), node("other", "TensorMove", "x"),
    ) == {"a": 0, "b": 1, "c": None, "b_moved": 1, "c_moved": 0, "other": 0}  # fmt: skip


def test_what_is_outside_the_layers_stays_there():
    assert layers(own("gelu0", "x", 0), node("mean", "ReduceMean", "gelu0", layer=None)) == {"gelu0": 0, "mean": None}


def test_what_every_layer_makes_of_an_input_is_where_it_is_read():
    """A mask, for one: cast in each layer, from what no layer makes."""
    assert layers(
        node("cast:1", "Cast", "mask"), own("gelu0", "cast:1", 0), node("cast:2", "Cast", "mask"),
        own("gelu1", "gelu0 cast:2", 1),
    ) == {"cast:1": 0, "gelu0": 0, "cast:2": 1, "gelu1": 1}  # fmt: skip
