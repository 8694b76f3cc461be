"""Constants of a step: stand-ins, and what they take."""

from dataclasses import replace

from mindswap.graph.model import TensorType
from mindswap.graph.sequences import constant_bytes, restore_constants
from tests.graph.builders import KIB, graph, node


def masked():
    return graph(
        [
            node("load", "Load", "▸CR_model.casual_mask.lower_triangle_mask u", 4 * KIB, layer=None),
            node("mask", "TensorMove", "load", 4 * KIB, layer=None),
            node("weight", "Load", "▸CR_model.w u"),
            node("scores", "Mul", "weight mask table"),
        ]
    )


def test_a_stand_in_is_a_constant_again():
    restored = restore_constants(masked())
    assert [entry.name for entry in restored.forward] == ["weight", "scores"]
    assert restored.types["mask"].size_bytes == 4 * KIB


def test_a_step_without_stand_ins_comes_back():
    plain = graph([node("weight", "Load", "▸CR_model.w u"), node("scores", "Mul", "weight mask")])
    assert restore_constants(plain) is plain


def test_constants_count_once_and_weights_do_not():
    restored = restore_constants(masked())
    table = TensorType((64,), "float32", 256)
    step = replace(restored, types={**restored.types, "table": table, "▸CR_model.w": table, "unread": table})
    # The mask of 4 KiB and the table of 256 bytes, which layer 0 alone reads.
    assert constant_bytes(step) == {0: 4 * KIB + 256}


def test_what_two_layers_read_is_of_neither():
    table = TensorType((64,), "float32", 256)
    nodes = [node("first", "Mul", "x both own"), node("second", "Mul", "first both", layer=1)]
    assert constant_bytes(replace(graph(nodes), types={"both": table, "own": table})) == {None: 256, 0: 256}
