"""Format and parse the log line of a training step, with its exact loss and its time."""

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

_LINE = re.compile(r"mindswap: step (\d{1,9}): loss ([-+.0-9a-z]{1,32}), (\d{1,18}) ns")


@dataclass(frozen=True)
class ReportedStep:
    """Loss and time of a step on one worker."""

    number: int  # from 1
    loss: float  # exact loss on this worker
    duration_ns: int  # from the start of the step until the loss was available


def format_step(step: ReportedStep) -> str:
    """Format the log line; the `repr` of a float is exact."""
    return f"mindswap: step {step.number}: loss {step.loss!r}, {step.duration_ns} ns"


def parse_steps(lines: Iterable[str]) -> tuple[ReportedStep, ...]:
    """Parse the steps of a log, in order and without duplicates."""
    steps: dict[int, ReportedStep] = {}
    for line in lines:
        if "mindswap: step " in line and (match := _LINE.search(line)):
            number = int(match[1])
            steps.setdefault(number, ReportedStep(number, float(match[2]), int(match[3])))
    return tuple(steps[number] for number in sorted(steps))


# Progress and step times in a growing log.

# `{ Epoch:[  1/  2], step:[   37/   40], loss:[...], per_step_time: 309ms, ...` of MindFormers' MFLossMonitor.
_STEP = re.compile(
    rb"Epoch:\[ *(\d{1,9}) */ *(\d{1,9})\], step:\[ *(\d{1,12}) */ *(\d{1,12})\]"
    rb"(?:.{0,300}?per_step_time: (\d{1,12})ms)?"
)
MAX_CARRY_BYTES = 1 << 12
MAX_TIMES = 256


class StepScanner:
    """Incremental scanner of a log for training steps, which is fed in blocks.

    Attributes:
        step: last step, from 1, over all epochs; 0 for none.
        num_steps: steps of the complete training; 0 while unknown.
        times_ns: times of the latest steps, without the first step.
    """

    def __init__(self) -> None:
        self._carry = b""
        self.step = self.num_steps = self.num_seen = 0
        self.times_ns: deque[int] = deque(maxlen=MAX_TIMES)

    def feed(self, block: bytes) -> None:
        """Scan the next block of the log, which may end within a line."""
        block = self._carry + block
        end = block.rfind(b"\n") + 1
        self._carry = block[end:][-MAX_CARRY_BYTES:]
        if block.find(b"step:[", 0, end) < 0:
            return
        for match in _STEP.finditer(block, 0, end):
            epoch, num_epochs, step, steps_per_epoch = (int(number) for number in match.groups()[:4])
            self.step, self.num_steps = (epoch - 1) * steps_per_epoch + step, num_epochs * steps_per_epoch
            self.num_seen += 1
            # The first step compiles.
            if match[5] and self.num_seen > 1:
                self.times_ns.append(int(match[5]) * 1_000_000)
