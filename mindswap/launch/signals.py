"""Signals that end a program, as an exception."""

import contextlib
import signal
from collections.abc import Iterator

__all__ = ["Stopped", "signals_raise"]


class Stopped(Exception):
    """A signal asked this process to end.

    Args:
        number: of the signal.
    """

    def __init__(self, number: int):
        self.number = number


@contextlib.contextmanager
def signals_raise() -> Iterator[None]:
    """Turn signals into an exception, except those that the caller ignores (nohup, `&` in a script)."""

    def stop(number, frame):
        raise Stopped(number)

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
