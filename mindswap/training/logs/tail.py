"""The end of a log: how far the training came, and why it stopped."""

import re
from pathlib import Path

TAIL_BYTES = 1 << 18
MAX_LINE = 300
# The last line of a Python traceback, or a MindSpore log line; both only where the line begins.
_EXCEPTION = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)\b(?::|$)")
_LOGGED = re.compile(
    r"\[(?:ERROR|CRITICAL)\]|mindswap: (?:error|a bug):|.*: (?:error|fatal):|.* - (?:ERROR|CRITICAL) - ", re.IGNORECASE
)
# `{ Epoch:[  1/  1], step:[   37/   40], loss:[...` of MindFormers' MFLossMonitor.
_STEP = re.compile(r"\bstep:\[ *(\d+) */ *(\d+)\]")


def read_tail(log: Path) -> list[str]:
    """Last lines of a log, the first of them perhaps only in part.

    Raises:
        OSError: if the log cannot be read.
    """
    with log.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - TAIL_BYTES))
        return file.read(TAIL_BYTES).decode(errors="replace").splitlines()


def find_last_error(lines: list[str]) -> str:
    """The last exception, else the last logged error, at most 300 characters of it; "" for none."""
    for pattern in (_EXCEPTION, _LOGGED):
        for line in reversed(lines):
            if pattern.match(line):
                return line if len(line) <= MAX_LINE else line[:MAX_LINE] + " ..."
    return ""


def find_last_step(lines: list[str]) -> str:
    """The last training step, as `37/40`; "" for none."""
    for line in reversed(lines):
        if "step:[" in line and (match := _STEP.search(line)):
            return f"{match[1]}/{match[2]}"
    return ""
