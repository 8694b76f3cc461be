"""One line of a worker's log for each training step: its loss with every bit, and how long the step took."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

_LINE = re.compile(r"mindswap: step (\d{1,9}): loss ([-+.0-9a-z]{1,32}), (\d{1,18}) ns")


@dataclass(frozen=True)
class ReportedStep:
    """What a worker says of a step."""

    number: int  # from 1
    loss: float  # on this worker; the very number that it computed
    duration_ns: int  # from the start of the step until the loss was there


def format_step(step: ReportedStep) -> str:
    """The line, as the worker logs it; Python writes a float with as many digits as tell it from all others."""
    return f"mindswap: step {step.number}: loss {step.loss!r}, {step.duration_ns} ns"


def parse_steps(lines: Iterable[str]) -> tuple[ReportedStep, ...]:
    """The steps of a log, in order; a step that is logged twice counts once."""
    found: dict[int, ReportedStep] = {}
    for line in lines:
        if "mindswap: step " in line and (match := _LINE.search(line)):
            number = int(match[1])
            found.setdefault(number, ReportedStep(number, float(match[2]), int(match[3])))
    return tuple(found[number] for number in sorted(found))
