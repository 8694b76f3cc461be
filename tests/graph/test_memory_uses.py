"""Readers that a graph does not have: of two reshapes in a row the compiler leaves one."""

import pytest

from mindswap.graph.memory import find_handed_on, merged_readers
from tests.builders import layer
from tests.graph.builders import node
from tests.graph.cut_graphs import graph, op

TREE = layer("""
    attention
      wq
        reshape*
      reshape*
      transpose*
""")
WQ = [("attention", "wq", "reshape")]


@pytest.mark.parametrize(
    ("op", "cell_path", "found"),
    [
        ("Reshape", "attention", ["attention.reshape"]),  # named by the first, in the cell of the second
        ("Reshape", "attention.wq", []),  # alone
        ("Reshape", "", []),  # a cell without reshapes of its own
        ("MatMul", "attention", []),
    ],
)
def test_the_reshape_that_was_merged_into_another_is_found_by_its_cell(op, cell_path, found):
    assert merged_readers(node("q", op, "x", cell_path=cell_path), WQ, TREE) == found


# What layers hand on to one another and to the head.


def test_outputs_are_found_behind_casts_and_views():
    """Layer 0 hands `add` to layer 1; layer 1 hands `sum` to the head through a cast of its own and a view."""
    step = graph(
        op("mul", "Mul", "x w", (8,), layer=0),
        op("add", "Add", "x mul", (8,), layer=0),
        op("inner", "Mul", "add v", (8,), layer=1),
        op("sum", "Add", "add inner", (8,), layer=1),
        op("cast", "Cast", "sum", (8,), layer=1),
        op("view", "Reshape", "cast", (4, 2), layer=None),
        op("norm", "RmsNorm", "view gamma", (4, 2), layer=None),
    )
    assert find_handed_on(step) == {"add", "sum", "cast"}


def test_tuples_of_the_compiler_compute_nothing():
    """What backward needs is tied in a tuple behind the layers; a concatenation of a tuple reads its members."""
    step = graph(
        op("a", "Mul", "x w", (8,), layer=0),
        op("b", "Mul", "x v", (8,), layer=0),
        op("needed", "MakeTuple", "a b", (8,), (8,), layer=None),
        op("two", "MakeTuple", "a b", (8,), (8,), layer=0),
        op("both", "Concat", "two", (16,), layer=0),
    )
    assert find_handed_on(step) == frozenset()
