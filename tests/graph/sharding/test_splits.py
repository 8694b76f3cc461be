"""The same cut under another shape, by hand."""

import pytest

from mindswap.graph.sharding.splits import reshape_split


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
