"""Plain-text tables, equal layers in one row; attributes as plain data."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
NOTHING = "-"


def shown(value: T | None, form: Callable[[T], str]) -> str:
    """Format a value for a cell of a table; a dash for None."""
    return NOTHING if value is None else form(value)


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]], is_words: bool = False) -> str:
    """Format a table; the first column is left-aligned, the others are right-aligned unless `is_words`."""
    pads = [str.ljust, *[str.ljust if is_words else str.rjust] * (len(header) - 1)]
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        text = "  ".join(pad(cell, width) for pad, cell, width in zip(pads, cells, widths, strict=True))
        return text.rstrip() if is_words else text

    return "\n".join([line(header), "  ".join("-" * width for width in widths), *map(line, rows)])


def group_equal(items: Iterable[T], key: Callable[[T], object], indices: Iterable[int]) -> list[tuple[list[int], T]]:
    """Group items with equal keys, in order of first occurrence.

    Args:
        items: the items.
        key: function that returns a hashable key of an item.
        indices: ascending index of each item, for example of layers or workers.

    Returns:
        The indices and the first item of each group.
    """
    groups: dict[object, tuple[list[int], T]] = {}
    for index, item in zip(indices, items, strict=True):
        groups.setdefault(key(item), ([], item))[0].append(index)
    return list(groups.values())


def attributes(thing: object, names: str) -> dict[str, Any]:
    """Return some attributes as a dict for JSON; `names` are separated by blanks."""
    return {name: getattr(thing, name) for name in names.split()}
