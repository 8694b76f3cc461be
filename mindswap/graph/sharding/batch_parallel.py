"""Operators without a strategy: MindSpore splits their first dimension over all ranks (step_parallel.cc).

ExtractStrategyAndInit gives such an operator the batch parallel strategy. Here that is applied only where no operand is
split, as in masks of all samples and look-ups of all tokens; other operators follow their operands, and the difference
is communication.
"""

from collections.abc import Iterator, Sequence

from mindswap.graph.model import Node
from mindswap.graph.sharding.splits import Shape, Split, num_shards


def is_batch_parallel(node: Node, splits: Sequence[Split], num_ranks: int) -> bool:
    """Return whether an operator without a strategy splits its outputs over all ranks.

    Args:
        node: the operator.
        splits: splits of its operands.
        num_ranks: ranks of a pipeline stage.
    """
    is_unsplit = all(num_shards(split) == 1 for split in splits)
    sizes = [tensor_type.shape[0] if len(tensor_type.shape) > 1 else 0 for tensor_type in node.outputs]
    # An operator in no cell may be part of a function for a single rank (Morph).
    is_divided = all(size and size % num_ranks == 0 for size in sizes)
    return num_ranks > 1 and bool(node.cell_path) and is_unsplit and is_divided


def batch_splits(shapes: Sequence[Shape], size: int, num_ranks: int) -> Iterator[Split]:
    """Yield the split of each tensor of an operator that is batch parallel.

    Args:
        shapes: shapes of the tensors.
        size: samples of all ranks, the first dimension of tensors with samples.
        num_ranks: ranks of a pipeline stage.
    """
    for shape in shapes:
        first = num_ranks if shape[:1] == (size,) else 1
        yield (first, *(1,) * (len(shape) - 1)) if shape else ()
