"""Masks of Dropout: one bit for each element on Ascend, in forward, in backward and through TupleGetItem."""

from dataclasses import replace

from mindswap.graph.model import Graph, Node, TensorType
from mindswap.graph.passes.dropout_masks import with_bit_masks
from tests.graph.builders import graph, node

KNOWN = TensorType.of((3, 100), "float16")


def operator(name: str, op: str, inputs: str, num_outputs: int) -> Node:
    return replace(node(name, op, inputs), outputs=(KNOWN,) * num_outputs)


def dropout_step(op: str) -> Graph:
    nodes = [
        operator("drop", op, "x", 2),
        operator("out", "TupleGetItem", "drop zero", 1),
        operator("mask", "TupleGetItem", "drop one", 1),
    ]
    return graph(nodes, nodes, zero=0, one=1)


def sizes(step: Graph) -> list[list[int]]:
    return [[output.size_bytes for entry in part for output in entry.outputs] for part in (step.forward, step.backward)]


def test_a_mask_has_one_bit_for_each_element_in_units_of_16_bytes():
    # 300 elements of 2 bytes; 300 bits are 3 units of 128 bits, 48 bytes.
    changed = with_bit_masks(dropout_step("Dropout"))
    assert sizes(changed) == [[600, 48, 600, 48]] * 2
    assert sizes(with_bit_masks(changed)) == sizes(changed)


def test_outputs_of_other_operators_are_unchanged():
    step = dropout_step("DropoutExt")  # its mask has one bit for each element already
    assert sizes(with_bit_masks(step)) == sizes(step)
