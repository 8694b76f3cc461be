"""Readers that a graph does not have: of two reshapes in a row the compiler leaves one."""

import pytest

from mindswap.graph.analysis.saved_tensors import find_boundary_operators, merged_readers, operator_uses
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


def test_a_reshape_that_may_be_the_one_of_its_own_cell_was_merged_into_no_other():
    assert merged_readers(node("q", "Reshape", "x", cell_path="attention"), [*WQ, ("attention", "reshape")], TREE) == []


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
    assert find_boundary_operators(step) == {"add", "sum", "cast"}


def test_tuples_of_the_compiler_compute_nothing():
    """What backward needs is tied in a tuple behind the layers; a concatenation of a tuple reads its members."""
    step = graph(
        op("a", "Mul", "x w", (8,), layer=0),
        op("b", "Mul", "x v", (8,), layer=0),
        op("needed", "MakeTuple", "a b", (8,), (8,), layer=None),
        op("two", "MakeTuple", "a b", (8,), (8,), layer=0),
        op("both", "Concat", "two", (16,), layer=0),
    )
    assert find_boundary_operators(step) == frozenset()


def test_users_of_an_operator_are_found_behind_what_has_no_name():
    """`mul` of layer 0 reads `exp` through a view; `add` of layer 1 reads `mul`, and `exp` by a cast without a name."""
    step = graph(
        op("exp", "Exp", "x", (8,), layer=0), op("view", "Reshape", "exp", (8,), layer=0),
        op("mul", "Mul", "view w", (8,), layer=0), op("cast", "Cast", "exp", (8,), layer=None),
        op("add", "Add", "mul cast", (8,), layer=1),
    )  # fmt: skip

    class Paths:
        """Operators of layers but `view` go by their own name."""

        def __call__(self, each):
            return (each.name,) if self.can_name(each) else ()

        def can_name(self, each):
            return each.layer_index is not None and each.name != "view"

    assert operator_uses(step, Paths()) == {
        (0, "exp"): {(0, "mul"), (1, "add")}, (0, "mul"): {(1, "add")},
    }  # fmt: skip
