"""The same cut under another shape, by hand."""

from types import SimpleNamespace

import pytest

from mindswap.graph.sharding.split_backward import BackwardSplits
from mindswap.graph.sharding.splits import reshape_split
from tests.graph.builders import node


@pytest.mark.parametrize(
    ("source", "split", "target", "expected"),
    [
        ((4, 32), (1, 8), (1, 4, 8, 4), (1, 1, 8, 1)),  # hidden into heads
        ((1, 4, 8, 4), (1, 1, 8, 1), (4, 32), (1, 8)),  # heads into hidden
        ((16, 4), (8, 1), (2, 8, 4), (2, 4, 1)),  # batch first, then sequence
        ((2, 8, 4), (2, 4, 1), (16, 4), (8, 1)),
        ((2, 8, 4), (1, 4, 1), (16, 4), None),  # the pieces of one rank are not next to each other
        ((2, 8), (1, 1), (16,), (1,)),
        ((6,), (4,), (2, 3), None),
        ((4,), (2,), (1, 4), (1, 2)),
    ],
)
def test_reshape_split(source, split, target, expected):
    assert reshape_split(source, split, target) == expected


def test_what_backward_calls_a_tensor_is_followed_over_eight_operators():
    """Ten casts, one behind the other."""
    nodes = {f"c{i}": node(f"c{i}", "Cast", f"c{i + 1}") for i in range(10)}
    table = SimpleNamespace(nodes=nodes, forward_names={})
    assert list(BackwardSplits(table, None)._forward_origins("c0")) == [f"c{i}" for i in range(8)]
