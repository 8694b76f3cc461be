"""Layers of each pipeline stage as MindFormers distributes them, and the layers selected by counts per stage.

With swap off, `recompute: [2, 1]` means "2 layers of stage 0, 1 of stage 1"; with swap on it means
"layers 2 and 1". `stage_recompute` reads all settings of a configuration with swap off.

Source: `LayerSetting` of mindformers 1.9.0.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mindswap.config.nodes import Document, DocumentNode, is_int
from mindswap.errors import MindswapError

# Schedules that `set_pipeline_config` of MindSpore 2.9.0 accepts (parallel/_auto_parallel_context.py).
SCHEDULERS = ("1f1b", "gpipe", "seqpipe", "seqvpp", "seqsmartvpp", "zero_bubble_v")
SCHEDULER_PATH = ("parallel", "pipeline_config", "pipeline_scheduler")
# More stages than any machine has; bounds the size of expanded layouts.
MAX_CELLS = 100_000


class LayoutError(MindswapError):
    """The layers cannot be distributed as configured; the message has the reason."""


@dataclass(frozen=True)
class Cell:
    """The layers of one virtual chunk on one stage."""

    chunk: int  # index of the chunk, 0 without interleaving
    position: int  # index in the chunk, in order of execution
    stage: int  # pipeline stage; differs from `position` if a chunk runs in reverse (zero_bubble_v)
    layers: range  # layers of the model


@dataclass(frozen=True)
class Layout:
    """The assignment of layers to pipeline stages."""

    sizes: tuple[tuple[int, ...], ...]  # layers of each position (inner) of each chunk (outer), in order of execution
    # layers of the model. The sum of sizes may be larger, because MindFormers applies an offset to every chunk. The
    # last cells then have fewer layers than their size.
    num_layers: int
    is_zero_bubble_v: bool = False  # the second chunk visits the stages in reverse

    def __str__(self) -> str:
        return ", ".join("+".join(map(str, row)) for row in self.sizes)

    def cells(self) -> Iterator[Cell]:
        """Yield all cells in order of execution."""
        first = 0
        for chunk, row in enumerate(self.sizes):
            is_backwards = self.is_zero_bubble_v and chunk == 1
            for position, size in enumerate(row):
                stage = len(row) - 1 - position if is_backwards else position
                last = min(first + size, self.num_layers)
                yield Cell(chunk, position, stage, range(min(first, last), last))
                first += size

    def first_layers(self, counts: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """Return the first layers of each cell. `counts` is shaped as `sizes`, but may lack cells without layers."""
        return tuple(
            index
            for cell in self.cells()
            if cell.layers
            for index in cell.layers[: max(0, counts[cell.chunk][cell.position])]
        )


@dataclass(frozen=True)
class Pipeline:
    """Pipeline settings of a configuration."""

    num_stages: int = 1  # pipeline stages, 1 without pipeline parallelism
    num_chunks: int = 1  # virtual chunks per stage (`pp_interleave_num` with interleaving)
    offset: Any = 0  # extra layers per chunk and stage: one number, a list per stage, or a list of those per chunk
    scheduler: str = "1f1b"  # schedule of micro-batches; any text, of which `SCHEDULERS` are valid

    @property
    def is_zero_bubble_v(self) -> bool:
        """Return whether the second chunk visits the stages in reverse."""
        return self.scheduler == "zero_bubble_v"

    @property
    def lacks_chunks(self) -> bool:
        """Return whether the schedule needs two chunks for each stage and has one."""
        return self.is_zero_bubble_v and self.num_chunks < 2

    def layout(self, num_layers: int) -> Layout:
        """Return the layers of each stage and chunk.

        Raises:
            LayoutError: if MindFormers refuses the offset, or a stage would be left without layers.
        """
        if self.lacks_chunks:
            raise LayoutError("zero_bubble_v takes pp_interleave_num: 2 and pipeline_interleave: True")
        table = self._offset_table()
        if self.num_stages * self.num_chunks == 1:
            return Layout(((num_layers,),), num_layers)  # MindFormers then ignores the offset
        if self.num_stages * self.num_chunks > MAX_CELLS:
            raise LayoutError(f"{self.num_stages} stages x {self.num_chunks} chunks are more than {num_layers} layers")
        average, remainder = divmod(num_layers, self.num_stages * self.num_chunks)
        rows = self._offset_rows(table, remainder, num_layers)
        sizes = [[average + extra for extra in row] for row in rows]
        flat = [size for row in sizes for size in row]
        if flat[0] < 0 or flat[-1] < 0 or any(size < 1 for size in flat[1:-1]):
            raise LayoutError(
                f"{num_layers} layers on {self.num_stages} stages x {self.num_chunks} chunks leave {_shape(sizes)} "
                "layers; only the first and the last may have none"
            )
        if self.is_zero_bubble_v:
            sizes[1].reverse()
        return Layout(tuple(map(tuple, sizes)), num_layers, self.is_zero_bubble_v)

    def even_offset(self, num_layers: int) -> list[int] | list[list[int]]:
        """Return a valid offset with extra layers on the first stages, for models with a layer for each cell."""
        remainder = num_layers % (self.num_stages * self.num_chunks)
        first = range(0, self.num_stages * self.num_chunks, self.num_stages)
        rows = [[int(index < remainder) for index in range(start, start + self.num_stages)] for start in first]
        return rows if self.num_chunks > 1 else rows[0]

    def offset_of(self, layout: Layout) -> list[int] | list[list[int]]:
        """Return the offset of a layout with the same stages and chunks."""
        average = layout.num_layers // (self.num_stages * self.num_chunks)
        rows = [[size - average for size in row] for row in layout.sizes]
        if self.is_zero_bubble_v:
            rows[1].reverse()
        return rows if self.num_chunks > 1 else rows[0]

    def _offset_table(self) -> list[list[int]]:
        """Return the offset as lists of equal length, one for all chunks or one per chunk."""
        rows = self.offset if isinstance(self.offset, list) else [self.offset] * self.num_stages
        table: list[Any] = rows if any(isinstance(row, list) for row in rows) else [rows]
        if not all(map(_is_integer_list, table)):
            raise LayoutError(f"{self.offset!r} is not a number, a list of numbers, or a list of lists of numbers")
        if len({len(row) for row in table}) > 1:
            raise LayoutError(f"{self.offset} has lists of different lengths")
        return table

    def _offset_rows(self, table: list[list[int]], remainder: int, num_layers: int) -> list[list[int]]:
        """Return the offset of each chunk and stage; a single list applies to every chunk."""
        is_per_chunk = isinstance(self.offset, list) and any(isinstance(row, list) for row in self.offset)
        if any(len(row) != self.num_stages for row in table):
            raise LayoutError(f"{self.offset} has {_shape([len(row) for row in table])} numbers, not one per stage")
        if is_per_chunk and len(table) != self.num_chunks:
            raise LayoutError(f"{self.offset} has {len(table)} lists, not one for each of {self.num_chunks} chunks")
        total = sum(map(sum, table)) if isinstance(self.offset, list) else self.offset
        if total != remainder:
            raise LayoutError(
                f"{self.offset} adds up to {int(total)}, but {num_layers} layers on {self.num_stages} stages x "
                f"{self.num_chunks} chunks leave a remainder of {remainder}"
            )
        return [list(map(int, row)) for row in table * (1 if is_per_chunk else self.num_chunks)]

    def stage_layers(self, stage: int, num_layers: int) -> tuple[int, ...] | None:
        """Return the layers of a stage, chunk by chunk; None if the offset does not fit the model."""
        try:
            cells = self.layout(num_layers).cells()
        except LayoutError:
            return None
        return tuple(index for cell in cells if cell.stage == stage for index in cell.layers)


def read_pipeline(document: Document) -> Pipeline:
    """Read the pipeline settings of a configuration; missing or invalid numbers are 1.

    MindFormers reads the number of chunks only where `pipeline_interleave` is on. Where that key is
    missing, lists with one row per chunk, which it would refuse, are taken to mean that it is on.
    """
    num_stages = _positive(document.get("parallel_config", "pipeline_stage"))
    num_chunks = read_num_chunks(document) if is_interleaved(document) else 1
    offset = _offset_data(document.get("model", "model_config", "offset"))
    # MindFormers reads the schedule from MindSpore's context, which has none without use_parallel.
    scheduler = document.get(*SCHEDULER_PATH) if document.is_parallel else None
    name = "1f1b" if scheduler is None or scheduler.is_null else str(scheduler.value)
    return Pipeline(num_stages, num_chunks, offset, name)


def is_interleaved(document: Document) -> bool:
    """Return whether `pipeline_interleave` is on."""
    node = document.get("parallel", "pipeline_config", "pipeline_interleave")
    if node is not None:
        return node.value is True
    section = document.get("recompute_config")
    values = [entry.value for entry in section.unique_entries()] if section is not None else []
    values += [entry.value for value in values for entry in value.unique_entries()]
    offset = document.get("model", "model_config", "offset")
    return any(value is not None and _has_rows(value) for value in (offset, *values))


def _has_rows(node: DocumentNode) -> bool:
    return node.items is not None and len(node.items) > 1 and all(item.items is not None for item in node.items)


def read_num_chunks(document: Document) -> int:
    """Return the value of `pp_interleave_num`, even if interleaving is off."""
    for key in ("pp_interleave_num", "virtual_pipeline_model_parallel_size"):
        node = document.get("model", "model_config", key)
        if node is not None:
            return _positive(node)
    return 1


def is_stage_counts(node: DocumentNode, pipeline: Pipeline, num_layers: int | None) -> bool:
    """Return whether a list has the shape of stage counts and cannot be layer indices.

    That is a list of lists, a list of integers with a bool among them, one integer per stage (of
    several) of which one is no layer or is repeated, or the number of layers on the only stage.
    """
    if not node.items:
        return False
    values = [item.value for item in node.items if item.items is None]
    if not all(isinstance(value, int) for value in values):
        return False
    if len(values) < len(node.items) or any(isinstance(value, bool) for value in values):
        return True
    if pipeline.num_stages == 1:
        return values == [num_layers]
    if len(values) != pipeline.num_stages or min(values) < 0:
        return False
    return len(set(values)) < len(values) or (num_layers is not None and max(values) >= num_layers)


def _shape(sizes: Sequence[object]) -> str:
    return " and ".join(map(str, sizes))


def _positive(node: DocumentNode | None) -> int:
    value = node.value if node is not None else None
    return value if is_int(value) and 1 <= value <= MAX_CELLS else 1


def _offset_data(node: DocumentNode | None) -> object:
    """Convert an offset to a number or lists of numbers, at most two levels deep."""
    if node is None:
        return 0
    if node.items is None:
        return node.value
    return [item.value if item.items is None else [element.value for element in item.items] for item in node.items]


def _is_integer_list(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, int) for item in value)
