"""What layers hand on to one another and to the head."""

from mindswap.graph.uses import find_handed_on
from tests.graph.cut_graphs import graph, op


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
