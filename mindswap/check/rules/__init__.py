"""The checks: one file each, found by listing this folder.

A rule is a module with

- `ID`: its name in messages, the file name with dashes;
- `LEVEL`: how bad its problems are (a rule may give single problems the milder level);
- a docstring that says what it finds, with a PASS and a FAIL example: its page of documentation;
- `check(context) -> Iterator[Problem]`: yields problems, prints and raises nothing.

Write one by copying a short one, such as `context_mode.py`; its test goes to `tests/check/rules/`.
"""

from collections.abc import Collection, Iterator
from types import ModuleType

from mindswap.check.context import Context
from mindswap.document.problem import Problem
from mindswap.document.rule_modules import rule_modules

__all__ = ["Context", "find_rules", "run_rules"]


def find_rules() -> dict[str, ModuleType]:
    """Every rule by its id, in alphabetical order."""
    return rule_modules(__name__)


def run_rules(context: Context, only: Collection[str] | None = None) -> Iterator[Problem]:
    """The problems that the rules find.

    Args:
        context: what the rules look at.
        only: ids of the rules to run; None runs all of them.
    """
    for rule_id, rule in find_rules().items():
        if only is None or rule_id in only:
            yield from rule.check(context)
