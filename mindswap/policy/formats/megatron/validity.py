"""Validate options as Megatron-LM does, but report all problems, not only the first.

Source: validate_args of megatron/training/arguments.py, TransformerConfig.__post_init__, and checkpointed_forward of
megatron/core/recompute.py (commit d98e8a6), which silently limits counts to the layers of a chunk.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from mindswap.config.pipeline_layout import Layout
from mindswap.config.problem import Level, Problem
from mindswap.errors import MindswapError
from mindswap.files import package_data
from mindswap.policy.formats.megatron.options import RULE, MegatronOptions, option_name
from mindswap.units import format_count

# Layers of each pipeline stage and virtual chunk, and those of them that `block` and `uniform` recompute.
#
# Source: get_transformer_layer_offset and get_num_layers_to_build of megatron/core/transformer, checkpointed_forward
# of megatron/core/recompute.py.


class PlacementError(MindswapError):
    """Megatron-LM refuses to distribute the layers as requested.

    Attributes:
        field: attribute of the option that is wrong.
    """

    def __init__(self, field: str, message: str):
        self.field = field
        super().__init__(message)


def place_layers(options: MegatronOptions, num_layers: int) -> Layout:
    """Distribute `num_layers` layers over stages and chunks as Megatron-LM does.

    Raises:
        PlacementError: if Megatron-LM refuses the options.
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
    """Return the first `num_layers` layers of each chunk of each stage."""
    return tuple(index for cell in layout.cells() for index in cell.layers[:num_layers])


def group_ends(layout: Layout, group_size: int) -> Iterator[int]:
    """Yield the last layer of each group of `group_size` layers; groups do not cross chunks."""
    for cell in layout.cells():
        for position, index in enumerate(cell.layers, 1):
            if position % group_size == 0 or position == len(cell.layers):
                yield index


INSIDE_MOE = ("moe_act", "expert_fc1", "fused_group_mlp")


class _OptionProblem(NamedTuple):
    """Problem of one option."""

    field: str  # attribute of `MegatronOptions`
    message: str
    allowed: str = ""
    fix: str = ""
    level: Level = Level.ERROR


def find_problems(options: MegatronOptions, module_names: dict[str, list[str]]) -> tuple[Problem, ...]:
    """Return all reasons for which Megatron-LM refuses the options, and settings that mindswap needs but are missing.

    Args:
        options: the options.
        module_names: module names that Megatron-LM accepts, by purpose (`recompute`, `offload`).
    """
    problems = (
        *_find_listed(options, module_names),
        *_check_names(options, module_names),
        *_check_layers(options),
    )
    return tuple(
        Problem(
            location=options.location_of(problem.field),
            rule=RULE,
            level=problem.level,
            message=f"{option_name(problem.field)}: {problem.message}",
            allowed=problem.allowed,
            fix=problem.fix,
            subject=option_name(problem.field),
        )
        for problem in problems
    )


_CONDITIONS: dict[str, Callable[[Any, str], bool]] = {
    "given": lambda value, _: bool(value),
    "missing": lambda value, _: not value,
    "is": lambda value, word: str(value) == word,
    "is-not": lambda value, word: str(value) != word,
    "has": lambda value, word: word in (value or ()),
    "has-not": lambda value, word: word not in (value or ()),
}


def _find_listed(options: MegatronOptions, module_names: dict[str, list[str]]) -> Iterator[_OptionProblem]:
    """Yield the problems whose conditions in data/megatron/validity.yaml hold."""
    size = options.tensor_model_parallel_size or 1
    values = vars(options) | {"granularity": options.granularity, "tensor_model_parallel_size": size}
    texts = values | {purpose: ", ".join(names) for purpose, names in module_names.items()}
    for rule in package_data("megatron/validity.yaml"):
        conditions = (condition.split() for condition in rule["when"])
        if all(_CONDITIONS[name](values[option], "".join(word)) for option, name, *word in conditions):
            message, allowed, fix = (rule.get(part, "").format(**texts) for part in ("message", "allowed", "fix"))
            yield _OptionProblem(rule["option"], message, allowed, fix, Level(rule["level"]))


def _check_names(options: MegatronOptions, module_names: dict[str, list[str]]) -> Iterator[_OptionProblem]:
    recompute, offload = options.recompute_modules or (), options.offload_modules or ()
    offload = offload if options.fine_grained_activation_offloading else ()
    for purpose, names in (("recompute", recompute), ("offload", offload)):
        if unknown := [name for name in names if name not in module_names[purpose]]:
            message = f"{', '.join(unknown)}: no such module"
            yield _OptionProblem(f"{purpose}_modules", message, ", ".join(module_names[purpose]))
    inside = [name for name in offload if name in INSIDE_MOE]
    if options.granularity == "selective" and "moe" in recompute and inside:
        message = f"{', '.join(inside)}: inside moe, which --recompute-modules has whole"
        yield _OptionProblem("offload_modules", message, fix="delete one of the two")


def _check_layers(options: MegatronOptions) -> Iterator[_OptionProblem]:
    """Yield problems of the distribution of layers, and of counts above the layers of a chunk, which are limited."""
    virtual = (options.num_layers_per_virtual_pipeline_stage, options.num_virtual_stages_per_pipeline_rank)
    if options.num_layers is None or options.pipeline_model_parallel_layout is not None or all(virtual):
        return
    try:
        layout = place_layers(options, options.num_layers)
    except PlacementError as error:
        yield _OptionProblem(error.field, f"{error}; Megatron-LM refuses it too")
        return
    count, largest = options.recompute_num_layers, max(max(row) for row in layout.sizes)
    if options.granularity == "full" and count is not None and count > largest:
        where = "a virtual chunk" if len(layout.sizes) > 1 else "a pipeline stage"
        message = f"{count}: {where} has {format_count(largest, 'layer')}, so that many are taken"
        fix = f"--recompute-num-layers {largest}"
        yield _OptionProblem("recompute_num_layers", message, f"1 to {largest}", fix, Level.WARNING)
