"""Signals that end a program, as an exception."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn


class StoppedBySignal(BaseException):
    """A signal of this number asked this process to end; no `except Exception` on the way may hold it up."""

    def __init__(self, number: int):
        self.number = number


@contextlib.contextmanager
def signals_raise(*, only_first: bool = False) -> Iterator[None]:
    """Turn signals into an exception, except those that the caller ignores (nohup, `&` in a script).

    With `only_first` nothing interrupts what the first signal brings about.
    """

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        if only_first:
            for other in before:
                signal.signal(other, signal.SIG_IGN)
        raise StoppedBySignal(number)

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
