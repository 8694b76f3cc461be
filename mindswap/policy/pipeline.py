"""Stage counts of pipeline parallelism turned into layer indices.

With swap off, `recompute: [2, 1]` means "2 layers of stage 0, 1 of stage 1"; with swap on it
means "layers 2 and 1". A list that can only be meant as counts is refused, and this module
computes the layer indices the user probably meant.
"""

from dataclasses import dataclass
from typing import Any

from mindswap.policy.document import Document, Node

__all__ = ["Pipeline", "is_stage_counts", "layers_of_stage_counts", "read_pipeline"]


@dataclass(frozen=True)
class Pipeline:
    """How layers are spread over pipeline stages.

    Attributes:
        num_stages: pipeline stages, 1 without pipeline parallelism.
        num_chunks: virtual chunks per stage (`pp_interleave_num`).
        offset: extra layers per chunk and stage: one number, a list per stage, or a list of those per chunk.
        is_zero_bubble_v: the second chunk runs through the stages backwards.
    """

    num_stages: int = 1
    num_chunks: int = 1
    offset: Any = 0
    is_zero_bubble_v: bool = False

    def chunk_sizes(self, num_layers: int) -> list[list[int]] | None:
        """Layers of each stage (inner) in each chunk (outer); None if offset does not fit the model."""
        rows: list = self.offset if isinstance(self.offset, list) else [self.offset] * self.num_stages
        if not all(isinstance(row, list) for row in rows):
            rows = [rows] * self.num_chunks
        if len(rows) != self.num_chunks or any(len(row) != self.num_stages for row in rows):
            return None
        if not all(_is_int(extra) for row in rows for extra in row):
            return None
        average = num_layers // (self.num_stages * self.num_chunks)
        sizes = [[average + extra for extra in row] for row in rows]
        is_fitting = sum(map(sum, sizes)) == num_layers and all(size >= 0 for row in sizes for size in row)
        return sizes if is_fitting else None

    def stage_layers(self, stage: int, num_layers: int) -> tuple[int, ...] | None:
        """Layers on one stage, chunk after chunk; None if offset does not fit the model."""
        sizes = self.chunk_sizes(num_layers)
        if sizes is None:
            return None
        layers: list[int] = []
        first = 0
        for chunk, row in enumerate(sizes):
            is_backwards = self.is_zero_bubble_v and len(sizes) == 2 and chunk == 1
            for position in reversed(range(len(row))) if is_backwards else range(len(row)):
                if position == stage:
                    layers.extend(range(first, first + row[position]))
                first += row[position]
        return tuple(layers)


def read_pipeline(document: Document) -> Pipeline:
    """The pipeline settings of a configuration; what is missing or no number counts as 1."""
    num_stages = _positive(document.get("parallel_config", "pipeline_stage"))
    num_chunks = _positive(document.get("model", "model_config", "pp_interleave_num"))
    scheduler = document.get("parallel", "pipeline_config", "pipeline_scheduler")
    offset = document.get("model", "model_config", "offset")
    return Pipeline(
        num_stages,
        num_chunks,
        _offset_data(offset) if num_stages * num_chunks > 1 else 0,
        scheduler is not None and scheduler.value == "zero_bubble_v",
    )


def is_stage_counts(node: Node, pipeline: Pipeline, num_layers: int | None) -> bool:
    """True for a list that cannot be layer indices but has the shape of stage counts.

    That is a list of lists, a list of integers with a bool among them, or (with more than one stage)
    one integer per stage of which one is no layer or stands twice.
    """
    if not node.items:
        return False
    if any(item.items is not None for item in node.items):
        return all(item.items is not None or isinstance(item.value, (bool, int)) for item in node.items)
    values = [item.value for item in node.items]
    if not all(isinstance(value, int) for value in values):
        return False
    if any(isinstance(value, bool) for value in values):
        return True
    if pipeline.num_stages == 1 or len(values) != pipeline.num_stages or min(values) < 0:
        return False
    return len(set(values)) < len(values) or (num_layers is not None and max(values) >= num_layers)


def layers_of_stage_counts(node: Node, pipeline: Pipeline, num_layers: int | None) -> tuple[int, ...] | None:
    """The layer indices that MindFormers takes from these stage counts with swap off.

    Args:
        node: list of counts per stage, or list of such lists per chunk.
        pipeline: how layers are spread.
        num_layers: layers of the model.

    Returns:
        Sorted indices; None where the counts do not fit the pipeline settings.
    """
    rows: list = [_row_data(item) for item in node.items or ()]
    is_two_dimensional = all(isinstance(row, list) for row in rows)
    if is_two_dimensional and len(rows) != pipeline.num_chunks and pipeline.num_chunks == 1:
        # The number of chunks is not given elsewhere, the list itself says it.
        pipeline = Pipeline(pipeline.num_stages, len(rows), pipeline.offset, pipeline.is_zero_bubble_v)
    sizes = pipeline.chunk_sizes(num_layers) if num_layers is not None else None
    if sizes is None:
        return None
    counts = rows if is_two_dimensional else _spread(rows, sizes)
    if counts is None or [len(row) for row in counts] != [len(row) for row in sizes]:
        return None
    if not all(isinstance(count, int) for row in counts for count in row):
        return None
    if pipeline.is_zero_bubble_v and len(sizes) == 2:
        counts, sizes = [counts[0], counts[1][::-1]], [sizes[0], sizes[1][::-1]]
    layers: list[int] = []
    first = 0
    for count_row, size_row in zip(counts, sizes, strict=True):
        for count, size in zip(count_row, size_row, strict=True):
            wanted = size if count is True else min(count, size)
            layers.extend(range(first, first + wanted))
            first += size
    return tuple(layers)


def _spread(counts: list, sizes: list[list[int]]) -> list[list[int]] | None:
    """Counts per stage dealt out to the chunks one by one, as MindFormers does."""
    if len(counts) != len(sizes[0]) or not all(isinstance(count, int) for count in counts):
        return None
    dealt = [[0] * len(row) for row in sizes]
    for stage, count in enumerate(counts):
        capacity = sum(row[stage] for row in sizes)
        left = capacity if count is True else min(int(count), capacity)
        while left > 0:
            for chunk, row in enumerate(sizes):
                if left > 0 and dealt[chunk][stage] < row[stage]:
                    dealt[chunk][stage] += 1
                    left -= 1
    return dealt


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _positive(node: Node | None) -> int:
    value = node.value if node is not None else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 100_000 else 1


def _offset_data(node: Node | None) -> object:
    """An offset as a number or lists of numbers; two levels at most, whatever the file nests."""
    if node is None:
        return 0
    if node.items is None:
        return node.value
    return [_row_data(item) for item in node.items]


def _row_data(node: Node) -> object:
    return [item.value for item in node.items] if node.items is not None else node.value
