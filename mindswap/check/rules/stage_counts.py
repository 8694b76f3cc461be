"""Rules for recompute options that count layers per pipeline stage."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from mindswap.check.context import Context
from mindswap.check.rules.patterns import bad_regex, plain_dot, unmatched_pattern
from mindswap.config.nodes import DocumentNode, is_whole_number, key_text, show
from mindswap.config.problem import Level, Problem
from mindswap.config.rules import Finding, rule
from mindswap.policy.cell_tree import match_pattern
from mindswap.policy.counts import layers_of_stage_counts
from mindswap.policy.expand import expand_stage_recompute, find_layout_problem
from mindswap.policy.model import Layers
from mindswap.policy.schema import SELECT_OPTIONS
from mindswap.policy.settings import Statement
from mindswap.policy.words import format_layers, last_key


@rule(Level.ERROR)
def stage_count_form(context: Context) -> Iterator[Finding]:
    """A recompute option counts layers per pipeline stage, but with swap on it takes layer indices.

    With swap off, `recompute: [2, 1]` means 2 layers of stage 0 and 1 of stage 1. With swap on it would mean layers 2
    and 1. Lists that cannot be indices are refused: lists of lists, lists with a bool, and one number per stage (of
    several) of which one is no layer or stands twice. A list that can be both, one number per stage that is not
    ascending, such as `recompute: [8, 6, 4, 2]` on 4 stages, is a warning; next to a list that can only be counts it is
    an error, ascending or not.

    PASS (swap on): recompute_config: {recompute: [0, 1, 4]}
    FAIL (swap on; two lists of stages): recompute_config: {recompute: [[2, 1], [1, 0]]}
    """
    settings = context.settings
    for counts in settings.stage_counts:
        message = f"{counts.path}: {show(counts.node)} counts layers per pipeline stage, but swap is on"
        allowed = "True, False, or a list of layer indices"
        yield Finding(counts.node.location, message, allowed, _as_indices(context, counts.path, counts.node))
    refused = {id(counts.node) for counts in settings.stage_counts}
    for path, node in _lists(context) if settings.is_swap_enabled else ():
        values = [item.value for item in node.items or ()]
        if id(node) in refused or not _can_be_counts(context, values):
            continue
        what = f"{path}: {show(node)} is read as {format_layers(Layers(values))}"
        fix = f"if layers of each stage are meant: {_as_indices(context, path, node)}"
        if settings.stage_counts:
            other = settings.stage_counts[0]
            message = f"{what}, while {other.path} ({other.node.location}) counts layers per pipeline stage"
            yield Finding(node.location, message, "one form in the whole section: layer indices", fix)
        elif values != sorted(values):
            message = f"{what}, because swap is on; with swap off it would count the layers of {len(values)} stages"
            yield Finding(node.location, message, "layer indices, ascending to say so", fix, Level.WARNING)


def _lists(context: Context) -> Iterator[tuple[str, DocumentNode]]:
    """Every list under a recompute option, with its key path."""
    for option in ("recompute", *SELECT_OPTIONS):
        node = context.document.get("recompute_config", option)
        path = f"recompute_config.{option}"
        if node is not None and node.items:
            yield path, node
        for entry in node.unique_entries() if node is not None else ():
            if entry.value.items:
                yield f"{path}['{key_text(entry.key)}']", entry.value


def _can_be_counts(context: Context, values: list[Any]) -> bool:
    """Whether there is one number for each of several stages, none above the layers of its stage."""
    pipeline, num_layers = context.settings.pipeline, context.num_layers
    if (
        not all(map(is_whole_number, values))
        or num_layers is None
        or pipeline.num_stages == 1
        or len(values) != pipeline.num_stages
    ):
        return False
    stages = [pipeline.stage_layers(stage, num_layers) or () for stage in range(pipeline.num_stages)]
    return all(0 <= value <= len(layers) for value, layers in zip(values, stages, strict=True))


def _as_indices(context: Context, path: str, node: DocumentNode) -> str:
    layers = layers_of_stage_counts(node, context.settings.pipeline, context.num_layers)
    if layers is None:
        return "write the indices of the layers, counted from 0 over all stages"
    return f"{last_key(path)}: {list(layers) if layers else False}"


@rule(Level.ERROR)
def stage_recompute(context: Context) -> Iterator[Finding | Problem]:
    """With swap off, MindFormers stops at recompute_config, or does less than it says.

    Errors are what stops MindFormers when it builds the network: more counts than stages, values that are
    no counts, an offset that does not fit the model. Warnings are what it takes without a word: counts
    above the number of layers, operator names that match nothing, flags that it does not pass on.
    `mindswap run` leaves such a configuration to MindFormers; only `mindswap check` and the like say it.
    An offset that does not fit the model is an error with swap on, too.

    PASS (swap off; 8 layers on 2 stages): recompute_config: {recompute: [2, 1]}
    FAIL (swap off; 8 layers on 2 stages): recompute_config: {recompute: [2, 1, 1]}
    """
    if context.num_layers is None or context.document.root is None:
        return
    if context.settings.is_swap_enabled:  # the other rules judge all but the offset
        problem = find_layout_problem(context.document, context.num_layers)
        if problem is not None and problem.location.line:  # else no key says how layers are spread
            yield problem
        return
    expansion = expand_stage_recompute(context.document, context.num_layers)
    yield from expansion.problems
    names = replace(context, settings=replace(context.settings, recompute=expansion.statements))
    yield from bad_regex.find(names)
    for idle in (plain_dot, unmatched_pattern):  # MindFormers takes these, and does nothing
        for problem in idle.check(names):
            yield replace(problem, level=Level.WARNING)
    for statement in expansion.statements:
        if statement.option.endswith("_exclude") and _names_only_cells(context, statement):
            message = f"{statement.path}: '{statement.pattern}' names a cell, and MindFormers excludes operators only"
            yield Finding(statement.location, message, fix="name the operators in it", level=Level.WARNING)


def _names_only_cells(context: Context, statement: Statement) -> bool:
    if context.coverage is None or not statement.pattern or context.coverage.error(statement.pattern):
        return False
    kinds = context.coverage.layers_by_kind(statement.layers)
    found = [match for kind in kinds for match in match_pattern(statement.pattern, context.coverage.kinds[kind])]
    return bool(found) and not any(match.node.is_primitive for match in found)
