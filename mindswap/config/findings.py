"""Rules: functions that check a configuration and yield findings, and the decorator that registers them."""

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
    """Finding of a rule, with fields as in `Problem`; without `level` it has the level of the rule."""

    location: Location
    message: str
    allowed: str = ""
    fix: str = ""
    level: Level | None = None


@dataclass(frozen=True)
class Rule(Generic[C]):
    """A check of a configuration."""

    id: str  # name in messages
    level: Level  # default severity of its findings
    text: str  # documentation, with a PASS and a FAIL example
    find: Find[C]  # yields findings for a context; also problems of other rules that it runs

    def check(self, context: C) -> Iterator[Problem]:
        """Yield the problems of a configuration."""
        for finding in self.find(context):
            if isinstance(finding, Problem):
                yield finding
            else:
                level = finding.level or self.level
                yield Problem(finding.location, self.id, level, finding.message, finding.allowed, finding.fix)


def rule(level: Level, prefix: str = "") -> Callable[[Find[C]], Rule[C]]:
    """Return a decorator that makes a rule of a function: its name with dashes is the id, its docstring the text."""

    def make(find: Find[C]) -> Rule[C]:
        return Rule(prefix + find.__name__.replace("_", "-"), level, inspect.getdoc(find) or "", find)

    return make


# Limit of problems of one rule in one line, which may list thousands of layers; more are only counted.
MAX_PER_LINE = 10


def count_equal(problems: Iterable[Problem]) -> Iterator[Problem]:
    """Yield the problems, at most `MAX_PER_LINE` per rule and line; the last of these has the number of the others."""
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
    """Return all rules in the modules of a package by id, in alphabetical order."""
    folder = importlib.import_module(package).__path__
    modules = (importlib.import_module(f"{package}.{module.name}") for module in pkgutil.iter_modules(folder))
    rules = (value for module in modules for value in vars(module).values() if isinstance(value, Rule))
    return dict(sorted((value.id, value) for value in rules))


# Warnings that a configuration suppresses: `mindswap: {ignore: [overlap]}`. Errors cannot be suppressed.

RULE = "bad-ignore"
# Warnings about the text of a file and the folder of a model, which no registered rule yields.
OTHER_RULES = ("pretrained-model-dir", "yaml-merge")
PATH = "mindswap.ignore"
ALLOWED = "a list of rules, the words in brackets after warnings: [overlap, recompute-wins]"


def find_ignore_problems(document: Document, rule_ids: Collection[str]) -> Iterator[Problem]:
    """Yield problems of `mindswap.ignore`: it is not a list, or names an unknown rule."""
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
    """Split problems into shown problems and suppressed warnings, both in file order.

    Args:
        document: the configuration, which may have `mindswap.ignore`.
        problems: all problems.
        ignore: rules whose problems are dropped.
        silence: rules whose warnings are suppressed, in addition to `mindswap.ignore`.
    """
    node = document.get("mindswap", "ignore")
    named = {item.value for item in (node.items if node is not None else None) or ()}
    reported = [problem for problem in sort_problems(count_equal(problems)) if problem.rule not in ignore]

    def is_unwanted(problem: Problem) -> bool:
        return problem.level is Level.WARNING and (problem.rule in named or problem.rule in silence)

    return tuple(itertools.filterfalse(is_unwanted, reported)), tuple(filter(is_unwanted, reported))
