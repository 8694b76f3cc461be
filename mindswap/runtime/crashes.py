"""Crashes of worker processes, and whether the training was over before.

MindSpore 2.9 sometimes crashes while a finished process releases its resources: a thread of its cluster library
(`RECV_EVENT_LOOP`) reads a connection that the main thread has closed. All steps are done and all files written then.
"""

import signal
from collections.abc import Iterable
from pathlib import Path

from mindswap.runtime.logs.read import read_tail
from mindswap.runtime.msrun import worker_log

# Signals that users or the system send to end a process; other signals are crashes.
KILLS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Last line of `mindswap run`, in any language; MindSpore's own lines may follow while it is unloaded.
END = "mindswap: the training is over"


def crash_signal(exit_code: int) -> str:
    """Return the name of the signal of a crash, such as SIGSEGV; "" if the exit code is no crash.

    Args:
        exit_code: exit code of a process; -11 means signal 11.
    """
    if exit_code >= 0 or -exit_code in KILLS:
        return ""
    try:
        return signal.Signals(-exit_code).name
    except ValueError:  # a real-time signal
        return f"signal {-exit_code}"


def is_training_over(folder: Path, ranks: Iterable[int]) -> bool:
    """Return whether the log of each worker has the end of the training, after all that its script did.

    Args:
        folder: folder with the log of each worker.
        ranks: ranks of the workers of this machine.
    """
    try:
        return all(END in read_tail(worker_log(folder, rank)) for rank in ranks)
    except OSError:
        return False
