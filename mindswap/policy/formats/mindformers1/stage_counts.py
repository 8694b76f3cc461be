"""Parse counts per pipeline stage to counts per chunk and stage, as MindFormers does.

Source: `LayerSetting._format_recompute_list` of mindformers 1.9.0.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mindswap.config.nodes import DocumentNode, is_int, show
from mindswap.config.pipeline_layout import Layout, LayoutError, Pipeline
from mindswap.errors import MindswapError
from mindswap.units import format_count

# Accepted values, for messages.
ALLOWED = (
    "True, False, a list with one count for each stage, or a list of such lists, one for each chunk (pp_interleave_num)"
)
ALLOWED_BY_ZERO_BUBBLE = "True, False, or a list of two lists, one for each chunk, with one count for each stage"


@dataclass(frozen=True)
class Counts:
    """Layers per chunk and position, counted from the first layer of each."""

    rows: tuple[tuple[int, ...], ...]  # one row per chunk, in order of execution (as `Layout.sizes`)
    text: str  # text that MindFormers logs
    warnings: tuple[str, ...] = ()  # values that MindFormers accepts but changes, in words
    # MindFormers replaces True and too large counts in the user's list by NumPy numbers, and refuses that list when it
    # reads it for a second operator
    is_rewritten: bool = False


class CountsError(MindswapError):
    """MindFormers refuses these counts."""

    def __init__(self, node: DocumentNode, message: str, fix: str = ""):
        self.node = node  # the wrong value
        self.fix = fix  # suggested value; "" without one
        super().__init__(message)


def read_counts(node: DocumentNode, layout: Layout) -> Counts:
    """Parse True, False, counts per stage, or counts per chunk and stage.

    Raises:
        CountsError: if MindFormers refuses the value, or does not terminate (a negative count per stage).
    """
    if isinstance(node.value, bool):
        return _counts_from_rows(layout.sizes if node.value else [[0] * len(row) for row in layout.sizes])
    if node.items is None:
        raise CountsError(node, f"{show(node)} is {node.kind}", _suggest_counts(node, layout))
    _check_zero_bubble(node, layout)
    if all(isinstance(item.value, int) for item in node.items):
        return _read_per_stage(node, node.items, layout)
    if all(isinstance(item.value, str) for item in node.items):
        return _counts_from_rows(layout.sizes, ("MindFormers takes a list of strings here as True, whatever they say",))
    return _read_per_chunk(node, node.items, layout)


def _suggest_counts(node: DocumentNode, layout: Layout) -> str:
    """Return the suggested list for a single number, taken as the count of each stage; "" for other values."""
    if layout.is_zero_bubble_v:
        return _empty_rows(layout)
    if not is_int(node.value):
        return ""
    num_stages = len(layout.sizes[0])
    counts = str([node.value] * num_stages)
    return counts if num_stages == 1 else f"{counts}, if each of {num_stages} stages recomputes so many layers"


def _empty_rows(layout: Layout) -> str:
    """Return a list of counts in the form of one row for each chunk."""
    return f"{[[0] * len(row) for row in layout.sizes]}, with the counts that are meant"


def _counts_from_rows(rows: Sequence[Sequence[int]], warnings: Sequence[str] = ()) -> Counts:
    return Counts(tuple(map(tuple, rows)), str([list(row) for row in rows]), tuple(warnings))


def _check_zero_bubble(node: DocumentNode, layout: Layout) -> None:
    """Raise CountsError for zero_bubble_v without a list per chunk, because MindFormers reverses the second list."""
    items = node.items or ()
    is_strings = all(isinstance(item.value, str) for item in items)
    if layout.is_zero_bubble_v and (len(items) < 2 or (items[1].items is None and not is_strings)):
        raise CountsError(node, f"{show(node)}: zero_bubble_v takes one list for each chunk", _empty_rows(layout))


def _read_per_stage(node: DocumentNode, items: tuple[DocumentNode, ...], layout: Layout) -> Counts:
    """Parse counts per stage, which are distributed over the chunks one layer at a time."""
    capacities = [sum(row[stage] for row in layout.sizes) for stage in range(len(layout.sizes[0]))]
    if len(items) > len(capacities):
        raise CountsError(
            items[len(capacities)], f"{show(node)} has {len(items)} counts for {format_count(len(capacities), 'stage')}"
        )
    warnings = []
    if items and len(items) < len(capacities):
        uncounted_stages = format_count(len(capacities) - len(items), "last stage")
        warnings.append(f"{show(node)} has no count for the {uncounted_stages}, which gets 0")
    counts = [[0] * len(row) for row in layout.sizes]
    for stage, (item, capacity) in enumerate(zip(items, capacities, strict=False)):
        if item.value < 0:
            raise CountsError(item, f"{item.value} is negative, and MindFormers would loop forever")
        if not isinstance(item.value, bool) and item.value > capacity:
            warnings.append(f"{item.value} for stage {stage}, which has {format_count(capacity, 'layer')}")
        num_remaining = capacity if item.value is True else min(item.value, capacity)
        while num_remaining > 0:
            for chunk, row in enumerate(layout.sizes):
                if num_remaining > 0 and counts[chunk][stage] < row[stage]:
                    counts[chunk][stage] += 1
                    num_remaining -= 1
    return _counts_from_rows(counts, warnings)


def _read_per_chunk(node: DocumentNode, items: tuple[DocumentNode, ...], layout: Layout) -> Counts:
    """Parse counts per chunk and stage; each count is limited to the layers of its cell."""
    rows: list[tuple[int, ...]] = []
    texts = []
    warnings: list[str] = []
    is_rewritten = False
    for chunk, item in enumerate(items):
        if chunk >= len(layout.sizes):
            raise CountsError(
                item, f"{show(node)} has {len(items)} lists for {format_count(len(layout.sizes), 'chunk')}"
            )
        sizes = layout.sizes[chunk]
        if item.items is None:
            if not isinstance(item.value, bool):
                raise CountsError(item, f"{show(item)} is {item.kind}, among lists")
            rows.append(sizes if item.value else (0,) * len(sizes))
            texts.append(_array_text(rows[-1]))
            continue
        is_reversed = layout.is_zero_bubble_v and chunk == 1  # MindFormers then works on a copy of the list
        entries = item.items[::-1] if is_reversed else item.items
        rows.append(tuple(_clamp_row(entries, sizes, chunk, warnings)))
        written = [entry.value for entry in entries]
        is_rewritten |= not is_reversed and any(a is True or a > b for a, b in zip(written, rows[-1], strict=True))
        texts.append(str(list(rows[-1])))
    _check_shape(node, rows, layout)
    return Counts(tuple(rows), f"[{', '.join(texts)}]", tuple(warnings), is_rewritten)


def _clamp_row(
    entries: tuple[DocumentNode, ...], sizes: tuple[int, ...], chunk: int, warnings: list[str]
) -> Iterator[int]:
    for position, entry in enumerate(entries):
        if not isinstance(entry.value, int):
            raise CountsError(entry, f"{show(entry)} is {entry.kind}")
        if position >= len(sizes):
            raise CountsError(entry, f"{len(entries)} counts for {format_count(len(sizes), 'stage')}")
        if isinstance(entry.value, bool):
            yield sizes[position] if entry.value else 0
            continue
        if not 0 <= entry.value <= sizes[position]:
            available = f"position {position} of chunk {chunk} has {format_count(sizes[position], 'layer')}"
            warnings.append(f"{entry.value} counts as {max(0, min(entry.value, sizes[position]))}: {available}")
        yield min(entry.value, sizes[position])


def _check_shape(node: DocumentNode, rows: list[tuple[int, ...]], layout: Layout) -> None:
    """Raise CountsError if a cell with layers has no count, which MindFormers refuses."""
    for cell in layout.cells():
        row = rows[cell.chunk] if cell.chunk < len(rows) else ()
        if cell.layers and cell.position >= len(row):
            stage = f"chunk {cell.chunk}, stage {cell.stage}"
            raise CountsError(node, f"{show(node)} has no count for {stage}, where layer {cell.layers[0]} is")


def _array_text(row: tuple[int, ...]) -> str:
    """Format a row as NumPy prints it, because MindFormers replaces a bool by an array."""
    width = max(len(str(count)) for count in row)
    return f"array([{', '.join(str(count).rjust(width) for count in row)}], dtype=int32)"


def layers_of_stage_counts(node: DocumentNode, pipeline: Pipeline, num_layers: int | None) -> tuple[int, ...] | None:
    """Return the layers, sorted, that counts select with swap off; None if the counts do not fit the layout."""
    if num_layers is None:
        return None
    rows = [item.items for item in node.items or ()]
    if pipeline.num_chunks == 1 and rows and None not in rows:
        pipeline = replace(pipeline, num_chunks=len(rows))  # only the list has the number of chunks
    try:
        layout = pipeline.layout(num_layers)
        return layout.first_layers(read_counts(node, layout).rows)
    except (CountsError, LayoutError):
        return None
