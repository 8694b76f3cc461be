"""Workers that end with the process that watches over them, by the kernel's own hand.

A guardian can be killed too, and a thread of the worker may wait for a compiler that holds the interpreter. So the
watching process holds a pipe: when its end closes, however that process ended, the kernel sends every worker SIGKILL
(F_SETSIG of fcntl(2)). It does not matter who started the worker, and who of those in between is still alive.
"""

import contextlib
import ctypes
import fcntl
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import NoReturn

from mindswap.errors import LaunchError

# Names the pipe in the environment of the workers.
VARIABLE = "MINDSWAP_LIFELINE"
_PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def lifeline() -> Iterator[str]:
    """While this lasts, processes that hold it live; to be entered after every fork that outlives this process.

    Gives its name, for `VARIABLE` in the environment of the workers.
    """
    read_end, write_end = os.pipe()
    try:
        yield f"/proc/{os.getpid()}/fd/{read_end}"
    finally:
        os.close(write_end)
        os.close(read_end)


def hold_lifeline(environment: Mapping[str, str]) -> None:
    """From now on this process ends at once when the one that holds the pipe does; nothing if none is named.

    Raises:
        LaunchError: it has ended already.
    """
    name = environment.get(VARIABLE)
    if not name:
        return
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:
        return  # of another user: the guardian alone watches
    except OSError as error:
        raise LaunchError(f"the run that this worker belongs to has ended ({VARIABLE}={name})") from error
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)
    with contextlib.suppress(BlockingIOError):  # nothing to read: the other end is held
        os.read(descriptor, 1)
        raise LaunchError(f"the run that this worker belongs to has ended ({VARIABLE}={name})")


def tie_to_parent() -> Callable[[], None]:
    """What a child calls before it starts its program, msrun for example: it ends with the thread that started it."""
    library, parent = ctypes.CDLL(None), os.getpid()

    def tie() -> None:
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return tie


# Signals that end a program, as an exception.


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
