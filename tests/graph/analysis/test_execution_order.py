"""Positions in the backend's execution order, counted by hand from dry runs."""

from dataclasses import replace

import pytest

from mindswap.graph.analysis.execution_order import count_kernel, count_view, find_joined, find_rotations
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


@pytest.mark.parametrize(
    ("between", "reads", "joined"),
    [
        ("Exp", "x", {"x", "y"}),  # a chain
        ("MatMul", "x", set()),  # a kernel between both
        ("Reshape", "x", set()),  # a view separates them, too
        ("MatMul", "other", {"x"}),  # a kernel that does not depend on the first one
    ],
)
def test_what_a_later_kernel_computes_has_no_position(between, reads, joined):
    step = graph([node("x", "Mul"), node("y", between, reads), node("z", "Add", "x y")])
    assert find_joined(step) == joined


def test_a_kernel_has_one_position_though_its_first_value_is_written():
    """The sum is read by the next layer as well (GraphKernel_Add_Cast_fusion of dry runs)."""
    step = graph([node("sum", "Add"), node("cast", "Cast", "sum"), node("norm", "RmsNorm", "cast")], saved="sum")
    assert find_joined(step) == {"sum"}


def test_gradients_that_are_added_join_through_their_tuple():
    backward = [node("x", "Mul"), node("both", "MakeTuple", "x w", 0), node("sum", "AddN", "both")]
    assert find_joined(graph([], backward)) == {"x"}


def test_a_rotation_by_halves_counts_as_one_product():
    """Two halves are sliced, one is negated, and they are joined; backward splits, and adds what it gives."""
    cell = {"cell_path": "attention.apply_rotary_emb"}
    forward = [
        replace(shaped(name, op, inputs, 8, width), cell_path=cell["cell_path"])
        for name, op, inputs, width in [
            ("right", "StridedSlice", "x", 2), ("negative", "Neg", "right", 2), ("left", "StridedSlice", "x", 2),
            ("joined", "Concat", "both", 4), ("product", "Mul", "joined", 4),
        ]
    ]  # fmt: skip
    halves = TensorType((8, 2), "float32", 64)
    split = replace(node("split", "SplitWithSize", "dout", **cell), outputs=(halves, halves))
    backward = [
        split,
        replace(shaped("half", "TupleGetItem", "split", 8, 2), cell_path=cell["cell_path"]),
        replace(shaped("padded", "StridedSliceGrad", "half", 8, 4), cell_path=cell["cell_path"]),
        shaped("sum", "AddN", "padded", 8, 4),
    ]
    found = find_rotations(graph(forward, backward))
    assert found == {"right", "negative", "left", "half", "padded"}
