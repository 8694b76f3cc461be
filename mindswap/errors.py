"""Errors that mindswap raises on purpose: one base class, one class per stage.

The command line turns each of them into a short message and exit code 1; any other
exception is a bug of ours (exit code 3, with a log file).
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


class MindswapError(Exception):
    """Something the user can mend; the text says what is wrong, what is allowed and how to fix it."""


def install_command(extra: str) -> str:
    """Command that installs what an extra of the package needs; the name on PyPI is not taken by this package."""
    return f"pip install '.[{extra}]' in a checkout of mindswap"


class StoppedBySignal(SystemExit):
    """A signal of this number asked this process to end; no `except Exception` on the way may hold it up."""

    def __init__(self, number: int):
        super().__init__(128 + number)
        self.exit_code = 128 + number


def require(name: str, value: object, *kinds: type) -> None:
    """Refuse what a Python user gives for an argument if it is of none of these kinds; a bool is not a number.

    Raises:
        MindswapError: it is not.
    """
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        shown = value if value is None or isinstance(value, str | int | float) else type(value)
        raise MindswapError(f"{name}: {shown!r}\n    allowed: {' or '.join(kind.__name__ for kind in kinds)}")


@contextmanager
def system_errors_as(kind: type[MindswapError], what: str) -> Iterator[None]:
    """While this lasts, an error of the system is one of this kind: `WHAT: No space left on device`."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror or error}") from error


class PolicyError(MindswapError):
    """The configuration is wrong. Carries every problem found, in file order.

    Args:
        problems: the problems, `mindswap.config.problem.Problem`, which this file stands before and cannot name.
    """

    def __init__(self, problems: Iterable[Any]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{p.location}: {p.level.value}: {p.message} [{p.rule}]" for p in self.problems))


class ApplyError(MindswapError):
    """A policy could not be put on a network."""


class GraphError(MindswapError):
    """A network could not be compiled, or its graph could not be read."""


# How the error of a network begins that MindSpore's compiler refuses; also across processes, as text.
NOT_COMPILED = "MindSpore could not compile the network"


class SimulationError(MindswapError):
    """A step cannot be simulated: its operators, copies or memory contradict each other."""


class CostError(MindswapError):
    """A device description, a calibration or a profile could not be read."""


class DataError(MindswapError):
    """Training text or a data file could not be read or written."""


class LaunchError(MindswapError):
    """A training run could not be started."""


class LogError(MindswapError):
    """The logs of a training run could not be read."""


class PlanError(MindswapError):
    """A plan cannot be made, or not be written."""
