"""Layers of each pipeline stage and virtual chunk, and those of them that counts select.

Source: get_transformer_layer_offset and get_num_layers_to_build of megatron/core/transformer, checkpointed_forward of
megatron/core/recompute.py, pipeline_parallel_layer_layout.py (commit d98e8a6); core/memory/common.py,
core/memory/recompute/recompute_common.py and dualpipev_chunks.py of MindSpeed (028de58); num_layer_list.py of
MindSpeed-LLM (c77308a).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mindswap.config.pipeline_layout import Layout, Pipeline
from mindswap.errors import MindswapError
from mindswap.policy.formats.megatron.options import MegatronOptions
from mindswap.policy.model import ALL_LAYERS, Layers

MAX_LAYOUT_CHARS = 10_000
_REPEATED = re.compile(r"(?:\(([^()]*)\)|([EtmL|]))\*(\d{1,4})")


class PlacementError(MindswapError):
    """The layers are not distributed as requested.

    Attributes:
        field: attribute of the option that is wrong.
        tool: who refuses it, `Megatron-LM` or `MindSpeed`.
    """

    def __init__(self, field: str, message: str, tool: str = "Megatron-LM"):
        self.field = field
        self.tool = tool
        super().__init__(message)


@dataclass(frozen=True)
class LayerPlacement:
    """Layers on stages and chunks. Layers that compute nothing are counted here, and the model has none of them."""

    layout: Layout  # of all layers, with those that compute nothing
    noop_layers: frozenset[int] = frozenset()  # those that compute nothing

    @property
    def num_model_layers(self) -> int:
        """Layers of the model."""
        return self.layout.num_layers - len(self.noop_layers)

    @property
    def model_sizes(self) -> tuple[tuple[int, ...], ...]:
        """Layers of the model of each stage (inner) of each chunk (outer)."""
        sizes = [[0] * len(row) for row in self.layout.sizes]
        for cell in self.layout.cells():
            sizes[cell.chunk][cell.position] = len({*cell.layers} - self.noop_layers)
        return tuple(map(tuple, sizes))

    def describe(self) -> str:
        """Return the settings of MindFormers for these stages, e.g. `pipeline_stage: 2, offset: [1, 0]`."""
        sizes, is_v_shaped = self.model_sizes, self.layout.is_zero_bubble_v
        scheduler = "zero_bubble_v" if is_v_shaped else "1f1b"
        pipeline = Pipeline(num_stages=len(sizes[0]), num_chunks=len(sizes), scheduler=scheduler)
        table = pipeline.offset_of(Layout(sizes, self.num_model_layers, is_v_shaped))
        offset = table if len({size for row in sizes for size in row}) > 1 else 0
        chunks = f", pp_interleave_num: {len(sizes)}" if len(sizes) > 1 else ""
        schedule = f", pipeline_scheduler: {scheduler}" if is_v_shaped else ""
        return f"pipeline_stage: {len(sizes[0])}{chunks}{schedule}, offset: {offset}"

    def model_layers(self, layers: Iterable[int]) -> Layers:
        """Return layers by their number in the model."""
        real = [layer for layer in range(self.layout.num_layers) if layer not in self.noop_layers]
        number = {layer: index for index, layer in enumerate(real)}
        indices = tuple(sorted(number[layer] for layer in layers if layer in number))
        return ALL_LAYERS if len(indices) == len(real) else Layers(indices)

    def priorities(self, *, is_per_stage: bool) -> Iterator[tuple[int, int]]:
        """Yield each layer with its priority: a count N selects the layers of priority 0 to N - 1.

        Args:
            is_per_stage: whether counts are per stage, shared evenly by its chunks; else per chunk.
        """
        num_chunks = len(self.layout.sizes) if is_per_stage and not self.layout.is_zero_bubble_v else 1
        for cell in self.layout.cells():
            for index, layer in enumerate(cell.layers):
                yield layer, index * num_chunks + (cell.chunk if num_chunks > 1 else 0)

    def first_layers(self, count: int, *, is_per_stage: bool = False) -> tuple[int, ...]:
        """Return the first `count` layers of each chunk, or of each stage."""
        return tuple(layer for layer, priority in self.priorities(is_per_stage=is_per_stage) if priority < count)

    def largest_count(self, *, is_per_stage: bool) -> int:
        """Return the least count that selects all layers."""
        return 1 + max((priority for _, priority in self.priorities(is_per_stage=is_per_stage)), default=0)

    def group_ends(self, group_size: int) -> Iterator[int]:
        """Yield the last layer of each group of `group_size` layers; groups do not cross chunks."""
        for cell in self.layout.cells():
            for position, index in enumerate(cell.layers, 1):
                if position % group_size == 0 or position == len(cell.layers):
                    yield index


def place_layers(options: MegatronOptions, num_layers: int) -> LayerPlacement:
    """Distribute `num_layers` layers, with those of --noop-layers, over stages and chunks.

    Raises:
        PlacementError: if Megatron-LM or MindSpeed refuses the options.
    """
    noop_layers = frozenset(options.noop_layers or ())
    if noop_layers and max(noop_layers) >= num_layers:
        raise PlacementError("noop_layers", f"{max(noop_layers)}: layers are 0 to {num_layers - 1}", "MindSpeed")
    if len(noop_layers) == num_layers:
        raise PlacementError("noop_layers", "no layer is left", "MindSpeed")
    is_v_shaped = options.schedules_method is not None
    if is_v_shaped:
        rows = _place_v_shaped(options, num_layers)
    elif options.pipeline_model_parallel_layout is not None:
        rows = _place_as_listed(options, num_layers)
    elif options.num_layer_list is not None and not noop_layers:
        rows = [_place_by_list(options, num_layers)]
    else:
        rows = _place_evenly(options, num_layers)
    return LayerPlacement(Layout(tuple(map(tuple, rows)), num_layers, is_v_shaped), noop_layers)


def _place_evenly(options: MegatronOptions, num_layers: int) -> list[list[int]]:
    num_stages = options.pipeline_model_parallel_size or 1
    first, last = options.decoder_first_pipeline_num_layers, options.decoder_last_pipeline_num_layers
    if first is None and last is None:
        with_ends = num_layers + options.account_for_embedding_in_pipeline_split
        with_ends += options.account_for_loss_in_pipeline_split
        per_stage = [_divide(with_ends, num_stages, "pipeline_model_parallel_size", "layers", "stages")] * num_stages
    else:
        per_stage = _place_ends(num_layers, num_stages, first, last)
    num_chunks = _num_chunks(options, per_stage)
    for stage, size in enumerate(per_stage):
        _divide(size, num_chunks, "num_virtual_stages_per_pipeline_rank", f"layers of stage {stage}", "chunks")
    rows = [[size // num_chunks for size in per_stage] for _ in range(num_chunks)]
    rows[0][0] -= options.account_for_embedding_in_pipeline_split
    rows[-1][-1] -= options.account_for_loss_in_pipeline_split
    return rows


def _place_ends(num_layers: int, num_stages: int, first: int | None, last: int | None) -> list[int]:
    num_middle_stages = num_stages - (first is not None) - (last is not None)
    field = "decoder_first_pipeline_num_layers" if first is not None else "decoder_last_pipeline_num_layers"
    num_middle_layers = num_layers - (first or 0) - (last or 0)
    if num_middle_stages < 0 or num_middle_layers < 0 or (num_middle_stages == 0 and num_middle_layers):
        raise PlacementError(field, f"does not fit {num_layers} layers on {num_stages} stages")
    size = (
        _divide(num_middle_layers, num_middle_stages, field, "other layers", "other stages") if num_middle_stages else 0
    )
    return ([first] if first is not None else []) + [size] * num_middle_stages + ([last] if last is not None else [])


def _place_v_shaped(options: MegatronOptions, num_layers: int) -> list[list[int]]:
    """Two chunks, of which the second visits the stages in reverse."""
    num_stages = options.pipeline_model_parallel_size or 1
    if num_stages == 1:
        raise PlacementError("schedules_method", "dualpipev needs more than one stage", "MindSpeed")
    for field in (*_CHUNK_OPTIONS, "num_layer_list"):
        if getattr(options, field) is not None:
            raise PlacementError(field, "cannot be combined with --schedules-method dualpipev", "MindSpeed")
    size = _divide(num_layers, 2 * num_stages, "schedules_method", "layers", "2 chunks of each stage")
    return [[size] * num_stages] * 2


def _place_by_list(options: MegatronOptions, num_layers: int) -> list[int]:
    sizes, num_stages = list(options.num_layer_list or ()), options.pipeline_model_parallel_size or 1
    if any(getattr(options, field) is not None for field in _CHUNK_OPTIONS):
        raise PlacementError("num_layer_list", "cannot be combined with virtual chunks", "MindSpeed")
    if len(sizes) != num_stages or sum(sizes) != num_layers:
        message = f"{','.join(map(str, sizes))}: {len(sizes)} stages with {sum(sizes)} layers, but the model has "
        raise PlacementError("num_layer_list", f"{message}{num_layers} layers on {num_stages} stages", "MindSpeed")
    return sizes


def _place_as_listed(options: MegatronOptions, num_layers: int) -> list[list[int]]:
    """Read --pipeline-model-parallel-layout: `t` is a layer, `|` ends a part, `*N` repeats."""
    field, num_stages = "pipeline_model_parallel_layout", options.pipeline_model_parallel_size or 1
    text = re.sub(r"[,\s]", "", options.pipeline_model_parallel_layout or "")
    while match := _REPEATED.search(text):
        text = text[: match.start()] + (match[1] or match[2]) * int(match[3]) + text[match.end() :]
        if len(text) > MAX_LAYOUT_CHARS:
            raise PlacementError(field, f"has more than {MAX_LAYOUT_CHARS} parts and layers")
    if wrong := re.search(r"[^EtmL|]", text):
        raise PlacementError(field, f"'{wrong[0]}': only E, t, m, L, |, parentheses and *N are known")
    parts = text.split("|")
    counts = [part.count("t") for part in parts]
    _divide(len(parts), num_stages, field, "parts", "stages")
    if sum(counts) != num_layers:
        raise PlacementError(field, f"has {sum(counts)} layers, the model {num_layers}")
    return _rows(counts, num_stages)


def _rows(counts: Sequence[int], num_stages: int) -> list[list[int]]:
    return [list(counts[start : start + num_stages]) for start in range(0, len(counts), num_stages)]


# Options that make virtual chunks.
_CHUNK_OPTIONS = ("num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank")


def _num_chunks(options: MegatronOptions, per_stage: list[int]) -> int:
    if options.num_virtual_stages_per_pipeline_rank is not None:
        return options.num_virtual_stages_per_pipeline_rank
    if options.num_layers_per_virtual_pipeline_stage is None:
        return 1
    field = "num_layers_per_virtual_pipeline_stage"
    if len(set(per_stage)) > 1:
        message = "cannot be combined with an uneven pipeline; use --num-virtual-stages-per-pipeline-rank"
        raise PlacementError(field, message)
    return _divide(per_stage[0], options.num_layers_per_virtual_pipeline_stage, field, "layers of a stage", "per chunk")


def _divide(number: int, divisor: int, field: str, units: str, divisor_name: str) -> int:
    if number % divisor or number < divisor:
        raise PlacementError(field, f"{number} {units} cannot be divided by {divisor} ({divisor_name})")
    return number // divisor
