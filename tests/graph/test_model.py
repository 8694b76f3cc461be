"""Who makes and who reads each value of a graph."""

from dataclasses import replace

import numpy as np
import pytest

from mindswap.graph.model import BYTES_PER_ELEMENT, TensorType
from tests.graph.builders import copy_in, copy_out, graph, node


def step():
    return graph(
        [node("a", "Mul", "x"), node("b", "Mul", "a a"), node("c", "Add", "a b")],
        [node("d", "MulGrad", "a_b b_b"), node("e", "AddGrad", "d")],
        saved="a b",
    )


def names(nodes):
    return [each.name for each in nodes]


def test_readers_in_order_twice_where_an_operator_reads_twice():
    readers = step().index.forward_readers
    assert {value: names(nodes) for value, nodes in readers.items()} == {"x": ["a"], "a": ["b", "b", "c"], "b": ["c"]}


def test_readers_of_both_passes():
    readers = step().index.readers
    assert (names(readers["a"]), names(readers["a_b"]), names(readers["d"])) == (["b", "b", "c"], ["d"], ["e"])
    assert "c" not in readers


def test_operators_by_name():
    assert list(step().index.forward_nodes) == ["a", "b", "c"]
    assert list(step().index.nodes) == ["a", "b", "c", "d", "e"]


def test_a_changed_graph_has_an_index_of_its_own():
    before = step()
    assert "c" in before.index.forward_nodes
    after = replace(before, forward=before.forward[:2])
    assert list(after.index.forward_nodes) == ["a", "b"]
    assert names(after.index.forward_readers["a"]) == ["b", "b"]


def test_a_pair_is_a_copy_and_its_way_back():
    """`lost` never comes back; `on_host` is brought to the device, and nobody copied it out."""
    moved = graph(
        [
            node("a", "Mul", "x", backward_prefetch=1),
            copy_out("out", "a", prefetch=7),
            copy_out("lost", "a"),
            node("on_host", "Mul", "x"),
            node("of_the_model", "MoveTo", "a CPU"),
        ],
        [copy_in("back", "out"), copy_in("other", "on_host")],
        saved="out lost on_host",
    )
    (pair,) = moved.swap_pairs
    assert (pair.producer.name, pair.copy_out.name, names(pair.copies_in)) == ("a", "out", ["back"])
    assert names(moved.index.one_way_copies) == ["lost"]


def test_an_operator_is_known_again_under_another_number_of_its_layer_and_when_it_is_recomputed():
    cell = "layers-CellList/{}-Layer/experts-CellList/5-Expert/Mul-op{}"
    weight = "parallel_optimizer/model.layers.4.experts.5.weight"
    scopes = {"a": cell.format(3, 0), "b": cell.format(3, 1), "c": f"recompute_{cell.format(4, 7)}"}
    scopes |= {"d": weight, "e": "head-Head/Mul-op0"}
    layers = {"a": 3, "b": 3, "c": 4, "d": 4, "e": None}
    found = graph([replace(node(name, "Mul", layer=layers[name]), scope=scope) for name, scope in scopes.items()])
    inside = "layers-CellList/-Layer/experts-CellList/5-Expert/Mul"
    assert found.index.identities == {
        "a": (3, inside, 0),
        "b": (3, inside, 1),
        "c": (4, inside, 0),
        "d": (4, "parallel_optimizer/model.layers..experts.5.weight", 0),
        "e": (None, "head-Head/Mul", 0),
    }


# Sizes of the data types of MindIR.


@pytest.mark.parametrize(("dtype", "size_bytes"), BYTES_PER_ELEMENT.items())
def test_bytes_of_an_element_are_those_of_numpy(dtype, size_bytes):
    """NumPy has no bfloat16, which has 16 bits."""
    assert size_bytes == np.dtype("uint16" if dtype == "bfloat16" else dtype).itemsize


def test_bytes_of_a_tensor_are_known_where_its_type_is():
    sizes = [
        TensorType.of(*known).size_bytes
        for known in (((2, 3), "float32"), ((), "int8"), ((-1, 3), "int8"), ((2,), "?"))
    ]
    assert sizes == [24, 1, 0, 0]
