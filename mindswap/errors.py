"""Exceptions for errors that users can fix: one base class and one class per stage.

The command line turns each of them into a short message and exit code 1. Any other exception is a bug of mindswap
(exit code 3, with a log file).
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


class MindswapError(Exception):
    """Error that the user can fix; the message has what is wrong, what is allowed and how to fix it."""


def install_command(extra: str) -> str:
    """Return the command that installs an extra; it needs a checkout, because the package is not on PyPI."""
    return f"pip install '.[{extra}]' in a checkout of mindswap"


class StoppedBySignal(SystemExit):
    """Exit caused by signal `number`; not an `Exception`, so that no `except Exception` catches it."""

    def __init__(self, number: int):
        super().__init__(128 + number)
        self.exit_code = 128 + number


def require(name: str, value: object, *kinds: type) -> None:
    """Check the type of an argument of the Python API; a bool does not count as a number.

    Args:
        name: name of the argument.
        value: value of the argument.
        kinds: allowed types.

    Raises:
        MindswapError: if the value has none of the allowed types.
    """
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        shown = value if value is None or isinstance(value, str | int | float) else type(value)
        raise MindswapError(f"{name}: {shown!r}\n    allowed: {' or '.join(kind.__name__ for kind in kinds)}")


@contextmanager
def system_errors_as(kind: type[MindswapError], action: str) -> Iterator[None]:
    """Convert OSErrors inside the context to an error of class `kind`: `ACTION: No space left on device`."""
    try:
        yield
    except OSError as error:
        raise kind(f"{action}: {error.strerror or error}") from error


class PolicyError(MindswapError):
    """The configuration is invalid; `problems` has all problems in file order.

    Args:
        problems: each a `mindswap.config.problem.Problem`, which this module cannot import.
    """

    def __init__(self, problems: Iterable[Any]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{p.location}: {p.level.value}: {p.message} [{p.rule}]" for p in self.problems))


class ApplyError(MindswapError):
    """A policy could not be applied to a network."""


class GraphError(MindswapError):
    """A network could not be compiled, or its graph could not be read."""


# Start of the message if MindSpore's compiler rejects a network; other processes recognize it by this text.
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
    """A plan cannot be computed or written."""
