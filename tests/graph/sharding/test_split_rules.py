"""How operators are cut, and which of them leave parts of sums, by hand."""

from types import SimpleNamespace

import pytest

from mindswap.graph.sharding.split_backward import BackwardSplits
from mindswap.graph.sharding.split_rules import OperatorCall, num_summed_ranks, output_splits
from mindswap.graph.sharding.splits import reshape_split, unsplit_one_dimension
from tests.graph.builders import node

CASES = {
    # op, operand shapes, operand splits, output shapes, integers, tuples, expected
    "matmul": ("MatMul", [(8, 4), (4, 6)], [(2, 1), (1, 3)], [(8, 6)], [0, 0], [], [(2, 3)]),
    "matmul, right side transposed": ("MatMul", [(8, 4), (6, 4)], [(2, 1), (3, 1)], [(8, 6)], [0, 1], [], [(2, 3)]),
    "matmul, left side transposed": ("MatMul", [(4, 8), (4, 6)], [(1, 2), (1, 3)], [(8, 6)], [1, 0], [], [(2, 3)]),
    "matmul over a cut dimension": ("MatMul", [(8, 4), (6, 4)], [(1, 2), (1, 2)], [(8, 6)], [0, 1], [], [(1, 1)]),
    "batch matmul": (
        "BatchMatMul", [(2, 8, 4, 6), (2, 8, 6, 4)], [(2, 4, 1, 1)] * 2, [(2, 8, 4, 4)], [], [], [(2, 4, 1, 1)]
    ),
    "one side broadcasts": ("Mul", [(2, 8, 4), (1, 1, 4)], [(2, 4, 1), (1, 1, 1)], [(2, 8, 4)], [], [], [(2, 4, 1)]),
    "fewer dimensions broadcast": ("Add", [(2, 8), (8,)], [(1, 4), (4,)], [(2, 8)], [], [], [(1, 4)]),
    "a scalar": ("Add", [(2, 8), ()], [(1, 4), ()], [(2, 8)], [], [], [(1, 4)]),
    "mean over the last, kept": ("ReduceMean", [(2, 8)], [(2, 4)], [(2, 1)], [], [(-1,)], [(2, 1)]),
    "sum over the last, gone": ("ReduceSum", [(2, 8)], [(2, 4)], [(2,)], [0], [(-1,)], [(2,)]),
    "sum over everything": ("ReduceSum", [(2, 8)], [(2, 4)], [()], [0], [()], [()]),
    "rms norm": ("RmsNorm", [(2, 8, 4), (4,)], [(2, 4, 1), (1,)], [(2, 8, 4), (2, 8, 1)], [], [], [(2, 4, 1)] * 2),
    # The gradient of the input is cut as the input, which is the first operand, or the second in version 3.
    "layer norm, backward": (
        "LayerNormGrad", [(2, 8, 4), (2, 8, 4), (2, 8, 1), (2, 8, 1), (4,)],
        [(2, 4, 1), (2, 1, 1), (2, 1, 1), (2, 1, 1), (1,)], [(2, 8, 4), (4,), (4,)], [], [], [(2, 4, 1), (1,), (1,)],
    ),
    "layer norm of version 3, backward": (
        "LayerNormGradV3", [(2, 8, 4), (2, 8, 4), (2, 8, 1), (2, 8, 1), (4,)],
        [(2, 1, 1), (2, 4, 1), (2, 1, 1), (2, 1, 1), (1,)], [(2, 8, 4), (4,), (4,)], [], [], [(2, 4, 1), (1,), (1,)],
    ),
    # Of two numbers on each rank nobody knows which; of a single one there is nothing to cut.
    "layer norm, backward, with a weight of another form": (
        "LayerNormGrad", [(2, 8, 4), (2, 8, 4), (2, 8, 1), (2, 8, 1), (2, 2)],
        [(2, 4, 1), (2, 1, 1), (2, 1, 1), (2, 1, 1), (1, 1)], [(2, 8, 4), (2,), (2,)], [], [], None,
    ),
    "layer norm, backward, with a weight of one number": (
        "LayerNormGrad", [(2, 8, 4), (2, 8, 4), (2, 8, 1), (2, 8, 1), (1, 1)],
        [(2, 4, 1), (2, 1, 1), (2, 1, 1), (2, 1, 1), (1, 1)], [(2, 8, 4), (1,), (1,)], [], [], [(2, 4, 1), (1,), (1,)],
    ),
    "softmax": ("Softmax", [(2, 8)], [(2, 1)], [(2, 8)], [], [(-1,)], [(2, 1)]),
    "transpose": ("Transpose", [(2, 4, 8, 6)], [(1, 1, 8, 1)], [(2, 8, 4, 6)], [], [(0, 2, 1, 3)], [(1, 8, 1, 1)]),
    "concat": ("Concat", [(2, 8, 4), (2, 8, 4)], [(1, 8, 1), (1, 8, 1)], [(2, 8, 8)], [-1], [], [(1, 8, 1)]),
    "split": ("SplitWithSize", [(2, 8)], [(2, 1)], [(2, 3), (2, 5)], [-1], [(3, 5)], [(2, 1), (2, 1)]),
    "strided slice": ("StridedSlice", [(2, 8, 4)], [(1, 8, 1)], [(2, 8, 2)], [], [(0, 0, 0)], [(1, 8, 1)]),
    "embedding": ("Gather", [(32, 4), (2, 8)], [(1, 1), (2, 4)], [(2, 8, 4)], [0, 0], [], [(2, 4, 1)]),
    "look up axis 1": ("Gather", [(2, 32, 4), (3,)], [(2, 1, 4), (1,)], [(2, 3, 4)], [1, 0], [], [(2, 1, 4)]),
    "cut vocabulary": ("Gather", [(32, 4), (2, 8)], [(8, 1), (2, 1)], [(2, 8, 4)], [0, 0], [], [(2, 1, 1)]),
    "one hot": ("OneHot", [(8,), (), ()], [(1, 8), (), ()], [(8, 32)], [32, -1], [], [(1, 8)]),
    "expand dims": ("ExpandDims", [(2, 8)], [(2, 4)], [(2, 1, 8)], [1], [], [(2, 1, 4)]),
    "squeeze": ("Squeeze", [(2, 1, 8)], [(2, 1, 4)], [(2, 8)], [], [(1,)], [(2, 4)]),
    "tile": ("Tile", [(2, 8, 1, 4)], [(2, 8, 1, 1)], [(2, 8, 3, 4)], [], [(1, 1, 3, 1)], [(2, 8, 1, 1)]),
    "attention, BNSD": (
        "FlashAttentionScore", [(1, 8, 4, 2)] * 3, [(1, 8, 1, 1)] * 3, [(1, 8, 4, 8), (1, 8, 4, 8), (1,), (1, 8, 4, 2)],
        [8, 99, 0, 0, 1, 0], [], [(1, 8, 1, 1), (1, 8, 1, 1), (1,), (1, 8, 1, 1)],
    ),
    "attention, BSH": (
        "FlashAttentionScore", [(1, 4, 16)] * 3, [(1, 2, 8)] * 3, [(1, 8, 4, 8), (1, 8, 4, 8), (1,), (1, 4, 16)],
        [8, 99, 0, 0, 0, 0], [], [(1, 8, 2, 1), (1, 8, 2, 1), (1,), (1, 2, 8)],
    ),
    "largest and where": ("ArgMaxWithValue", [(8, 32)], [(2, 4)], [(8, 1), (8, 1)], [-1, 1], [], [(2, 1), (2, 1)]),
    "dropout": ("DropoutExt", [(8, 1, 64)], [(2, 1, 4)], [(8, 1, 64), (64,)], [], [], [(2, 1, 4), (8,)]),
    "outer product": ("Outer", [(8,), (4,)], [(2,), (4,)], [(8, 4)], [], [], [(2, 4)]),
    "embedding in one call": ("Embedding", [(2, 8), (32, 4)], [(2, 4), (1, 2)], [(2, 8, 4)], [], [], [(2, 4, 2)]),
    "vector times matrix": ("MatMul", [(4,), (4, 6)], [(2,), (2, 1)], [(6,)], [0, 0], [], None),
    "sum over one axis of several": ("SumExt", [(2, 8, 4)], [(2, 4, 2)], [(2, 4)], [1, 2], [], [(2, 2)]),
    "tile, with a new dimension": ("Tile", [(8, 4)], [(2, 1)], [(3, 8, 4)], [], [(3, 1, 1)], [(1, 2, 1)]),
    "gradient of a table": ("UnsortedSegmentSum", [(2, 8, 6), (2, 8)], [(2, 4, 3), (2, 4)], [(9, 6)], [], [], [(1, 3)]),
    "transpose without an order": ("Transpose", [(2, 4)], [(1, 2)], [(4, 2)], [], [], None),
    "transpose in an order of other dimensions": ("Transpose", [(2, 4)], [(1, 2)], [(4, 2)], [], [(1, 0, 2)], None),
    "one operand with a cut of other dimensions": ("Mul", [(2, 8), (8,)], [(1, 4), (1, 4)], [(2, 8)], [], [], None),
    "no even cut": ("Mul", [(3, 4)], [(2, 1)], [(3, 4)], [], [], None),
    "an operator nobody knows": ("Mystery", [(2, 4)], [(2, 1)], [(2, 4)], [], [], None),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_output_splits(case):
    name, operands, splits, outputs, integers, tuples, expected = case
    assert output_splits(OperatorCall(name, operands, splits, outputs, integers, tuples)) == expected


SUMS = {
    # op, operand shapes, operand splits, output shapes, integers, tuples, ranks with parts of the sum
    "rows whole": ("MatMul", [(8, 4), (4, 6)], [(2, 1), (1, 3)], [(8, 6)], [0, 0], [], 1),
    "summed dimension": ("MatMul", [(8, 4), (6, 4)], [(2, 4), (3, 4)], [(8, 6)], [0, 1], [], 4),
    "left side transposed": ("MatMul", [(4, 8), (4, 6)], [(2, 4), (2, 3)], [(8, 6)], [1, 0], [], 2),
    "batch": ("BatchMatMul", [(8, 4, 6), (8, 6, 4)], [(8, 1, 2), (8, 2, 1)], [(8, 4, 4)], [], [], 2),
    "table by rows": ("Gather", [(32, 4), (8,)], [(4, 2), (1,)], [(8, 4)], [0, 0], [], 4),
    "table by columns": ("Gather", [(32, 4), (8,)], [(1, 2), (1,)], [(8, 4)], [0, 0], [], 1),
    "table second": ("Embedding", [(8,), (32, 4)], [(1,), (4, 1)], [(8, 4)], [], [], 4),
    "one of two axes": ("SumExt", [(8, 4)], [(2, 4)], [(8,)], [], [(-1,)], 4),
    "all axes": ("ReduceSum", [(8, 4)], [(2, 4)], [()], [], [()], 8),
    "a vector, which no rule knows": ("MatMul", [(4,), (4, 6)], [(2,), (2, 1)], [(6,)], [0, 0], [], 1),
    "no operand": ("MatMul", [], [], [(8, 6)], [0, 0], [], 1),
    "one operand with a cut of other dimensions": ("MatMul", [(8, 4), (4, 6)], [(2, 4), (4,)], [(8, 6)], [0, 0], [], 1),
    "element by element": ("Mul", [(8, 4), (8, 4)], [(2, 4), (2, 4)], [(8, 4)], [], [], 1),
}


@pytest.mark.parametrize("case", SUMS.values(), ids=SUMS)
def test_ranks_with_parts_of_a_sum(case):
    name, operands, splits, outputs, integers, tuples, expected = case
    assert num_summed_ranks(OperatorCall(name, operands, splits, outputs, integers, tuples)) == expected


# The same cut under another shape, by hand.


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


def test_one_dimension_is_gathered_until_so_many_parts_are_left():
    assert [unsplit_one_dimension((2, 4, 1), count) for count in (4, 2, 8, 1)] == [
        (1, 4, 1),
        (2, 1, 1),
        (2, 4, 1),
        None,
    ]


def test_what_backward_calls_a_tensor_is_followed_over_eight_operators():
    """Ten casts, one behind the other."""
    nodes = {f"c{i}": node(f"c{i}", "Cast", f"c{i + 1}") for i in range(10)}
    table = SimpleNamespace(nodes=nodes, forward_names={})
    assert list(BackwardSplits(table)._forward_origins("c0")) == [f"c{i}" for i in range(8)]
