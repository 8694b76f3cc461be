"""All processes that a command starts, also those that its own children leave behind."""

import contextlib
import ctypes
import os
import resource
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import psutil

_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """From now on a process whose parent ends becomes a child of this one, not of init (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _looked_at(processes: Iterable[psutil.Process], what: str) -> Iterator[tuple[int, Any]]:
    """Number and `what` of each; not of one that has ended meanwhile, or is of another user."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            yield process.pid, getattr(process, what)()


def descendants() -> list[int]:
    """Children, their children and so on, parents first; those that have ended are left out."""
    found = _looked_at(psutil.Process().children(recursive=True), "status")
    return [pid for pid, state in found if state != psutil.STATUS_ZOMBIE]


def stop_descendants(grace_s: float = 5.0) -> int:
    """End all descendants, as `stop_processes` does."""
    return stop_processes(descendants, grace_s)


def stop_processes(find: Callable[[], list[int]], grace_s: float = 5.0, limit_s: float = 20.0) -> int:
    """End processes: ask, and after `grace_s` force. Waits until they are gone; gives how many there were.

    What waits for a device or a file system, no signal ends: it gives up `limit_s` after that.
    """
    first = find()
    for pid in first:  # parents first, so that msrun starts nothing new
        _send(pid, signal.SIGTERM)
    begin_s = time.monotonic()
    while (alive := find()) and time.monotonic() - begin_s < grace_s + limit_s:
        if time.monotonic() - begin_s > grace_s:
            for pid in alive:
                _send(pid, signal.SIGKILL)
        _reap()
        time.sleep(0.05)
    _reap()
    return len(first)


def marked_processes(name: str, value: str) -> list[int]:
    """Processes that were started with this environment variable, whoever their parent is now."""
    return [pid for pid, own in _looked_at(psutil.process_iter(), "environ") if own.get(name) == value]


def worker_ranks() -> dict[int, int]:
    """Rank by process of the workers of msrun below this process."""
    found = _looked_at(psutil.Process().children(recursive=True), "environ")
    ranks = {pid: own.get("RANK_ID", "") for pid, own in found if own.get("MS_ROLE") == "MS_WORKER"}
    return {pid: int(rank) for pid, rank in ranks.items() if rank.isdecimal()}


def raise_process_limit() -> None:
    """Every worker starts many threads: take what the system allows (`ulimit -u unlimited` upstream)."""
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
        resource.setrlimit(resource.RLIMIT_NPROC, (hard, hard))


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
