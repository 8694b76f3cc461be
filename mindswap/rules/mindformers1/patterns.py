"""Rules for patterns of operator names: whether they are valid, and whether they match."""

import itertools
import re
from collections.abc import Iterator

from mindswap.config.characters import WIDE
from mindswap.config.findings import Finding, rule
from mindswap.config.problem import Level
from mindswap.policy.cell_tree import MAX_PATTERN_CHARS, SEPARATOR, CellNode, PatternError, match_pattern, split_pattern
from mindswap.policy.coverage import Coverage
from mindswap.policy.formats.mindformers1.schema import SELECT_OPTIONS, default_operators
from mindswap.policy.formats.mindformers1.settings import Statement
from mindswap.policy.model import Layers
from mindswap.policy.wording import closest_names, format_layers
from mindswap.rules.context import Context, StatementIndex, StatementOverlap

# Separator with doubled backslashes, as in pages and logs of MindFormers.
_DOUBLED = "\\\\."
# If the model is not known, patterns are matched with names similar to those of real models.
_TYPICAL_NAMES = ("attention", "feed_forward", "input_layernorm", "self_attention", "flash_attention", "w1", "mul")
_TYPICAL_LAYER = CellNode("", "Layer", children=tuple(CellNode(name, "Cell") for name in _TYPICAL_NAMES))
# Tokens of a pattern. Escapes and character classes are single tokens; the group `dot` is a dot between two names, not
# before a quantifier (`.*`, `.+`, `.?`, `.{2}`) and not at the end of a level (`w.\.matmul`).
_TOKENS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(?<=[\w)\]*+?}])(?P<dot>\.)(?=[\w(\[]|\.[*+])", re.DOTALL)


@rule(Level.ERROR)
def bad_regex(context: Context) -> Iterator[Finding]:
    r"""An operator name is not a regular expression, or one that takes too long to match.

    The name is split at `\.`, and each part is a separate regular expression.

    PASS: op_name: '.*\.flash_attention'
    FAIL (nothing before the star): op_name: '*\.flash_attention'
    """
    errors: dict[str, PatternError | None] = {}
    for statement in context.settings.statements:
        pattern = statement.pattern
        if pattern is None or statement.is_default:
            continue
        if pattern not in errors:
            errors[pattern] = _error(context, pattern)
        if errors[pattern] is None:
            continue
        if _DOUBLED in pattern:
            message = f"{statement.pattern_path}: '{pattern}': in single quotes YAML keeps both backslashes"
            fix = f"'{pattern.replace(_DOUBLED, SEPARATOR)}'"
            yield Finding(statement.pattern_location, message, "one backslash", fix)
            continue
        allowed = rf"cell names joined by '\.', each part a regex of at most {MAX_PATTERN_CHARS} characters"
        fix = "write '.*' for any name" if pattern.startswith("*") else ""
        yield Finding(statement.pattern_location, f"{statement.pattern_path}: {errors[pattern]}", allowed, fix)


def _error(context: Context, pattern: str) -> PatternError | None:
    if context.coverage is not None:
        return context.coverage.error(pattern)
    try:
        match_pattern(pattern, _TYPICAL_LAYER)
    except PatternError as error:
        return error
    return None


@rule(Level.ERROR)
def plain_dot(context: Context) -> Iterator[Finding]:
    r"""A `.` joins two names where `\.` is meant: it matches one character, and no level begins there.

    An error; a warning if the pattern matches something nevertheless.

    PASS: op_name: 'attention\.flash_attention'
    FAIL: op_name: 'attention.flash_attention'
    """
    for statement in context.settings.statements:
        suggestion = _with_levels(statement.pattern or "")
        if suggestion is None:
            continue
        is_matching = context.coverage is not None and context.matches_anything(statement)
        message = f"{statement.pattern_path}: '{statement.pattern}' has a plain '.', which matches any one character"
        message += "; it matches in its present form" if is_matching else ""
        allowed = r"'\.' between the names of two levels; '.{1}' where any one character is meant"
        key = "op_name: " if statement.pattern_path.endswith(".op_name") else ""
        level = Level.WARNING if is_matching else None
        yield Finding(statement.pattern_location, message, allowed, f"{key}'{suggestion}'", level)


def _with_levels(pattern: str) -> str | None:
    r"""Return the pattern with `\.` for each plain dot between names; None if it has none."""
    corrected = _TOKENS.sub(lambda token: r"\." if token["dot"] else token[0], pattern)
    return None if corrected == pattern else corrected


# Suggestions compare a pattern with every path of a layer, which takes milliseconds, so their number is limited.
MAX_COMPARED_PATTERNS = 100


@rule(Level.ERROR)
def unmatched_pattern(context: Context) -> Iterator[Finding]:
    r"""A pattern names no operator of the model in the layers it is meant for.

    Of the patterns of a default (flash attention of the default strategy, the operators of
    `select_recompute: True`), one has to match: no model has all of them.

    PASS: op_name: 'attention\.flash_attention'
    FAIL (a level is missing): op_name: 'flash_attention'
    """
    coverage = context.coverage
    if coverage is None:
        return
    statements = context.settings.statements
    matched_defaults = {
        statement.option
        for statement in statements
        if _is_default(context, statement) and context.matches_anything(statement)
    }
    num_unmatched = 0
    for statement in statements:
        pattern = _specific_pattern(statement, coverage)
        missing = _layers_without_match(pattern, statement.layers, coverage) if pattern is not None else None
        if pattern is None or not missing:
            continue
        if context.matches_anything(statement):
            yield from _partly_unmatched(statement, missing)
        elif coverage.matches_mtp_layer(pattern):
            yield from _matched_in_mtp_layer(statement, coverage)
        elif _is_default(context, statement):
            if statement.option not in matched_defaults and statement.is_default:
                yield _no_default(statement, coverage)
        elif _with_levels(pattern) is None:  # else `plain_dot` reports the pattern
            num_unmatched += 1
            near = _near_paths(pattern, coverage) if num_unmatched <= MAX_COMPARED_PATTERNS else []
            yield _unmatched(statement, pattern, coverage, near)


def _specific_pattern(statement: Statement, coverage: Coverage) -> str | None:
    """Return the pattern of a statement if it is valid, has layers, and does not match any operator by design."""
    pattern = statement.pattern
    if pattern is None or WIDE.search(pattern) or not statement.layers or coverage.error(pattern) is not None:
        return None
    return pattern


def _layers_without_match(pattern: str, layers: Layers, coverage: Coverage) -> Layers:
    """Return the layers in which a pattern matches nothing."""
    by_class = coverage.layers_by_class(layers)
    unmatched = (indices for layer_class, indices in by_class.items() if not coverage.matches(pattern, layer_class))
    return Layers(itertools.chain.from_iterable(unmatched))


def _partly_unmatched(statement: Statement, missing: Layers) -> Iterator[Finding]:
    """Yield a finding about listed layers in which a pattern matches nothing."""
    if statement.layers.indices is not None and not statement.is_default:
        layers = format_layers(missing)
        message = f"{statement.pattern_path}: '{statement.pattern}' matches no operator in {layers}"
        yield Finding(statement.pattern_location, message, fix=f"take {layers} out of the list", level=Level.WARNING)


def _matched_in_mtp_layer(statement: Statement, coverage: Coverage) -> Iterator[Finding]:
    """Yield a finding about a pattern that matches only in the layer of multi-token prediction, under another index."""
    last = coverage.num_layers - 1
    if last not in statement.layers.resolve(coverage.num_layers):
        message = (
            f"{statement.pattern_path}: '{statement.pattern}' matches no operator in "
            f"{format_layers(statement.layers)}, only in the layer of multi-token prediction, which has the number of "
            f"the last layer, {last}"
        )
        yield Finding(statement.pattern_location, message, f"layer {last}", f"name layer {last}")


def _is_default(context: Context, statement: Statement) -> bool:
    """Return whether a pattern is a default one, even if it is written out (as by `Policy.to_config`)."""
    if statement.is_default or statement.option not in SELECT_OPTIONS:
        return statement.is_default
    return statement.pattern in default_operators(statement.option, context.settings.use_legacy)


def _unmatched(statement: Statement, pattern: str, coverage: Coverage, near: list[str]) -> Finding:
    layers = "any layer" if statement.layers.indices is None else format_layers(statement.layers)
    message = f"{statement.pattern_path}: '{pattern}' matches no operator in {layers} of {coverage.trees.source}"
    allowed = r"cell names joined by '\.', each part a regex"
    if near:
        allowed += "; closest: " + ", ".join(f"'{path}'" for path in near)
    if statement.pattern_location.line:
        allowed += f"; all paths: mindswap explain --paths {statement.pattern_location.file}"
    key = "op_name: " if statement.pattern_path.endswith(".op_name") else "write "
    return Finding(statement.pattern_location, message, allowed, f"{key}'{near[0]}'" if near else "")


def _no_default(statement: Statement, coverage: Coverage) -> Finding:
    source = coverage.trees.source
    if statement.option == "op_swap":
        message = f"{statement.path}: the default strategy finds no flash attention in {source}"
        fix = "set model_config.use_flash_attention: True, or name operators in op_swap"
        return Finding(statement.pattern_location, message, fix=fix)
    message = f"{statement.path}: none of the default operators is in {source}, so this has no effect"
    return Finding(statement.pattern_location, message, fix="name the operators", level=Level.WARNING)


def _near_paths(pattern: str, coverage: Coverage) -> list[str]:
    """Return up to three similar paths: those that end with the pattern first, then by similarity."""
    parts = split_pattern(pattern)
    ends = [path for path in coverage.paths if tuple(split_pattern(path))[-len(parts) :] == parts]
    other_paths = [path for path in coverage.paths if path not in ends]
    return [*ends, *closest_names(pattern, other_paths, 3)][:3]


@rule(Level.WARNING)
def exclude_select(context: Context) -> Iterator[Finding]:
    r"""An exclude option contradicts a select option, or excludes operators that no option selects.

    Excluded operators are never recomputed.

    PASS:
        select_recompute: ['feed_forward']
        select_recompute_exclude: ['feed_forward\.mul']

    FAIL (selected and excluded):
        select_recompute: ['feed_forward\.mul']
        select_recompute_exclude: ['feed_forward\.mul']
    """
    for option in ("select_recompute", "select_comm_recompute"):
        selected = context.settings.of(option)
        layer_recompute = context.settings.of("recompute") if option == "select_recompute" else ()
        selecting = StatementIndex((*selected, *layer_recompute))
        for excluded in context.settings.of(f"{option}_exclude"):
            if excluded.is_default:
                continue
            pairs = (
                (statement, context.overlap(statement, excluded)) for statement in selecting.candidates(excluded.layers)
            )
            overlaps = [(statement, overlap) for statement, overlap in pairs if overlap is not None]
            for statement, overlap in overlaps:
                if _takes_all(context, statement, overlap):
                    message = (
                        f"{excluded.pattern_path}: excludes all that {statement.path} ({statement.location}) selects "
                        f"in {format_layers(overlap.layers)}; the exclude option acts"
                    )
                    yield Finding(excluded.pattern_location, message, fix="delete one of the two")
            if not overlaps:
                message = f"{excluded.pattern_path}: nothing is recomputed that this excludes, so it has no effect"
                yield Finding(excluded.pattern_location, message, fix="delete it")


def _takes_all(context: Context, statement: Statement, overlap: StatementOverlap) -> bool:
    if statement.pattern is None:
        return False
    if context.coverage is None:
        return True
    layers_by_class = context.coverage.layers_by_class(overlap.layers)
    return all(
        context.coverage.operators(statement.pattern, layer_class) <= set(overlap.operators)
        for layer_class in layers_by_class
    )
