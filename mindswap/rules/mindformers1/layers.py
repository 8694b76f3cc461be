"""Rules for lists of layers (empty, out of range, repeated, not recomputed), and for counts of layers per stage."""

from collections.abc import Iterator
from dataclasses import replace

from mindswap.config.findings import Finding, rule
from mindswap.config.nodes import DocumentNode, is_int, key_text, show
from mindswap.config.problem import Level, Location, Problem
from mindswap.policy.cell_tree import match_pattern
from mindswap.policy.formats.mindformers1.read import MTP_KEYS
from mindswap.policy.formats.mindformers1.schema import MAX_NUM_LAYERS, SELECT_OPTIONS, Expect, find_count
from mindswap.policy.formats.mindformers1.settings import Statement
from mindswap.policy.formats.mindformers1.stage_counts import layers_of_stage_counts
from mindswap.policy.formats.mindformers1.stage_recompute import (
    expand_stage_recompute,
    find_layout_problem,
    find_unknown_keys,
)
from mindswap.policy.model import Layers
from mindswap.policy.wording import format_indices, format_layers, last_key, name_indices
from mindswap.rules.context import Context, FirstOfLayer, shared_layers
from mindswap.rules.mindformers1.patterns import bad_regex, plain_dot, unmatched_pattern


@rule(Level.WARNING)
def no_layers(context: Context) -> Iterator[Finding]:
    """An entry of layer_swap or op_swap names no layer, so it has no effect.

    PASS: layer_swap: [{backward_prefetch: 20, layers: [0]}]
    FAIL: layer_swap: [{backward_prefetch: 20, layers: []}]
    """
    misread = {invalid.path.partition(".layers")[0] for invalid in context.settings.parse_issues.invalid_values}
    incomplete = {missing.path for missing in context.settings.parse_issues.missing_keys}
    for statement in context.settings.swap:
        is_read = statement.path not in misread and statement.path not in incomplete
        if is_read and not statement.layers and not statement.layer_refs:
            message = f"{statement.layers_path}: names no layer, so this entry has no effect"
            yield Finding(statement.location, message, Expect.LAYERS.value, "name layers, or delete the entry")


@rule(Level.ERROR)
def layer_out_of_range(context: Context) -> Iterator[Finding]:
    """A layer index is negative, or there is no such layer.

    PASS (num_layers: 4): layers: [0, 3]
    FAIL (num_layers: 4; layers are counted from 0): layers: [1, 4]

    Layers of multi-token prediction have no separate index: MindFormers 1.9 uses that of the last layer.
    """
    limit = context.num_layers or MAX_NUM_LAYERS
    source = f" (num_layers: {limit})" if context.num_layers else ""
    wrong: dict[tuple[str, Location], set[int]] = {}
    for statement in context.settings.statements:
        for ref in statement.layer_refs:
            if not 0 <= ref.index < limit:
                wrong.setdefault((statement.layers_path, ref.location), set()).add(ref.index)
    for (path, location), indices in wrong.items():
        predicate = "is no layer" if len(indices) == 1 else "are no layers"
        message = f"{path}: there {predicate} {format_indices(indices)}"
        from_start = [index + limit for index in sorted(indices) if index + limit >= 0]
        is_negative = min(indices) < 0 and from_start and context.num_layers
        default_fix = f"delete it; the last layer is {limit - 1}" if context.num_layers else "delete it"
        fix = f"count from the front: {format_indices(from_start)}" if is_negative else default_fix
        if context.num_layers and limit <= min(indices) and max(indices) < limit + _num_prediction_layers(context):
            message += f"; the layer of multi-token prediction has the index of the last layer, {limit - 1}"
            fix = f"{limit - 1}, for the last layer and multi-token prediction"
        yield Finding(location, message, f"0 to {limit - 1}{source}", fix)


def _num_prediction_layers(context: Context) -> int:
    """Return the number of layers for multi-token prediction."""
    stated = find_count((context.document.get("model", "model_config", key) for key in MTP_KEYS), 0)
    if stated is not None:
        return stated
    return int(context.coverage is not None and context.coverage.trees.mtp_layer is not None)


@rule(Level.WARNING)
def repeated_layer(context: Context) -> Iterator[Finding]:
    """A layer is named twice for the same purpose; the second time has no effect.

    PASS: layers: [0, 1, 3]
    FAIL: layers: [0, 1, 1]
    """
    groups: dict[tuple[object, ...], FirstOfLayer] = {}
    for number, statement in enumerate(context.settings.statements):
        named_layers: set[int] = set()
        for ref in statement.layer_refs:
            if ref.index in named_layers:
                message = f"{statement.layers_path}: layer {ref.index} appears twice"
                yield Finding(ref.location, message, "each layer once", f"delete one {ref.index}")
            named_layers.add(ref.index)
        group = groups.setdefault((statement.option, statement.pattern, statement.num_prefetch_ops), FirstOfLayer())
        earlier = group.find_different(statement.layers, number)
        if earlier is not None:
            layers = shared_layers(earlier.layers, statement.layers)
            message = f"{statement.path}: {earlier.path} says the same for {format_layers(layers)}"
            yield Finding(statement.pattern_location, message, fix="delete one of them")
        group.add(statement, number)


@rule(Level.WARNING)
def select_in_recomputed_layer(context: Context) -> Iterator[Finding]:
    """An operator is selected for recomputation in a fully recomputed layer: no effect.

    PASS: recompute_config: {recompute: [0], select_recompute: {feed_forward: [1]}}
    FAIL: recompute_config: {recompute: [0], select_recompute: {feed_forward: [0, 1]}}
    """
    selected = (*context.settings.of("select_recompute"), *context.settings.of("select_comm_recompute"))
    for recompute in context.settings.of("recompute"):
        for statement in selected:
            layers = shared_layers(recompute.layers, statement.layers)
            if layers:
                layers_text = format_layers(layers)
                message = f"{statement.path}: recompute takes {layers_text} whole, so this has no effect there"
                yield Finding(statement.pattern_location, message, fix=f"take {layers_text} out")


@rule(Level.ERROR)
def output_recompute(context: Context) -> Iterator[Finding]:
    """output_recompute names layers without full recompute, or the model does not compile with it.

    `mindswap: {output_recompute: LAYERS}` keeps not even the output of a recomputed layer: backward recomputes it for
    the next layer. MindSpore 2.9 compiles that for networks whose layers have one output tensor (the legacy models),
    and stops at the newer models of MindFormers.

    PASS:
        recompute_config: {recompute: [0, 1, 2, 3]}
        mindswap: {output_recompute: [0, 2]}

    FAIL (layer 2 is not recomputed):
        recompute_config: {recompute: [0, 1]}
        mindswap: {output_recompute: [0, 2]}
    """
    recomputed = [statement.layers for statement in context.settings.of("recompute")]
    for statement in context.settings.of("output_recompute"):
        if not statement.layers:
            continue
        if not context.settings.use_legacy:
            message = f"{statement.path}: MindSpore 2.9 cannot compile it with the models of use_legacy: False"
            yield Finding(statement.location, message, fix="delete it; every layer then keeps its input")
            continue
        indices = statement.layers.resolve(context.num_layers or 0)
        not_recomputed = [index for index in indices if not any(index in layers for layers in recomputed)]
        if not_recomputed:
            message = f"{statement.path}: recompute does not have {name_indices('layer', not_recomputed)}"
            allowed = "layers of recompute_config.recompute"
            yield Finding(statement.location, message, allowed, "add them to recompute")


# Recompute options that count layers per pipeline stage.


@rule(Level.ERROR)
def stage_count_form(context: Context) -> Iterator[Finding]:
    """A recompute option counts layers per pipeline stage, but with swap on it takes layer indices.

    With swap off, `recompute: [2, 1]` means 2 layers of stage 0 and 1 of stage 1. With swap on it would mean layers 2
    and 1. Lists that cannot be indices are refused: lists of lists, lists with a bool, and the number of all layers on
    one stage. So is one number per stage of several if one of them is no layer or is repeated. A list that can be both
    is a warning: one number per stage, not ascending, such as `recompute: [8, 6, 4, 2]` on 4 stages. Next to a list
    that can only be counts it is an error, ascending or not. Where every list is ascending and can be both,
    such as `recompute: [8]` on one stage or `[2, 6]` on two, `mindswap check` has a note on how it is read.

    PASS (swap on): recompute_config: {recompute: [0, 1, 4]}
    FAIL (swap on; two lists of stages): recompute_config: {recompute: [[2, 1], [1, 0]]}
    """
    settings = context.settings
    counts = settings.parse_issues.stage_counts
    for path, node in counts:
        message = f"{path}: {show(node)} counts layers per pipeline stage, but swap is on"
        allowed = "True, False, or a list of layer indices"
        yield Finding(node.location, message, allowed, _as_indices(context, path, node))
    refused = {id(node) for _, node in counts}
    for path, node in _lists(context) if settings.is_swap_enabled else ():
        if id(node) in refused or not _can_be_counts(context, node):
            continue
        values = [item.value for item in node.items or ()]
        reading = f"{path}: {show(node)} is read as {format_layers(Layers(values))}"
        fix = f"if layers of each stage are meant: {_as_indices(context, path, node)}"
        if counts:
            message = f"{reading}, while {counts[0][0]} ({counts[0][1].location}) counts layers per pipeline stage"
            yield Finding(node.location, message, "one form in the whole section: layer indices", fix)
        elif values != sorted(values):
            message = f"{reading}, because swap is on; with swap off it would count the layers of {len(values)} stages"
            yield Finding(node.location, message, "layer indices, ascending to say so", fix, Level.WARNING)


def note_on_counts(context: Context) -> str | None:
    """Return a note on the first list of layer indices if every list could also be counts per pipeline stage."""
    lists = list(_lists(context)) if context.settings.is_swap_enabled else []
    if not lists or not all(_can_be_counts(context, node) for _, node in lists):
        return None
    path, node = lists[0]
    layers = format_layers(Layers(item.value for item in node.items or ()))
    reading = f"{node.location}: {path}: {show(node)} is read as {layers}, because swap is on"
    return f"{reading}; if a number of layers of each stage is meant: {_as_indices(context, path, node)}"


def _lists(context: Context) -> Iterator[tuple[str, DocumentNode]]:
    """Yield every list of a recompute option, with its key path."""
    for option in ("recompute", *SELECT_OPTIONS):
        node = context.document.get("recompute_config", option)
        path = f"recompute_config.{option}"
        if node is not None and node.items:
            yield path, node
        for entry in node.unique_entries() if node is not None else ():
            if entry.value.items:
                yield f"{path}['{key_text(entry.key)}']", entry.value


def _can_be_counts(context: Context, node: DocumentNode) -> bool:
    """Return whether a list has one number for each stage, none above the layers of its stage and not all 0."""
    pipeline, num_layers = context.settings.pipeline, context.num_layers
    values = [item.value for item in node.items or ()]
    has_count_per_stage = pipeline.num_stages == len(values) and all(map(is_int, values))
    if num_layers is None or not has_count_per_stage or not any(values):
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
    """With swap off, MindFormers refuses recompute_config, or applies only a part of it.

    Errors are settings that MindFormers refuses when it builds the network: more counts than stages, values that are
    no counts, an offset that does not fit the model. Warnings are settings that it silently ignores: counts above the
    number of layers, operator names that match nothing, flags that it does not pass on. `mindswap run` starts such a
    training, and MindFormers reports its errors; only commands such as `mindswap check` report them before.
    An offset that does not fit the model is an error with swap on, too.

    PASS (swap off; 8 layers on 2 stages): recompute_config: {recompute: [2, 1]}
    FAIL (swap off; 8 layers on 2 stages): recompute_config: {recompute: [2, 1, 1]}
    """
    if context.document.root is None or context.leaves_errors_to_mindformers:
        return
    if context.num_layers is None:
        yield from () if context.settings.is_swap_enabled else find_unknown_keys(context.document)
        return
    if context.settings.pipeline.lacks_chunks:
        return  # `pipeline-refused` reports it
    if context.settings.is_swap_enabled:  # the other rules check everything except the offset
        problem = find_layout_problem(context.document, context.num_layers)
        if problem is not None and problem.location.line:  # a missing key has no location to report
            yield problem
        return
    expansion = expand_stage_recompute(context.document, context.num_layers)
    yield from expansion.problems
    names = replace(context, settings=replace(context.settings, recompute=expansion.statements))
    yield from bad_regex.find(names)
    for rule_without_effect in (plain_dot, unmatched_pattern):  # MindFormers accepts and ignores these
        for problem in rule_without_effect.check(names):
            yield replace(problem, level=Level.WARNING)
    for statement in expansion.statements:
        if statement.option.endswith("_exclude") and _names_only_cells(context, statement):
            message = f"{statement.path}: '{statement.pattern}' names a cell, and MindFormers excludes operators only"
            yield Finding(statement.location, message, fix="name the operators in it", level=Level.WARNING)


def _names_only_cells(context: Context, statement: Statement) -> bool:
    if context.coverage is None or not statement.pattern or context.coverage.error(statement.pattern):
        return False
    layer_classes = context.coverage.layers_by_class(statement.layers)
    matches = [
        match
        for layer_class in layer_classes
        for match in match_pattern(statement.pattern, context.coverage.layer_classes[layer_class])
    ]
    return bool(matches) and not any(match.node.is_primitive for match in matches)
