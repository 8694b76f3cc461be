"""A pattern names no operator of the model in the layers it is meant for.

Of the patterns that stand for a default (flash attention of the default strategy, the operators of
`select_recompute: True`), one has to match: no model has all of them.

PASS:
    op_name: 'attention\\.flash_attention'

FAIL (a level is missing):
    op_name: 'flash_attention'
"""

from collections.abc import Iterator

from mindswap.check.context import Context
from mindswap.check.rules.plain_dot import pattern_with_levels
from mindswap.document.problem import Level, Problem
from mindswap.policy.coverage import Coverage
from mindswap.policy.match import split_pattern
from mindswap.policy.model import Layers
from mindswap.policy.schema import SELECT_OPTIONS, default_operators
from mindswap.policy.settings import Statement
from mindswap.policy.words import closest_names, format_layers

ID = "unmatched-pattern"
LEVEL = Level.ERROR


def check(context: Context) -> Iterator[Problem]:
    """Every pattern that names nothing, with the paths of the model that come close."""
    coverage = context.coverage
    if coverage is None:
        return
    matched_defaults = {
        statement.option
        for statement in context.settings.statements
        if _is_default(context, statement) and context.matches_anything(statement)
    }
    for statement in context.settings.statements:
        pattern = statement.pattern
        if pattern is None or not statement.layers or coverage.error(pattern) is not None:
            continue
        unmatched = [
            layer
            for kind, layers in coverage.layers_by_kind(statement.layers).items()
            if not coverage.matches(pattern, kind)
            for layer in layers
        ]
        if not unmatched:
            continue
        if context.matches_anything(statement):
            if statement.layers.indices is not None and not statement.is_default:
                layers = format_layers(Layers(tuple(sorted(unmatched))))
                message = f"{statement.pattern_path}: '{pattern}' matches no operator in {layers}"
                fix = f"take {layers} out of the list"
                yield Problem(statement.pattern_location, ID, Level.WARNING, message, fix=fix)
        elif coverage.names_prediction(pattern):
            if coverage.num_layers - 1 not in statement.layers.resolve(coverage.num_layers):
                yield _prediction_problem(statement, coverage)
        elif _is_default(context, statement):
            if statement.option not in matched_defaults and statement.is_default:
                yield _default_problem(statement, coverage)
        elif pattern_with_levels(pattern) is None:  # else the plain dot is the reason, and has its own problem
            yield _problem(statement, coverage)


def _is_default(context: Context, statement: Statement) -> bool:
    """True for a default pattern, also where it is written out (as `Policy.to_config` does)."""
    if statement.is_default or statement.option not in SELECT_OPTIONS:
        return statement.is_default
    return statement.pattern in default_operators(statement.option, context.settings.use_legacy)


def _problem(statement: Statement, coverage: Coverage) -> Problem:
    near = near_paths(statement.pattern or "", coverage)
    layers = "any layer" if statement.layers.indices is None else format_layers(statement.layers)
    where = f"{layers} of {coverage.trees.source}"
    message = f"{statement.pattern_path}: '{statement.pattern}' matches no operator in {where}"
    allowed = r"cell names joined by '\.', each part a regex"
    if near:
        allowed += "; closest: " + ", ".join(f"'{path}'" for path in near)
    if statement.pattern_location.line:
        allowed += f"; all paths: mindswap explain --paths {statement.pattern_location.file}"
    key = "op_name: " if statement.pattern_path.endswith(".op_name") else "write "
    fix = f"{key}'{near[0]}'" if near else ""
    return Problem(statement.pattern_location, ID, LEVEL, message, allowed, fix)


def _prediction_problem(statement: Statement, coverage: Coverage) -> Problem:
    """The pattern names something of the layer of multi-token prediction, under another number."""
    last, where = coverage.num_layers - 1, format_layers(statement.layers)
    message = (
        f"{statement.pattern_path}: '{statement.pattern}' matches no operator in {where}, only in the layer of "
        f"multi-token prediction, which has the number of the last layer, {last}"
    )
    return Problem(statement.pattern_location, ID, LEVEL, message, f"layer {last}", f"name layer {last}")


def _default_problem(statement: Statement, coverage: Coverage) -> Problem:
    source = coverage.trees.source
    if statement.option == "op_swap":
        message = f"{statement.path}: the default strategy finds no flash attention in {source}"
        fix = "set model_config.use_flash_attention: True, or name operators in op_swap"
        return Problem(statement.pattern_location, ID, LEVEL, message, fix=fix)
    message = f"{statement.path}: none of the default operators is in {source}, so this has no effect"
    return Problem(statement.pattern_location, ID, Level.WARNING, message, fix="name the operators")


def near_paths(pattern: str, coverage: Coverage, limit: int = 3) -> list[str]:
    """Paths of the model that a pattern may be meant for: those that end with it first, then by edit distance."""
    parts = split_pattern(pattern)
    ends = [path for path in coverage.paths if tuple(split_pattern(path))[-len(parts) :] == parts]
    others = [path for path in coverage.paths if path not in ends]
    return [*ends[:limit], *closest_names(pattern, others, limit)][:limit]
