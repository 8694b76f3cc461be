"""Splits: the number of parts into which each dimension of a tensor is split."""

import math
from collections.abc import Iterator, Mapping, Sequence

Shape = tuple[int, ...]
Split = tuple[int, ...]
# Attribute of a read of a weight: number of its tensor parallel shards.
PARTS_MARK = "tensor_parallel_parts"


def num_shards(split: Split) -> int:
    """Return the number of shards of the tensor."""
    return math.prod(split)


def fits(split: Split, shape: Shape) -> bool:
    """Return whether each dimension is divisible into equal parts."""
    return len(split) == len(shape) and all(size % parts == 0 for size, parts in zip(shape, split, strict=True))


def combine_splits(shape: Shape, shapes: Sequence[Shape], splits: Sequence[Split]) -> Split:
    """Return the split of an element-wise result of operands that broadcast: the finest split of each dimension."""
    result = [1] * len(shape)
    for operand, split in zip(shapes, splits, strict=True):
        offset = len(shape) - len(operand)
        for position, (size, parts) in enumerate(zip(operand, split, strict=True)):
            if offset + position >= 0 and size == shape[offset + position]:
                result[offset + position] = max(result[offset + position], parts)
    return tuple(result)


def reshape_split(source: Shape, split: Split, target: Shape) -> Split | None:
    """Return the split of a reshaped tensor with the same shards in memory; None if it is not regular in the new shape.

    Dimensions are matched in groups of equal product. A group keeps its split only if its shards are contiguous in
    memory.
    """
    if math.prod(source) != math.prod(target):
        return None
    blocks = equal_blocks(source, target)
    groups = [
        _regroup(source[source_dims], split[source_dims], target[target_dims])
        for source_dims, target_dims in blocks or ()
    ]
    if blocks is None or None in groups:
        return None
    return tuple(parts for group in groups for parts in group or ())


def equal_blocks(source: Shape, target: Shape) -> list[tuple[slice, slice]] | None:
    """Group the dimensions of two shapes into the smallest ranges of equal product; None if the sizes differ."""
    blocks = []
    i = j = 0
    while i < len(source) or j < len(target):
        i_end, j_end = min(i + 1, len(source)), min(j + 1, len(target))
        while (source_product := math.prod(source[i:i_end])) != (target_product := math.prod(target[j:j_end])):
            if source_product < target_product and i_end < len(source):
                i_end += 1
            elif source_product > target_product and j_end < len(target):
                j_end += 1
            else:
                return None
        blocks.append((slice(i, i_end), slice(j, j_end)))
        i, j = i_end, j_end
    return blocks


def _regroup(sizes: Shape, parts: Split, to: Shape) -> Sequence[int] | None:
    if sizes == to:
        return parts
    first = next((k for k, (size, part) in enumerate(zip(sizes, parts, strict=True)) if size != part), len(sizes))
    if any(part != 1 for part in parts[first + 1 :]):
        return None  # an inner dimension is split while an outer one is not split into single elements
    remaining = math.prod(parts)
    result = []
    for size in to:
        part = math.gcd(size, remaining)
        result.append(part)
        remaining //= part
        if part != size and remaining != 1:
            return None
    return result if remaining == 1 else None


# Strategies, from the attributes that `shard` sets on a primitive.

# Attribute of a Reshape that each rank applies to its own shard, and of its reader: it communicates only if the number
# of shards changes.
LOCAL_MARK = "mindswap_local"


def unsplit_one_dimension(split: Split, count: int) -> Split | None:
    """Return the split with one dimension unsplit that has `count` shards; None if there is none."""
    options = ((*split[:index], 1, *split[index + 1 :]) for index in range(len(split)))
    return next((option for option in options if num_shards(option) == count), None)


def read_strategy(attributes: Mapping[str, object]) -> tuple[Split, ...]:
    """Return the split of each operand that the model set; empty without a strategy."""
    return _read(attributes, "in")


def read_out_strategy(attributes: Mapping[str, object]) -> tuple[Split, ...]:
    """Return the split of each output that the model set; empty without a strategy."""
    return _read(attributes, "out")


def _read(attributes: Mapping[str, object], side: str) -> tuple[Split, ...]:
    strategy = attributes.get(f"{side}_strategy")
    if isinstance(strategy, tuple):
        return tuple(_flatten(strategy))
    return _layouts(attributes.get(f"{side}_layout"))


def _flatten(strategy: tuple[object, ...]) -> Iterator[Split]:
    """Flatten a strategy of nested tuples, as of an operator that takes a tuple of tensors."""
    for entry in strategy:
        if isinstance(entry, tuple) and entry and isinstance(entry[0], tuple):
            yield from _flatten(entry)
        elif isinstance(entry, tuple):
            yield entry


def _layouts(layouts: object) -> tuple[Split, ...]:
    """Return the splits of `mindspore.Layout`: a tensor map counts device matrix axes from the right, -1 is unsplit."""
    if not isinstance(layouts, tuple):
        return ()
    splits = []
    for layout in layouts:
        if not isinstance(layout, Mapping):
            return ()
        matrix, tensor_map = layout["device_matrix"], layout["tensor_map"]
        splits.append(tuple(_num_parts_of_axes(matrix, axes) for axes in tensor_map))
    return tuple(splits)


def _num_parts_of_axes(device_matrix: Sequence[int], axes: int | tuple[int, ...]) -> int:
    axes = axes if isinstance(axes, tuple) else (axes,)
    return math.prod(device_matrix[-1 - axis] for axis in axes if axis >= 0)
