"""Ends the workers when the process that watches over them is killed outright."""

import contextlib
import os
import signal
from collections.abc import Iterator

from mindswap.training.launch.processes import marked_processes, stop_processes


@contextlib.contextmanager
def guardian(name: str, value: str) -> Iterator[None]:
    """While this lasts, a small process waits: if this one ends without leaving, it ends all that have this variable.

    To be entered before threads are started, and before orphans are adopted: it must not be a child of this
    process, which stops its children.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            _guard(read_end, write_end, name, value)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(read_end)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.write(write_end, b".")  # a clean end: nothing to do
        os.close(write_end)


def _guard(read_end: int, write_end: int, name: str, value: str) -> None:
    try:
        os.close(write_end)
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        if os.read(read_end, 1) == b"":
            stop_processes(lambda: marked_processes(name, value))
    finally:
        os._exit(0)
