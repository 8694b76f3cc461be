"""Validate options as Megatron-LM and MindSpeed do, but report all problems, not only the first.

Source: validate_args of megatron/training/arguments.py, TransformerConfig.__post_init__, and checkpointed_forward of
megatron/core/recompute.py (commit d98e8a6), which silently limits counts to the layers of a chunk.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from mindswap.config.problem import Level, Problem
from mindswap.files import package_data
from mindswap.policy.formats.megatron.options import RULE, MegatronOptions, option_name
from mindswap.policy.formats.megatron.placement import PlacementError, place_layers
from mindswap.units import format_count

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
    values = vars(options) | {
        "granularity": options.granularity,
        "tensor_model_parallel_size": size,
        "zero_memory": options.zero_memory,
        "asks": options.asks_recompute or options.asks_offload or options.swap_optimizer,
    }
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
    if options.num_layers is None or all(virtual):
        return
    try:
        placement = place_layers(options, options.num_layers)
    except PlacementError as error:
        yield _OptionProblem(error.field, f"{error}; {error.tool} refuses it too")
        return
    largest = placement.largest_count(is_per_stage=options.enable_recompute_layers_per_pp_rank)
    count = options.recompute_num_layers
    if options.granularity == "full" and count is not None and count > largest:
        is_chunk = len(placement.layout.sizes) > 1 and not options.enable_recompute_layers_per_pp_rank
        part = "a virtual chunk" if is_chunk else "a pipeline stage"
        message = f"{count}: {part} has {format_count(largest, 'layer')}, so that many are taken"
        fix = f"--recompute-num-layers {largest}"
        yield _OptionProblem("recompute_num_layers", message, f"1 to {largest}", fix, Level.WARNING)
