"""Split rules: splits of the outputs of each operator type, given those of its operands.

The rules follow MindSpore's operator infos (mindspore/ccsrc/frontend/parallel/ops_info/); each names its file.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mindswap.graph.ops import SplitRule, operator_info
from mindswap.graph.sharding.splits import Shape, Split, combine_splits, fits, num_shards, reshape_split


@dataclass(frozen=True)
class OperatorCall:
    """One operator with the operands that are tensors."""

    op: str
    shapes: Sequence[Shape]  # of each operand; members of tuples count separately
    splits: Sequence[Split]  # of each operand
    outputs: Sequence[Shape]  # shapes of the outputs
    integers: Sequence[int] = ()  # integer inputs in order: axis, transpose flags, layout
    # tuple inputs in order: axes, permutation, begin, end, strides
    tuples: Sequence[tuple[int, ...]] = ()
    attributes: Mapping[str, object] | None = None


def output_splits(call: OperatorCall) -> list[Split] | None:
    """Return the split of each output; None if there is no rule, or the rule does not fit the call."""
    kind = operator_info(call.op).split_rule
    is_matching = all(len(shape) == len(split) for shape, split in zip(call.shapes, call.splits, strict=True))
    # The strategy of a OneHot is that of its output, so it does not fit the operands.
    if kind is None or len(call.splits) < 1 + (kind in TWO_OPERANDS) or not (is_matching or kind is SplitRule.ONE_HOT):
        return None
    splits = RULES[kind](call) if isinstance(kind, SplitRule) else _like(call, kind)
    if splits is None or len(splits) != len(call.outputs):
        return None
    return splits if all(map(fits, splits, call.outputs)) else None


def num_summed_ranks(call: OperatorCall) -> int:
    """Return the number of ranks over which the output is a partial sum (or a partial look-up or maximum).

    It is 1 if no reduced dimension is split.
    """
    if not call.splits or any(len(shape) != len(split) for shape, split in zip(call.shapes, call.splits, strict=True)):
        return 1
    first, kind = call.splits[0], operator_info(call.op).split_rule
    if kind is SplitRule.PRODUCT and len(first) > 1:
        return first[-2] if _transpose_flags(call)[0] else first[-1]
    if kind is SplitRule.GATHER and len(call.splits) > 1:
        return first[_look_up_axis(call)]
    if kind is SplitRule.EMBEDDING and len(call.splits) > 1:
        return call.splits[1][0]
    if kind is SplitRule.REDUCTION:
        splits = output_splits(call)
        return num_shards(first) // num_shards(splits[0]) if splits else 1
    return 1


def _elementwise(call: OperatorCall) -> list[Split]:
    """activation_info.cc, arithmetic_info.cc, comparison_function_info.cc."""
    return [combine_splits(shape, call.shapes, call.splits) for shape in call.outputs]


def _like_first(call: OperatorCall) -> list[Split]:
    """All outputs have the split of the first operand; a dimension reduced to 1 is unsplit (layer_norm_info.cc)."""

    def split_of(shape: Shape) -> Split:
        return tuple(1 if size == 1 else parts for size, parts in zip(shape, call.splits[0], strict=False))

    return [split_of(shape) for shape in call.outputs]


def _like(call: OperatorCall, operands: Sequence[int]) -> list[Split] | None:
    """Output k has the split of operand `operands[k]`, as gradients have that of their tensor."""
    splits = []
    for position, shape in enumerate(call.outputs):
        source = operands[position] if position < len(operands) else len(call.splits)
        is_known = source < len(call.splits) and len(call.shapes[source]) == len(shape)
        if not is_known and math.prod(shape) > 1:
            return None
        splits.append(call.splits[source] if is_known else (1,) * len(shape))
    return splits


def _matmul(call: OperatorCall) -> list[Split] | None:
    """matmul_info.cc: the summed dimension is not in the output, an AllReduce follows."""
    if min(map(len, call.shapes[:2])) < 2:
        return None
    flags = _transpose_flags(call)
    left, right = call.splits[:2]
    rows = left[-1] if flags[0] else left[-2]
    columns = right[-2] if flags[1] else right[-1]
    batch = combine_splits(call.outputs[0][:-2], [call.shapes[0][:-2], call.shapes[1][:-2]], [left[:-2], right[:-2]])
    return [(*batch, rows, columns)]


def _transpose_flags(call: OperatorCall) -> list[bool]:
    if len(call.integers) >= 2:
        return [bool(flag) for flag in call.integers[:2]]
    attributes = call.attributes or {}
    return [bool(attributes.get(name, False)) for name in ("transpose_a", "transpose_b")]


def _reduce(call: OperatorCall) -> list[Split] | None:
    """reduce_method_info.cc: reduced dimensions are unsplit."""
    shape, split = call.shapes[0], call.splits[0]
    axes = call.tuples[0] if call.tuples else tuple(call.integers[:1])
    reduced = {axis % len(shape) for axis in axes} if shape else set()
    splits: list[Split] = []
    for output in call.outputs:
        if len(output) == len(shape):
            splits.append(tuple(parts if a == b else 1 for a, b, parts in zip(shape, output, split, strict=True)))
        elif not output:
            splits.append(())
        else:
            splits.append(tuple(parts for axis, parts in enumerate(split) if axis not in reduced))
    return splits


def _transpose(call: OperatorCall) -> list[Split] | None:
    """transpose_info.cc."""
    if not call.tuples or len(call.tuples[-1]) != len(call.splits[0]):
        return None
    return [tuple(call.splits[0][axis] for axis in call.tuples[-1])]


def _gather(call: OperatorCall) -> list[Split]:
    """gather_info.cc: the axis of the look-up is not in the output, an AllReduce follows."""
    axis = _look_up_axis(call)
    num_batch = call.integers[1] if len(call.integers) > 1 else int(str((call.attributes or {}).get("batch_dims", 0)))
    return [(*call.splits[0][:axis], *call.splits[1][num_batch:], *call.splits[0][axis + 1 :])]


def _look_up_axis(call: OperatorCall) -> int:
    return (call.integers[0] if call.integers else 0) % len(call.splits[0])


def _expand_dims(call: OperatorCall) -> list[Split] | None:
    """expand_dims_info.cc."""
    if not call.integers:
        return None
    axis = call.integers[0] % len(call.outputs[0])
    return [(*call.splits[0][:axis], 1, *call.splits[0][axis:])]


def _squeeze(call: OperatorCall) -> list[Split] | None:
    """squeeze_info.cc."""
    split = reshape_split(call.shapes[0], call.splits[0], call.outputs[0])
    return None if split is None else [split]


def _tile(call: OperatorCall) -> list[Split]:
    """tile_info.cc: the strategy is that of the output, including repeated dimensions."""
    offset = len(call.outputs[0]) - len(call.splits[0])
    return [(*(1,) * offset, *call.splits[0])]


# FlashAttentionScore (flash_attention_score_info.cc): layout number -> axes of batch, heads, sequence in the query.
ATTENTION_LAYOUTS = {0: (0, 2, 1), 1: (0, 1, 2), 2: (1, 2, 0), 3: (0, 2, 1)}
TND = 4
LAYOUT_POSITION = 6  # number of trailing integer inputs: heads, pre, next, precision, layout, sparse mode


def _flash_attention(call: OperatorCall) -> list[Split] | None:
    """Outputs: softmax maximum and sum (batch, heads, seq, 8), an empty tensor, attention split like the query."""
    query = call.splits[0]
    layout = call.integers[-2] if len(call.integers) >= LAYOUT_POSITION else None
    if layout == TND and len(query) == 3:
        statistics: Split = (query[0], query[1], 1)
    elif layout in ATTENTION_LAYOUTS:
        statistics = (*(query[position] for position in ATTENTION_LAYOUTS[layout]), 1)
    else:
        return None
    unsplit = (1,) * len(call.outputs[2])
    return [statistics, statistics, unsplit, query]


def _dropout(call: OperatorCall) -> list[Split]:
    """Output with the split of the input; the mask is a flat list of bits."""
    return [call.splits[0], (num_shards(call.splits[0]),)]


# Rules that need a second operand.
TWO_OPERANDS = (SplitRule.EMBEDDING, SplitRule.GATHER, SplitRule.OUTER, SplitRule.PRODUCT, SplitRule.SEGMENT_SUM)
RULES: dict[SplitRule, Callable[[OperatorCall], list[Split] | None]] = {
    SplitRule.ATTENTION: _flash_attention,
    SplitRule.BROADCAST: _tile,
    SplitRule.DROPOUT: _dropout,
    SplitRule.ELEMENTWISE: _elementwise,
    SplitRule.EMBEDDING: lambda call: [(*call.splits[0], call.splits[1][-1])],  # a look-up of rows
    SplitRule.EXPAND_DIMS: _expand_dims,
    SplitRule.GATHER: _gather,
    SplitRule.LIKE_FIRST: _like_first,
    SplitRule.ONE_HOT: lambda call: [call.splits[0]],  # onehot_info.cc: the strategy is that of the output
    SplitRule.OUTER: lambda call: [(*call.splits[0], *call.splits[1])],  # outer product of two vectors
    SplitRule.PRODUCT: _matmul,
    SplitRule.REDUCTION: _reduce,
    # Gradient of an embedding: rows are unsplit, the width has the split of the incoming gradient.
    SplitRule.SEGMENT_SUM: lambda call: [(1, *call.splits[0][len(call.splits[1]) :])],
    SplitRule.SQUEEZE: _squeeze,
    SplitRule.TRANSPOSE: _transpose,
}
