"""`mindswap: {ignore: ...}` is no list of rules, or names a rule that does not exist.

Warnings of the named rules are counted and not shown; errors stay. `mindswap check --ignore RULE` does the same for
one call.

PASS:
    mindswap:
      ignore: [overlap, recompute-wins]

FAIL:
    mindswap:
      ignore: [overlapp]
"""

from collections.abc import Iterator

from mindswap.check.context import Context
from mindswap.config.ignored import RULE, misused_ignore
from mindswap.document.problem import Level, Problem

ID = RULE
LEVEL = Level.ERROR


def check(context: Context) -> Iterator[Problem]:
    """A value that is no list, and every unknown name."""
    from mindswap.check.rules import find_rules

    yield from misused_ignore(context.document, find_rules())
