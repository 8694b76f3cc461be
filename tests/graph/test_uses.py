"""Readers that a graph does not have: of two reshapes in a row the compiler leaves one."""

import pytest

from mindswap.graph.uses import merged_readers
from tests.builders import layer
from tests.graph.builders import node

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
