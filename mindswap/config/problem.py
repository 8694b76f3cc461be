"""A problem found in a configuration: plain data that only `report/` turns into text."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum


class Level(Enum):
    """Severity of a problem: an ERROR stops a run, a WARNING does not; a NOTE occurs in log findings only."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, order=True)
class Location:
    """Location of a value in a file; line and column count from 1.

    A value from the command line or from Python has line 0.
    """

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(frozen=True)
class Problem:
    """A problem in a configuration, with a suggested fix."""

    location: Location  # location of the wrong value
    rule: str  # id of the rule: the name of its function in `rules/`, with dashes
    level: Level  # error or warning
    message: str  # description; starts with the key path, e.g. `swap_config.op_swap[1].op_name: ...`
    allowed: str = ""  # accepted values; may be empty
    fix: str = ""  # replacement; may be empty
    # key path or option at the start of the message, if a command needs it separately
    subject: str = field(default="", compare=False)


def find_errors(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return the problems with level ERROR."""
    return tuple(problem for problem in problems if problem.level is Level.ERROR)


def sort_problems(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return the problems in file order, without duplicates."""
    return tuple(sorted(dict.fromkeys(problems), key=lambda p: (p.location, p.rule, p.message)))
