"""Refusals of Megatron-LM, as problems: all at once, where Megatron stops at the first.

Source: validate_args of megatron/training/arguments.py, TransformerConfig.__post_init__, and checkpointed_forward of
megatron/core/recompute.py (commit d98e8a6): it cuts counts to the layers of a chunk, and says nothing.
"""

from collections.abc import Callable, Iterator
from typing import Any

from mindswap.config.pipeline_layout import Layout
from mindswap.config.problem import Level, Problem
from mindswap.errors import MindswapError
from mindswap.files import package_data
from mindswap.policy.formats.megatron.options import RULE, MegatronOptions, option_name
from mindswap.units import format_count

# Which layers a pipeline stage and a virtual chunk have, and which of them `block` and `uniform` recompute.
#
# Source: get_transformer_layer_offset and get_num_layers_to_build of megatron/core/transformer, checkpointed_forward
# of megatron/core/recompute.py.


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


def _divide(number: int, divisor: int, field: str, units: str, divisor_name: str) -> int:
    if number % divisor or number < divisor:
        raise PlacementError(field, f"{number} {units} cannot be divided by {divisor} ({divisor_name})")
    return number // divisor


def block_layers(layout: Layout, num_layers: int) -> tuple[int, ...]:
    """The first `num_layers` layers of each chunk of each stage."""
    return tuple(index for cell in layout.cells() for index in cell.layers[:num_layers])


def group_ends(layout: Layout, group_size: int) -> Iterator[int]:
    """The last layer of each group; groups begin anew in every chunk of every stage."""
    for cell in layout.cells():
        for position, index in enumerate(cell.layers, 1):
            if position % group_size == 0 or position == len(cell.layers):
                yield index


INSIDE_MOE = ("moe_act", "expert_fc1", "fused_group_mlp")
Finding = tuple[str, str, str, str]  # option, message, allowed, fix


def find_problems(options: MegatronOptions, module_names: dict[str, list[str]]) -> tuple[Problem, ...]:
    """Every reason for which Megatron would stop, and what mindswap needs and does not find.

    `module_names` are the module names that Megatron takes, for `recompute` and for `offload`.
    """
    names = ((Level.ERROR, error) for error in _check_names(options, module_names))
    problems = (*_find_listed(options, module_names), *names, *_check_layers(options))
    return tuple(
        Problem(
            location=options.location_of(field),
            rule=RULE,
            level=level,
            message=f"{option_name(field)}: {message}",
            allowed=allowed,
            fix=fix,
            subject=option_name(field),
        )
        for level, (field, message, allowed, fix) in problems
    )


_CONDITIONS: dict[str, Callable[[Any, str], bool]] = {
    "given": lambda value, _: bool(value),
    "missing": lambda value, _: not value,
    "is": lambda value, word: str(value) == word,
    "is-not": lambda value, word: str(value) != word,
    "has": lambda value, word: word in (value or ()),
    "has-not": lambda value, word: word not in (value or ()),
}


def _find_listed(options: MegatronOptions, module_names: dict[str, list[str]]) -> Iterator[tuple[Level, Finding]]:
    """What data/megatron/validity.yaml has."""
    size = options.tensor_model_parallel_size or 1
    values = vars(options) | {"granularity": options.granularity, "tensor_model_parallel_size": size}
    texts = values | {purpose: ", ".join(names) for purpose, names in module_names.items()}
    for rule in package_data("megatron/validity.yaml"):
        conditions = (condition.split() for condition in rule["when"])
        if all(_CONDITIONS[name](values[option], "".join(word)) for option, name, *word in conditions):
            message, allowed, fix = (rule.get(part, "").format(**texts) for part in ("message", "allowed", "fix"))
            yield Level(rule["level"]), (rule["option"], message, allowed, fix)


def _check_names(options: MegatronOptions, module_names: dict[str, list[str]]) -> Iterator[Finding]:
    recompute, offload = options.recompute_modules or (), options.offload_modules or ()
    offload = offload if options.fine_grained_activation_offloading else ()
    for purpose, names in (("recompute", recompute), ("offload", offload)):
        if unknown := [name for name in names if name not in module_names[purpose]]:
            yield f"{purpose}_modules", f"{', '.join(unknown)}: no such module", ", ".join(module_names[purpose]), ""
    inside = [name for name in offload if name in INSIDE_MOE]
    if options.granularity == "selective" and "moe" in recompute and inside:
        message = f"{', '.join(inside)}: inside moe, which --recompute-modules has whole"
        yield "offload_modules", message, "", "delete one of the two"


def _check_layers(options: MegatronOptions) -> Iterator[tuple[Level, Finding]]:
    """Layers that cannot be spread, and a count above those of a chunk: Megatron-LM takes all that there are."""
    virtual = (options.num_layers_per_virtual_pipeline_stage, options.num_virtual_stages_per_pipeline_rank)
    if options.num_layers is None or options.pipeline_model_parallel_layout is not None or all(virtual):
        return
    try:
        layout = place_layers(options, options.num_layers)
    except PlacementError as error:
        yield Level.ERROR, (error.field, f"{error}; Megatron-LM refuses it too", "", "")
        return
    count, largest = options.recompute_num_layers, max(max(row) for row in layout.sizes)
    if options.granularity == "full" and count is not None and count > largest:
        where = "a virtual chunk" if len(layout.sizes) > 1 else "a pipeline stage"
        message = f"{count}: {where} has {format_count(largest, 'layer')}, so that many are taken"
        fix = f"--recompute-num-layers {largest}"
        yield Level.WARNING, ("recompute_num_layers", message, f"1 to {largest}", fix)
