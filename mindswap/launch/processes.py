"""All processes that a command starts, also those that its own children leave behind."""

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

__all__ = ["adopt_orphans", "descendants", "stop_descendants"]

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """From now on a process whose parent ends becomes a child of this one, not of init (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[int]:
    """Children, their children and so on, parents first; those that have ended are left out."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # pid (name) state parent ...; the name may hold anything.
            state, parent = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(folder.name))
    found = [os.getpid()]
    for pid in found:
        found += children.get(pid, [])
    return found[1:]


def stop_descendants(grace_s: float = 5.0) -> int:
    """End all descendants: ask, and after `grace_s` seconds force. Waits until they are gone.

    Returns:
        How many there were.
    """
    first = descendants()
    for pid in first:  # parents first, so that msrun starts nothing new
        _send(pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while alive := descendants():
        if time.monotonic() > deadline:
            for pid in alive:
                _send(pid, signal.SIGKILL)
        _reap()
        time.sleep(0.05)
    _reap()
    return len(first)


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
