"""Rules: functions that look at a configuration and yield what they find, with the decorator that makes them."""

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from mindswap.config.problem import Level, Location, Problem

C = TypeVar("C")
Find = Callable[[C], "Iterator[Finding | Problem]"]


@dataclass(frozen=True)
class Finding:
    """What a rule found; as in `Problem`. The level is that of the rule, unless it says another."""

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
        for found in self.find(context):
            if isinstance(found, Problem):
                yield found
            else:
                level = found.level or self.level
                yield Problem(found.location, self.id, level, found.message, found.allowed, found.fix)


def rule(level: Level, prefix: str = "") -> Callable[[Find[C]], Rule[C]]:
    """Makes a rule of a function: its name with dashes is the id, its docstring the documentation."""

    def make(find: Find[C]) -> Rule[C]:
        return Rule(prefix + find.__name__.replace("_", "-"), level, inspect.getdoc(find) or "", find)

    return make


@functools.cache
def load_rules(package: str) -> dict[str, Rule[Any]]:
    """Every rule in the modules of a package by its id, in alphabetical order."""
    folder = importlib.import_module(package).__path__
    modules = (importlib.import_module(f"{package}.{found.name}") for found in pkgutil.iter_modules(folder))
    rules = (value for module in modules for value in vars(module).values() if isinstance(value, Rule))
    return {found.id: found for found in sorted(rules, key=lambda found: found.id)}
