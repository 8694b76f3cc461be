"""Rules for patterns in 2.x files: whether they are valid, whether they match, and whether they have an effect."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mindswap.config.findings import Finding
from mindswap.config.problem import Level
from mindswap.policy.cell_tree import MAX_PATTERN_CHARS, PatternError
from mindswap.policy.formats.mindformers2.effect import LayerOutcome
from mindswap.policy.formats.mindformers2.renaming import to_2x_path
from mindswap.policy.formats.mindformers2.settings import Target
from mindswap.policy.formats.mindformers2.tables import match_paths
from mindswap.policy.wording import closest_names, format_names, name_indices
from mindswap.rules.context import Context2x, rule

# If the model is not known, patterns are matched with paths similar to those of real models.
TYPICAL_PATHS = ("mlp", "self_attention.core_attention", "mlp.linear_fc1.matmul", "pre_mlp_layernorm")
# A repeated dot, which can match across levels.
CROSSING = re.compile(r"(?<!\\)\.[*+{]")
SWAPPED_INPUT = "leave it, if that is meant; else take the layers out of one of the two"


@rule(Level.ERROR)
def bad_regex(context: Context2x) -> Iterator[Finding]:
    """A pattern is not a regular expression (which stops upstream), or takes too long to match (then nothing matches).

    PASS: op_swap: [{op_name: '.*linear_fc1', layers: [0]}]
    FAIL (nothing before the star): op_swap: [{op_name: '*linear_fc1', layers: [0]}]
    """
    model = context.effect.model
    paths = model.layers[0].order if model is not None and model.layers else TYPICAL_PATHS
    for target in context.settings.targets:
        error = _error(target, paths)
        if error is not None:
            allowed = f"a regex for a whole dotted path, of at most {MAX_PATTERN_CHARS} characters"
            fix = "write '.*' for any name" if str(target.pattern).startswith("*") else ""
            yield Finding(target.pattern_location, f"{target.pattern_path}: {error}", allowed, fix)


def _error(target: Target, paths: tuple[str, ...]) -> PatternError | None:
    try:
        match_paths(target.pattern or "", paths)
    except PatternError as error:
        return error
    return None


@rule(Level.WARNING)
def crossing_pattern(context: Context2x) -> Iterator[Finding]:
    r"""A pattern may match more than intended: `.*` crosses levels, and a plain `.` is any character.

    In MindFormers 1.9 each part matched one level. The message lists the matches, including methods of cells, without
    those below another match of the same section.

    PASS: op_swap: [{op_name: 'mlp\.linear_fc1', layers: [0]}]

    FAIL (also `self_attention.linear_qkv` and everything else with this word in its path):
        op_swap: [{op_name: '.*linear.*', layers: [0]}]
    """
    for target in context.settings.targets:
        pattern = target.pattern
        if pattern is None or not CROSSING.search(pattern):
            continue
        detail = ""
        if context.effect.model is not None:
            paths = next((paths for paths in context.effect.matches(target).values() if paths), ())
            depth = len(re.split(r"\\\.", pattern))
            if all(path.count(".") + 1 == depth for path in paths):
                continue
            detail = f"; here it is {len(paths)} paths: {format_names(paths, 6)}"
        message = f"{target.pattern_path}: '{pattern}' matches on any level{detail}"
        fix = r"write '[^.]*' for one level, '\.' between levels"
        yield Finding(target.pattern_location, message, fix=fix)


@rule(Level.ERROR)
def unmatched_pattern(context: Context2x) -> Iterator[Finding]:
    r"""A pattern matches nothing in its layers. Upstream only warns, and not if it matches in some of the layers.

    Checked if a table of mindswap has the model. The pattern must match the full dotted path.

    PASS: op_swap: [{op_name: 'self_attention\.core_attention', layers: [0]}]
    FAIL (the cell of MindFormers 2.x is `self_attention`): op_swap: [{op_name: attention, layers: [0]}]
    """
    model = context.effect.model
    if model is None:
        return
    for target in context.settings.targets:
        if target.pattern is None or _error(target, ("mlp",)) is not None:
            continue
        matched = context.effect.matches(target)
        missing = [layer for layer, paths in matched.items() if not paths]
        if missing and len(missing) < len(matched):
            message = f"{target.pattern_path}: '{target.pattern}' matches nothing in {name_indices('layer', missing)}"
            fix = "take them out of the list"
            yield Finding(target.pattern_location, message, fix=fix, level=Level.WARNING)
        elif missing:
            near = _near(target.pattern, model.layers[0].order)
            message = f"{target.pattern_path}: '{target.pattern}' matches nothing in {model.source}"
            allowed = "a regex that matches a whole dotted path; closest: " + ", ".join(f"'{name}'" for name in near)
            yield Finding(target.pattern_location, message, allowed, f"write '{near[0]}'" if near else "")


def _near(pattern: str, order: Sequence[str]) -> list[str]:
    """Return patterns of up to three similar paths: renamed from 1.9, with the same last part, then by similarity."""
    plain = pattern.replace("\\", "")
    renamed = to_2x_path(plain)
    same_end = [path for path in order if path.rpartition(".")[2] == plain.rpartition(".")[2]]
    candidates = [
        *([renamed] if renamed in order and renamed != plain else []),
        *same_end,
        *closest_names(plain, order, 3),
    ]
    return [path.replace(".", "\\.") for path in dict.fromkeys(candidates)][:3]


@rule(Level.WARNING)
def covered(context: Context2x) -> Iterator[Finding]:
    """A pattern has no effect, because other entries cover its layers, or its cells are inside other matched cells.

    PASS: swap: {enable: True, layer_swap: [{layers: [0]}], op_swap: [{op_name: mlp, layers: [1]}]}

    FAIL (layer 0 is swapped whole):
        swap: {enable: True, layer_swap: [{layers: [0]}], op_swap: [{op_name: mlp, layers: [0, 1]}]}
    """
    settings = context.settings
    covering_options = {
        "op_swap": (settings.swap_layers, "layer_swap"),
        "select_module": (settings.full_layers, "full_recompute_layer"),
        "comm": (settings.full_layers, "recompute.full_recompute_layer"),
    }
    # Of equal patterns only the last applies; `repeated_op_name` and `duplicate_key` report the others.
    last = {(target.option, target.pattern): target for target in settings.targets}
    for target in settings.targets:
        if target.pattern is not None and last[target.option, target.pattern] is not target:
            continue
        layer_map = context.effect.maps.get(target.option)
        covered_layers, key = covering_options.get(target.option, (frozenset(), ""))
        matches = context.effect.matches(target)
        layers_without_effect = [layer for layer in matches if layer in covered_layers]
        if layers_without_effect:
            message = (
                f"{target.layers_path}: has no effect in {name_indices('layer', layers_without_effect)}: {key} has them"
            )
            yield Finding(target.layers_location, message, fix="take them out of one of the two")
        layers_below = [
            layer
            for layer, paths in matches.items()
            if layer_map is not None
            and paths
            and layer not in covered_layers
            and not set(paths) & set(layer_map.get(layer, ()))
        ]
        if layers_below:
            message = f"{target.pattern_path}: a cell above it is named, too, so it adds nothing in "
            yield Finding(target.pattern_location, message + name_indices("layer", layers_below), fix="delete it")


class _LayerMatches(NamedTuple):
    """Matches of a target in one layer."""

    layer_index: int
    outcome: LayerOutcome
    paths: tuple[str, ...]  # matched paths


def _matches_by_layer(context: Context2x, target: Target) -> Iterator[_LayerMatches]:
    """Yield the matches in each layer of a target that the model has."""
    for index, paths in context.effect.matches(target).items():
        if index < len(context.effect.layers):
            yield _LayerMatches(index, context.effect.layers[index], paths)


@rule(Level.ERROR)
def comm_cell(context: Context2x) -> Iterator[Finding]:
    r"""`recompute_comm` names a cell; it accepts operators only, and logs one line at level INFO.

    PASS: recompute_comm: {enable: True, select_module: {'self_attention\.cat': [0]}}
    FAIL: recompute_comm: {enable: True, select_module: {mlp: [0]}}
    """
    for target in context.settings.of("comm"):
        refused = [
            (layer.layer_index, path)
            for layer in _matches_by_layer(context, target)
            for path in layer.paths
            if path in layer.outcome.refused_cells
        ]
        if refused:
            names, layers = _in_words(refused)
            message = f"{target.pattern_path}: {names} is a cell and is not recomputed, in {layers}"
            yield Finding(target.pattern_location, message, "operators", "name an operator in it")


@rule(Level.WARNING)
def swap_of_recomputed(context: Context2x) -> Iterator[Finding]:
    """A layer or cell is recomputed and swapped: then only its input is offloaded, because nothing else is saved.

    MindFormers 2.1.0 accepts it, although its documentation announces an error. It is useful if the inputs of
    recomputed layers fill the memory.

    PASS:
        recompute: {mode: full, full_recompute_layer: [0]}
        swap: {enable: True, layer_swap: [{layers: [1]}]}

    FAIL:
        recompute: {mode: full, full_recompute_layer: [0]}
        swap: {enable: True, layer_swap: [{layers: [0, 1]}]}
    """
    settings = context.settings
    full_layers = sorted(settings.full_layers & settings.swap_layers) if settings.is_swap_enabled else []
    if full_layers:
        entry = settings.of("layer_swap")[0]
        named = f"{entry.layers_path}: {name_indices('layer', full_layers)}"
        message = f"{named}: fully recomputed, so only the input is swapped"
        yield Finding(entry.layers_location, message, fix=SWAPPED_INPUT)
    for target in settings.of("op_swap"):
        recomputed = [
            (layer.layer_index, path)
            for layer in _matches_by_layer(context, target)
            for path in layer.paths
            if path in layer.outcome.recomputed and path in layer.outcome.swapped
        ]
        if recomputed:
            names, layers = _in_words(recomputed)
            message = f"{target.pattern_path}: {names} in {layers} is recomputed; only its input is swapped"
            yield Finding(target.pattern_location, message, fix=SWAPPED_INPUT)


@rule(Level.WARNING)
def swap_below_recompute(context: Context2x) -> Iterator[Finding]:
    """`op_swap` names a cell in a fully recomputed layer, or below a recomputed cell: nothing is swapped.

    Upstream lists it in its "Swap Configuration Map", but wraps nothing and does not warn.

    PASS:
        recompute: {mode: full, full_recompute_layer: [0]}
        swap: {enable: True, op_swap: [{op_name: mlp, layers: [1]}]}

    FAIL:
        recompute: {mode: full, full_recompute_layer: [0]}
        swap: {enable: True, op_swap: [{op_name: mlp, layers: [0]}]}
    """
    for target in context.settings.of("op_swap"):
        paths_by_reason: dict[str, list[tuple[int, str]]] = {}
        for layer in _matches_by_layer(context, target):
            for drop in layer.outcome.drops:
                if drop.option == "op_swap" and drop.path in layer.paths:
                    paths_by_reason.setdefault(drop.reason, []).append((layer.layer_index, drop.path))
        for reason, paths_by_layer in paths_by_reason.items():
            names, layers = _in_words(paths_by_layer)
            message = f"{target.pattern_path}: {names} is not swapped in {layers}: {reason}"
            fix = "take these layers out of op_swap, or out of recompute"
            yield Finding(target.pattern_location, message, fix=fix)


def _in_words(layer_paths: Sequence[tuple[int, str]]) -> tuple[str, str]:
    """Format the names and the layers of (layer, path) pairs."""
    return format_names(dict.fromkeys(path for _, path in layer_paths)), name_indices(
        "layer", (layer for layer, _ in layer_paths)
    )
