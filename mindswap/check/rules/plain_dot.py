"""A `.` joins two names where `\\.` is meant: it matches one character, and no level begins there.

An error; a warning where the pattern matches something as it stands.

PASS:
    op_name: 'attention\\.flash_attention'

FAIL:
    op_name: 'attention.flash_attention'
"""

import re
from collections.abc import Iterator

from mindswap.check.context import Context
from mindswap.document.problem import Level, Problem
from mindswap.policy.settings import Statement

ID = "plain-dot"
LEVEL = Level.ERROR

# Escapes and character classes are skipped as a whole; a dot counts between two names only, so not
# before a quantifier (`.*`, `.+`, `.?`, `.{2}`) and not at the end of a level (`w.\.matmul`).
_TOKENS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(?<=[\w)\]*+?}])(?P<dot>\.)(?=[\w(\[]|\.[*+])", re.DOTALL)


def check(context: Context) -> Iterator[Problem]:
    r"""Every pattern with a plain dot between names, with the pattern that has `\.` there."""
    for statement in context.settings.statements:
        meant = pattern_with_levels(statement.pattern or "")
        if meant is None:
            continue
        is_matching = context.coverage is not None and context.matches_anything(statement)
        message = f"{statement.pattern_path}: '{statement.pattern}' has a plain '.', which stands for any one character"
        if is_matching:
            message += "; it matches something as it stands"
        allowed = r"'\.' between the names of two levels; '[_]' or '.{1}' for one character"
        fix = f"{_key(statement)}'{meant}'"
        level = Level.WARNING if is_matching else LEVEL
        yield Problem(statement.pattern_location, ID, level, message, allowed, fix)


def pattern_with_levels(pattern: str) -> str | None:
    r"""The pattern with `\.` for each plain dot between names; None if it has none."""
    meant = _TOKENS.sub(lambda token: r"\." if token["dot"] else token[0], pattern)
    return None if meant == pattern else meant


def _key(statement: Statement) -> str:
    return "op_name: " if statement.pattern_path.endswith(".op_name") else ""
