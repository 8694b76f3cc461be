"""Find and stop all processes that a command started, including orphans of its children."""

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
    """Make orphaned descendants children of this process instead of init (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _read_attribute(processes: Iterable[psutil.Process], attribute: str) -> Iterator[tuple[int, Any]]:
    """Yield the id and `attribute()` of each process; skip processes that ended or belong to another user."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            yield process.pid, getattr(process, attribute)()


def descendants() -> list[int]:
    """Return the ids of all running descendants, parents first."""
    states = _read_attribute(psutil.Process().children(recursive=True), "status")
    return [pid for pid, state in states if state != psutil.STATUS_ZOMBIE]


def stop_descendants(grace_s: float = 5.0) -> int:
    """Stop all descendants, see `stop_processes`."""
    return stop_processes(descendants, grace_s)


def stop_processes(find: Callable[[], list[int]], grace_s: float = 5.0, limit_s: float = 20.0) -> int:
    """Terminate processes, kill them after `grace_s`, and wait until they have ended.

    Args:
        find: function that returns the ids of the processes.
        grace_s: time between SIGTERM and SIGKILL.
        limit_s: time to wait after SIGKILL, because processes blocked by a device or a file system do not end.

    Returns:
        Number of processes found at first.
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
    """Return the ids of processes with this environment variable, independent of their parents."""
    return [pid for pid, variables in _read_attribute(psutil.process_iter(), "environ") if variables.get(name) == value]


def worker_ranks() -> dict[int, int]:
    """Return process id -> rank of the workers of msrun among the descendants."""
    environments = _read_attribute(psutil.Process().children(recursive=True), "environ")
    ranks = {
        pid: variables.get("RANK_ID", "") for pid, variables in environments if variables.get("MS_ROLE") == "MS_WORKER"
    }
    return {pid: int(rank) for pid, rank in ranks.items() if rank.isdecimal()}


def raise_process_limit() -> None:
    """Raise the limit of processes to its maximum, because workers start many threads (as upstream's `ulimit -u`)."""
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
