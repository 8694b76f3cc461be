"""The first reader of a Reshape in the graph manager's order decides its split."""

import pytest

from mindswap.graph.sharding.rank_sizes import shard_graph
from mindswap.graph.sharding.visit_order import order_of_visits
from tests.graph.cut_graphs import graph, op, shapes


def test_visits_begin_at_the_output_with_the_last_input():
    nodes = [
        op("x", "Neg", "input", (4,)),
        op("short", "Neg", "x", (4,)),
        op("deep", "Neg", "x", (4,)),
        op("deeper", "Neg", "deep", (4,)),
        op("unused", "Neg", "x", (4,)),
        op("out", "Add", "short deeper", (4,)),
    ]
    assert list(order_of_visits(nodes)) == ["out", "deeper", "deep", "x", "short", "unused"]


# A layer of two halves: the first norm is cut along the sequence, the residual slices of the same tensor are not.
@pytest.mark.parametrize("is_norm_listed_first", [True, False])
@pytest.mark.parametrize(
    ("inputs_of_sum", "op_name", "size"),
    [("residual norm", "Slice", (1, 4)), ("norm residual", "Reshape", (8, 4))],  # the last input is visited first
)
def test_the_reader_that_is_visited_first_decides_whatever_is_listed_first(
    is_norm_listed_first, inputs_of_sum, op_name, size
):
    readers = [
        op("norm", "Neg", "cast", (8, 4), in_strategy=((8, 1),)),
        op("residual", "Neg", "view", (8, 4), in_strategy=((1, 1),)),
    ]
    step = graph(
        op("x_full", "Neg", "x", (1, 8, 4), in_strategy=((1, 1, 1),)),
        op("view", "Reshape", "x_full", (8, 4)),
        op("cast", "Cast", "view half", (8, 4)),
        *(readers if is_norm_listed_first else readers[::-1]),
        op("out", "Add", inputs_of_sum, (8, 4), in_strategy=((8, 1), (8, 1))),
        types={"x": (1, 8, 4)},
    )
    view = shard_graph(step).graph.forward[1]
    assert (view.op, view.outputs[0].shape) == (op_name, size)
    assert shapes(shard_graph(step))["residual"] == (8, 4)
