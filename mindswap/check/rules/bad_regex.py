"""An operator name is no regular expression, or one that takes too long to match.

The name is split at `\\.`, and each part is a regular expression of its own.

PASS:
    op_name: '.*\\.flash_attention'

FAIL (nothing stands before the star):
    op_name: '*\\.flash_attention'
"""

from collections.abc import Iterator

from mindswap.check.context import Context
from mindswap.document.problem import Level, Problem
from mindswap.policy.cell_tree import CellNode
from mindswap.policy.match import MAX_PATTERN_CHARS, SEPARATOR, PatternError, match_pattern

# As pages of MindFormers print names, and as its log does.
_DOUBLED = "\\\\."

ID = "bad-regex"
LEVEL = Level.ERROR

# Where the model is not known, a pattern is at least tried on names like those of real models.
_TYPICAL_NAMES = ("attention", "feed_forward", "input_layernorm", "self_attention", "flash_attention", "w1", "mul")
_TYPICAL_LAYER = CellNode("", "Layer", children=tuple(CellNode(name, "Cell") for name in _TYPICAL_NAMES))


def check(context: Context) -> Iterator[Problem]:
    """Every pattern that cannot be matched, in the words of the regex compiler."""
    errors: dict[str, PatternError | None] = {}
    for statement in context.settings.statements:
        if statement.pattern is None or statement.is_default:
            continue
        if statement.pattern not in errors:
            errors[statement.pattern] = _error(context, statement.pattern)
        error = errors[statement.pattern]
        if error is not None:
            if _DOUBLED in statement.pattern:
                one = statement.pattern.replace(_DOUBLED, SEPARATOR)
                message = (
                    f"{statement.pattern_path}: '{statement.pattern}': in single quotes YAML keeps both backslashes"
                )
                yield Problem(statement.pattern_location, ID, LEVEL, message, "one backslash", f"'{one}'")
                continue
            message = f"{statement.pattern_path}: {error}"
            allowed = rf"cell names joined by '\.', each part a regex of at most {MAX_PATTERN_CHARS} characters"
            fix = "write '.*' for any name" if statement.pattern.startswith("*") else ""
            yield Problem(statement.pattern_location, ID, LEVEL, message, allowed, fix)


def _error(context: Context, pattern: str) -> PatternError | None:
    if context.coverage is not None:
        return context.coverage.error(pattern)
    try:
        match_pattern(pattern, _TYPICAL_LAYER)
    except PatternError as error:
        return error
    return None
