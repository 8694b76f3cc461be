"""Positions in the backend's execution order, counted by hand from dry runs."""

from dataclasses import replace

import pytest

from mindswap.graph.analysis.execution_order import count_kernel, count_view
from mindswap.graph.model import TensorType
from tests.graph.builders import graph, node


def shaped(name, op, inputs, *shape):
    size_bytes = 4
    for size in shape:
        size_bytes *= size
    return replace(node(name, op, inputs), outputs=(TensorType(shape, "float32", size_bytes),))


@pytest.mark.parametrize(("op", "count"), [("Reshape", 1), ("ExpandDims", 1), ("Depend", 0), ("TupleGetItem", 0)])
def test_views_are_launched_but_what_only_orders_is_not(op, count):
    step = graph([shaped("x", "Mul", "", 8, 4), shaped("view", op, "x", 32)])
    assert count_view(step, step.forward[1]) == count


def test_a_gradient_that_is_scattered_is_split_and_joined():
    step = graph([shaped("x", "MatMul", "", 8, 4)], [shaped("grad", "Reshape", "x", 4, 4)])
    assert count_view(step, step.backward[0]) == 3


@pytest.mark.parametrize(
    ("op", "before", "after", "count"),
    [
        ("MatMul", (4, 4), (4, 4), 1),
        ("AllGather", (4, 4), (8, 4), 1),  # along the first dimension
        ("AllGather", (1, 4, 4), (1, 8, 4), 1),  # the first that is not 1
        ("AllGather", (4, 4), (4, 8), 3),  # and Split and Concat
        ("AllGather", (2, 4, 4), (16, 4), 4),  # and the Reshape that it stands for
        ("AllToAll", (4, 4), (2, 8), 5),
        ("Slice", (4, 4), (2, 4), 1),
    ],
)
def test_communication_along_another_dimension_takes_more_positions(op, before, after, count):
    step = graph([shaped("x", "Mul", "", *before), shaped("moved", op, "x", *after)])
    assert count_kernel(step, step.forward[1]) == count
