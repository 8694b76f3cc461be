"""A problem found in a configuration: plain data that only `report/` turns into text."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum


class Level(Enum):
    """Severity of a problem: an ERROR stops a run, a WARNING does not; a NOTE is of logs only."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, order=True)
class Location:
    """Place of a value in a file; line and column count from 1.

    A value that has no text of its own (it came from the command line or from Python) has line 0.
    """

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, and what to do about it."""

    location: Location  # where the wrong value stands
    rule: str  # id of the check, the name of its function in `check/rules/` with dashes
    level: Level  # error or warning
    message: str  # what is wrong; begins with the key path, e.g. `swap_config.op_swap[1].op_name: ...`
    allowed: str = ""  # what would be accepted; may be empty
    fix: str = ""  # what to write instead; may be empty
    # key path or option that it is about, where a command asks for it; the message begins with it
    subject: str = field(default="", compare=False)


def find_errors(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Those that stop a run."""
    return tuple(problem for problem in problems if problem.level is Level.ERROR)


def sort_problems(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """The problems in file order, duplicates dropped."""
    return tuple(sorted(dict.fromkeys(problems), key=lambda p: (p.location, p.rule, p.message)))
