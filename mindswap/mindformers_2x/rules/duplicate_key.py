"""A key stands twice; YAML readers silently take the last one.

PASS:
    swap: {enable: True}

FAIL:
    swap: {enable: True, enable: False}
"""

from collections.abc import Iterator

from mindswap.document.problem import Level, Problem
from mindswap.mindformers_2x.rule_context import Context
from mindswap.mindformers_2x.settings import SECTION_KEYS

ID = "pynative-duplicate-key"
LEVEL = Level.ERROR


def check(context: Context) -> Iterator[Problem]:
    """Every key that stands a second time: an error in what mindswap reads, else a warning."""
    for duplicate in context.document.duplicates:
        section = duplicate.path.partition(".")[0].partition("[")[0]
        level = LEVEL if section in (*SECTION_KEYS, "model", "parallelism") else Level.WARNING
        message = f"{duplicate.path}: appears twice, first at {duplicate.first}; this one is used"
        yield Problem(duplicate.location, ID, level, message, "each key once", "delete one of them")
