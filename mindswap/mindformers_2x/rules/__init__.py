"""The checks of 2.x files: one file each, as in `mindswap/check/rules/`. `ID` is `pynative-` and the file name.

Levels: an error is what upstream refuses, and what is written and has no effect at all; what acts in another way than
it reads is a warning.
"""

from collections.abc import Iterator
from types import ModuleType

from mindswap.document.problem import Problem
from mindswap.document.rule_modules import rule_modules
from mindswap.mindformers_2x.rule_context import Context

__all__ = ["Context", "find_rules", "run_rules"]


def find_rules() -> dict[str, ModuleType]:
    """Every rule by its id, in alphabetical order."""
    return rule_modules(__name__)


def run_rules(context: Context) -> Iterator[Problem]:
    """The problems that the rules find."""
    for rule in find_rules().values():
        yield from rule.check(context)
