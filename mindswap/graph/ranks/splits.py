"""Splits: into how many parts each dimension of a tensor is cut. Pure."""

import math
from collections.abc import Sequence

__all__ = ["Shape", "Split", "combine_splits", "fits", "num_parts", "reshape_split"]

Shape = tuple[int, ...]
Split = tuple[int, ...]


def num_parts(split: Split) -> int:
    """In how many pieces the whole tensor is cut."""
    return math.prod(split)


def fits(split: Split, shape: Shape) -> bool:
    """Whether each dimension can be cut so, into equal parts."""
    return len(split) == len(shape) and all(size % parts == 0 for size, parts in zip(shape, split, strict=True))


def combine_splits(shape: Shape, shapes: Sequence[Shape], splits: Sequence[Split]) -> Split:
    """Split of a tensor made element by element from operands that broadcast: the finest of each dimension."""
    result = [1] * len(shape)
    for operand, split in zip(shapes, splits, strict=True):
        offset = len(shape) - len(operand)
        for position, (size, parts) in enumerate(zip(operand, split, strict=True)):
            if offset + position >= 0 and size == shape[offset + position]:
                result[offset + position] = max(result[offset + position], parts)
    return tuple(result)


def reshape_split(source: Shape, split: Split, target: Shape) -> Split | None:
    """The same cut of the same memory under another shape; None if it is no regular cut there.

    Dimensions are matched in groups of equal product. A group can only be handed on when its pieces
    lie one after another in memory.
    """
    if math.prod(source) != math.prod(target):
        return None
    result: list[int] = []
    i = j = 0
    while i < len(source) or j < len(target):
        sizes, parts, to = list(source[i : i + 1]), list(split[i : i + 1]), list(target[j : j + 1])
        i, j = i + 1, j + 1
        while math.prod(sizes) != math.prod(to):
            if math.prod(sizes) < math.prod(to):
                if i >= len(source):
                    return None
                sizes.append(source[i])
                parts.append(split[i])
                i += 1
            else:
                if j >= len(target):
                    return None
                to.append(target[j])
                j += 1
        group = _regroup(sizes, parts, to)
        if group is None:
            return None
        result += group
    return tuple(result)


def _regroup(sizes: list[int], parts: list[int], to: list[int]) -> list[int] | None:
    if sizes == to:
        return parts
    first = next((k for k, (size, part) in enumerate(zip(sizes, parts, strict=True)) if size != part), len(sizes))
    if any(part != 1 for part in parts[first + 1 :]):
        return None  # an inner dimension is cut while an outer one is not cut down to single elements
    left = math.prod(parts)
    result = []
    for size in to:
        part = math.gcd(size, left)
        result.append(part)
        left //= part
        if part != size and left != 1:
            return None
    return result if left == 1 else None
