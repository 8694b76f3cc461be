"""Which layers a pipeline stage and a virtual chunk have, and which of them `block` and `uniform` recompute.

Source: get_transformer_layer_offset and get_num_layers_to_build of megatron/core/transformer, checkpointed_forward
of megatron/core/recompute.py.
"""

from collections.abc import Iterator

from mindswap.config.pipeline import Layout
from mindswap.errors import MindswapError
from mindswap.policy.megatron.options import MegatronOptions


class PlacementError(MindswapError):
    """Megatron refuses to spread the layers like this.

    Attributes:
        field: the option that does not fit.
    """

    def __init__(self, field: str, message: str):
        self.field = field
        super().__init__(message)


def place_layers(options: MegatronOptions, num_layers: int) -> Layout:
    """The layers of each stage and chunk, of so many layers of the model.

    Raises:
        PlacementError: where Megatron would stop.
    """
    num_stages = options.pipeline_model_parallel_size or 1
    first, last = options.decoder_first_pipeline_num_layers, options.decoder_last_pipeline_num_layers
    if first is None and last is None:
        with_ends = num_layers + options.account_for_embedding_in_pipeline_split
        with_ends += options.account_for_loss_in_pipeline_split
        per_stage = [_divide(with_ends, num_stages, "pipeline_model_parallel_size", "layers", "stages")] * num_stages
    else:
        per_stage = _uneven(num_layers, num_stages, first, last)
    num_chunks = _num_chunks(options, per_stage)
    for stage, size in enumerate(per_stage):
        _divide(size, num_chunks, "num_virtual_stages_per_pipeline_rank", f"layers of stage {stage}", "chunks")
    rows = [[size // num_chunks for size in per_stage] for _ in range(num_chunks)]
    rows[0][0] -= options.account_for_embedding_in_pipeline_split
    rows[-1][-1] -= options.account_for_loss_in_pipeline_split
    return Layout(tuple(map(tuple, rows)), num_layers)


def _uneven(num_layers: int, num_stages: int, first: int | None, last: int | None) -> list[int]:
    middle = num_stages - (first is not None) - (last is not None)
    field = "decoder_first_pipeline_num_layers" if first is not None else "decoder_last_pipeline_num_layers"
    rest = num_layers - (first or 0) - (last or 0)
    if middle < 0 or rest < 0 or (middle == 0 and rest):
        raise PlacementError(field, f"does not fit {num_layers} layers on {num_stages} stages")
    size = _divide(rest, middle, field, "other layers", "other stages") if middle else 0
    return ([first] if first is not None else []) + [size] * middle + ([last] if last is not None else [])


def _num_chunks(options: MegatronOptions, per_stage: list[int]) -> int:
    if options.num_virtual_stages_per_pipeline_rank is not None:
        return options.num_virtual_stages_per_pipeline_rank
    if options.num_layers_per_virtual_pipeline_stage is None:
        return 1
    field = "num_layers_per_virtual_pipeline_stage"
    if len(set(per_stage)) > 1:
        message = "cannot stand with an uneven pipeline; use --num-virtual-stages-per-pipeline-rank"
        raise PlacementError(field, message)
    return _divide(per_stage[0], options.num_layers_per_virtual_pipeline_stage, field, "layers of a stage", "per chunk")


def _divide(number: int, by: int, field: str, what: str, into: str) -> int:
    if number % by or number < by:
        raise PlacementError(field, f"{number} {what} cannot be divided by {by} ({into})")
    return number // by


def block_layers(layout: Layout, num_layers: int) -> tuple[int, ...]:
    """The first `num_layers` layers of each chunk of each stage."""
    return tuple(index for cell in layout.cells() for index in cell.layers[:num_layers])


def group_ends(layout: Layout, group_size: int) -> Iterator[int]:
    """The last layer of each group; groups begin anew in every chunk of every stage."""
    for cell in layout.cells():
        for position, index in enumerate(cell.layers, 1):
            if position % group_size == 0 or position == len(cell.layers):
                yield index
