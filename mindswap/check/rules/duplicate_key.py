"""A key stands twice in one mapping; YAML readers silently take the last one.

An error where it concerns swap; a warning elsewhere and while swap is off, since MindFormers runs.

PASS:
    swap_config:
      swap: True

FAIL:
    swap_config:
      swap: True
      swap: False
"""

from collections.abc import Iterator

from mindswap.check.context import Context
from mindswap.document.problem import Level, Problem

ID = "duplicate-key"
LEVEL = Level.ERROR

# The sections that mindswap reads.
SECTIONS = ("swap_config", "recompute_config", "context", "model", "parallel_config")


def check(context: Context) -> Iterator[Problem]:
    """Every key that stands a second time, with the place of the first."""
    for duplicate in context.document.duplicates:
        section = duplicate.path.partition(".")[0].partition("[")[0]
        is_error = context.settings.is_swap_enabled and section in SECTIONS
        message = f"{duplicate.path}: appears twice, first at {duplicate.first}; this one is used"
        level = LEVEL if is_error else Level.WARNING
        yield Problem(duplicate.location, ID, level, message, "each key once", "delete one of them")
