"""Plain-text tables, equal layers in one row."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from mindswap.policy import words

__all__ = ["format_indices", "format_layers", "format_table", "group_equal"]

T = TypeVar("T")


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        first = cells[0].ljust(widths[0])
        return "  ".join([first, *(cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))])

    return "\n".join([line(header), "  ".join("-" * width for width in widths), *map(line, rows)])


def group_equal(
    items: Sequence[T], key: Callable[[T], object], layer_indices: Sequence[int] | None = None
) -> list[tuple[str, T]]:
    """Layers with equal keys as one, in order of their first: `layers 0-2, 5`.

    Args:
        items: one entry per layer, in order of layer index.
        key: what must be equal; hashable.
        layer_indices: layer of each item; default 0, 1, 2, ...
    """
    groups: dict[object, list[int]] = {}
    for position, item in enumerate(items):
        groups.setdefault(key(item), []).append(position)
    layers = layer_indices or range(len(items))
    return [(format_layers([layers[i] for i in positions]), items[positions[0]]) for positions in groups.values()]


def format_layers(indices: Sequence[int]) -> str:
    """`layer 3`, `layers 1-2`, `layers 0, 3-5`; sorted indices."""
    return format_indices("layer", indices)


def format_indices(noun: str, indices: Sequence[int]) -> str:
    """`worker 3`, `workers 1-2`, `workers 0, 3-5`; sorted indices."""
    return f"{noun}{'s' * (len(indices) > 1)} {words.format_indices(indices)}"
