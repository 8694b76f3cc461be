"""Plain-text tables, equal layers in one row; attributes as plain data."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from mindswap.language import display_width, translate_cell

T = TypeVar("T")
NOTHING = "-"


def shown(value: T | None, form: Callable[[T], str]) -> str:
    """Format a value for a cell of a table; a dash for None."""
    return NOTHING if value is None else form(value)


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]], is_words: bool = False) -> str:
    """Format a table; the first column is left-aligned, the others are right-aligned unless `is_words`."""
    table = [[translate_cell(cell) for cell in row] for row in (header, *rows)]
    widths = [max(display_width(row[i]) for row in table) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        blanks = [" " * (width - display_width(cell)) for cell, width in zip(cells, widths, strict=True)]
        padded = [
            cell + blank if is_words or not i else blank + cell
            for i, (cell, blank) in enumerate(zip(cells, blanks, strict=True))
        ]
        text = "  ".join(padded)
        return text.rstrip() if is_words else text

    header_line, *row_lines = map(line, table)
    return "\n".join([header_line, "  ".join("-" * width for width in widths), *row_lines])


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
