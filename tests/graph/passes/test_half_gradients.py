"""Gradients of weights of layers that compute in two halves."""

from mindswap.graph.passes.half_gradients import MERGED_MARK, merge_half_gradients
from tests.graph.builders import graph, node

FORWARD = [
    node("x0", "StridedSlice", "x", cell_path="interleave1_inputs.0"),
    node("x1", "StridedSlice", "x", cell_path="interleave1_inputs.1"),
    node("y0", "MatMul", "x0 w"),
    node("y1", "MatMul", "x1 w"),
]


def backward(add="AddN", second="x1_b"):
    return [
        node("g1", "Mul", "d x1_b"),
        node("g0", "Mul", "d x0_b"),
        node("w0", "MatMul", "x0_b g0"),
        node("cast0", "Cast", "w0"),
        node("gx", "MatMul", "g1 w"),
        node("w1", "MatMul", f"{second} g1"),
        node("cast1", "Cast", "w1"),
        node("pair", "MakeTuple", "cast0 cast1"),
        node("sum", add, "pair"),
        node("all", "MakeTuple", "sum"),
    ]


def test_the_earlier_product_runs_with_the_later_one_and_writes_nothing():
    step = merge_half_gradients(graph(FORWARD, backward(), saved="x0 x1"))
    assert " ".join(each.name for each in step.backward) == "g1 g0 gx w0 w1 cast1 all"
    assert [each.name for each in step.backward if MERGED_MARK in each.attributes] == ["w0"]
    assert step.backward[-1].inputs == ("cast1",)


def test_other_sums_stay():
    """Of two products of one half, another operator than AddN, and a step without halves."""
    for before in (
        graph(FORWARD, [*backward()[:5], node("w1", "MatMul", "x0_b g0"), *backward()[6:]], saved="x0 x1"),
        graph(FORWARD, backward(add="Stack"), saved="x0 x1"),
        graph([node("y0", "MatMul", "x0 w"), node("y1", "MatMul", "x1 w")], backward()),
    ):
        assert merge_half_gradients(before).backward == before.backward
