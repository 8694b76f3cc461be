"""Keeps what a library prints from C off the terminal and out of what a command gives.

HiGHS, behind `scipy.optimize.milp`, prints a line of its own to stdout in some solutions, whatever it is told
(github.com/jump-dev/HiGHS.jl, issue 312); `--json` would be broken by it.
"""

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """While this lasts, what the process prints to stdout is lost."""
    libc = ctypes.CDLL(None)
    sys.stdout.flush()
    libc.fflush(None)
    saved = os.dup(1)
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    try:
        yield
    finally:
        libc.fflush(None)  # C keeps lines for a pipe until later
        os.dup2(saved, 1)
        os.close(saved)
