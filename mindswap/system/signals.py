"""Convert terminating signals to an exception that reliably arrives but does not interrupt cleanup."""

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from mindswap.errors import StoppedBySignal

# Variable of the environment that names the lifeline, on which `system/children.py` has more.
LIFELINE = "MINDSWAP_LIFELINE"
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Finalizers, hooks of fork, bare `except` and C++ drop an exception: it is raised repeatedly until it arrives.
REPEAT_S = 0.5


class Interruption:
    """The first ending signal within `signals_raise`."""

    def __init__(self) -> None:
        self.number = 0  # of the signal; 0 as long as none has arrived
        self._is_over = False
        self._lock = threading.Lock()

    def receive(self, number: int, _: FrameType | None) -> None:
        """Handle a signal. Raises StoppedBySignal unless signals are held, or cleanup of an earlier one is going on."""
        if self._is_over or _is_unwinding():
            return
        if not self.number:
            self.number = number
            with suppress(RuntimeError):  # no more threads
                _thread.start_new_thread(self._repeat, ())
        self.raise_if_received()

    def raise_if_received(self) -> None:
        """Raise StoppedBySignal if a signal has arrived that is neither held nor being handled."""
        if self.number and not self._is_over and not _main.num_holds and not _is_unwinding():
            raise StoppedBySignal(self.number)

    def close(self) -> None:
        """Ignore all further signals: the first one was raised, or the context has ended."""
        with self._lock:
            self._is_over = True

    def _repeat(self) -> None:
        while not self._is_over:
            time.sleep(REPEAT_S)
            with self._lock:
                if not self._is_over:
                    os.kill(os.getpid(), self.number)


class _MainThread:
    """Handling of signals in the main thread, the only one in which Python handles them."""

    num_holds = 0  # how many `held_signals` are open
    interruption: Interruption | None = None  # of the innermost `signals_raise`


_main = _MainThread()


def _is_unwinding() -> bool:
    """Return whether cleanup after StoppedBySignal is going on."""
    error = sys.exc_info()[1]
    while error is not None and not isinstance(error, StoppedBySignal):
        error = error.__context__
    return error is not None


@contextmanager
def signals_raise() -> Iterator[Interruption]:
    """Turn SIGINT, SIGTERM and SIGHUP into StoppedBySignal, except those that the caller ignores (nohup, `&`).

    Cleanup (`finally`, `except`, `__exit__`) after the first signal is not interrupted by further ones. An error that
    results from the signal, as of a library that wraps the exception, is StoppedBySignal, too. Outside of the main
    thread, which alone receives signals, this has no effect.
    """
    interruption, outer = Interruption(), _main.interruption
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    handlers = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    handlers = {number: handler for number, handler in handlers.items() if handler != signal.SIG_IGN}
    try:
        _main.interruption = interruption
        for number in handlers:
            signal.signal(number, interruption.receive)
        yield interruption
    except Exception as error:
        if interruption.number:
            raise StoppedBySignal(interruption.number) from error
        raise
    finally:
        _main.num_holds += 1
        interruption.close()
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: a handler of C
        _main.interruption = outer
        _main.num_holds -= 1


@contextmanager
def held_signals() -> Iterator[None]:
    """Defer signals within `signals_raise`, so that starting, recording and stopping of processes is atomic."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _main.num_holds += 1
    try:
        yield
    finally:
        _main.num_holds -= 1
        if _main.interruption is not None:
            _main.interruption.raise_if_received()
