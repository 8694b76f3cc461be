"""Rules: functions that look at a configuration and yield what they find, with the decorator that makes them."""

import difflib
import functools
import importlib
import inspect
import itertools
import pkgutil
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from mindswap.config.nodes import Document, show
from mindswap.config.problem import Level, Location, Problem, sort_problems

C = TypeVar("C")
Find = Callable[[C], "Iterator[Finding | Problem]"]


@dataclass(frozen=True)
class Finding:
    """Finding of a rule; as in `Problem`. The level is that of the rule, unless it says another."""

    location: Location
    message: str
    allowed: str = ""
    fix: str = ""
    level: Level | None = None


@dataclass(frozen=True)
class Rule(Generic[C]):
    """A check of a configuration."""

    id: str  # its name in messages
    level: Level  # how bad its problems are (single ones may be milder)
    text: str  # its page of documentation: what it finds, with a PASS and a FAIL example
    find: Find[C]  # what it finds in a context; problems of another rule that it ran stay as they are

    def check(self, context: C) -> Iterator[Problem]:
        """The problems that it finds."""
        for finding in self.find(context):
            if isinstance(finding, Problem):
                yield finding
            else:
                level = finding.level or self.level
                yield Problem(finding.location, self.id, level, finding.message, finding.allowed, finding.fix)


def rule(level: Level, prefix: str = "") -> Callable[[Find[C]], Rule[C]]:
    """Makes a rule of a function: its name with dashes is the id, its docstring the documentation."""

    def make(find: Find[C]) -> Rule[C]:
        return Rule(prefix + find.__name__.replace("_", "-"), level, inspect.getdoc(find) or "", find)

    return make


# Of one rule in one line, where a list of thousands of layers may be: the others are only counted.
MAX_PER_LINE = 10


def count_equal(problems: Iterable[Problem]) -> Iterator[Problem]:
    """The problems; of more than `MAX_PER_LINE` of one rule in one line the first ones, and how many there are."""
    num_of: dict[tuple[str, int, str, Level], int] = {}
    last_of: dict[tuple[str, int, str, Level], Problem] = {}
    for problem in problems:
        key = (problem.location.file, problem.location.line, problem.rule, problem.level)
        num_of[key] = num_of.get(key, 0) + 1
        if num_of[key] < MAX_PER_LINE or not problem.location.line:
            yield problem
        elif num_of[key] == MAX_PER_LINE:
            last_of[key] = problem
    for key, problem in last_of.items():
        more = num_of[key] - MAX_PER_LINE
        note = f" ({more} more in this line)" if more else ""
        yield replace(problem, message=problem.message + note)


@functools.cache
def load_rules(package: str) -> dict[str, Rule[Any]]:
    """Every rule in the modules of a package by its id, in alphabetical order."""
    folder = importlib.import_module(package).__path__
    modules = (importlib.import_module(f"{package}.{module.name}") for module in pkgutil.iter_modules(folder))
    rules = (value for module in modules for value in vars(module).values() if isinstance(value, Rule))
    return dict(sorted((value.id, value) for value in rules))


# Warnings that a configuration does not want to hear: `mindswap: {ignore: [overlap]}`. Errors stay.

RULE = "bad-ignore"
# Rules of warnings about the text of a file and the folder of a model, which are in no list of rules.
OTHER_RULES = ("pretrained-model-dir", "yaml-merge")
PATH = "mindswap.ignore"
ALLOWED = "a list of rules, the words in brackets behind warnings: [overlap, recompute-wins]"


def find_ignore_problems(document: Document, rule_ids: Collection[str]) -> Iterator[Problem]:
    """Problems of `mindswap.ignore`: no list, or names that no rule (of those known) has."""
    node = document.get("mindswap", "ignore")
    if node is None or node.is_null:
        return
    if node.items is None:
        fix = f"ignore: [{node.value}]" if isinstance(node.value, str) else ""
        yield Problem(node.location, RULE, Level.ERROR, f"{PATH}: {show(node)} is {node.kind}", ALLOWED, fix)
    for item in node.items or ():
        if item.value not in (*rule_ids, *OTHER_RULES):
            message = f"{PATH}: there is no rule {show(item)}"
            near = difflib.get_close_matches(str(item.value), (*rule_ids, *OTHER_RULES), 1)
            fix = f"write {near[0]}" if near else "delete it"
            yield Problem(item.location, RULE, Level.WARNING, message, ", ".join(sorted(rule_ids)), fix)


def split_ignored(
    document: Document, problems: Iterable[Problem], ignore: Collection[str], silence: Collection[str]
) -> tuple[tuple[Problem, ...], tuple[Problem, ...]]:
    """The problems that are to be shown, and the warnings that nobody wants to hear, both in file order.

    Args:
        document: may name rules whose warnings it ignores.
        problems: all that was found.
        ignore: rules whose problems are in neither part.
        silence: rules whose warnings are ignored besides.
    """
    node = document.get("mindswap", "ignore")
    named = {item.value for item in (node.items if node is not None else None) or ()}
    reported = [problem for problem in sort_problems(count_equal(problems)) if problem.rule not in ignore]

    def is_unwanted(problem: Problem) -> bool:
        return problem.level is Level.WARNING and (problem.rule in named or problem.rule in silence)

    return tuple(itertools.filterfalse(is_unwanted, reported)), tuple(filter(is_unwanted, reported))
