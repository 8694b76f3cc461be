"""Redirection of the output of MindSpore and MindFormers away from the terminal and the user's folder.

The module imports neither of them, because it must act before they are imported.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TextIO

from mindswap.errors import DataError, MindswapError, system_errors_as
from mindswap.language import translate
from mindswap.system import heartbeat
from mindswap.system.collector import collector_disabled
from mindswap.system.environment import replaced_environment
from mindswap.system.scratch import remove_abandoned, scratch_folder
from mindswap.system.signals import held_signals
from mindswap.system.streams import OutputError, drop_output, write_message

# Descriptor of the original stderr inside `progress_reporting`; -1 outside.
_stderr: ContextVar[int] = ContextVar("stderr", default=-1)
# Current activity.
_activity: ContextVar[list[str]] = ContextVar("activity")
# Moves to the start of the line and deletes it.
CLEAR_LINE = "\r\x1b[K"
LOG_NAME = "compile.log"


def report_progress(text: str) -> None:
    """Report the current activity on a terminal, replacing the previous line; "" only deletes it.

    If stderr is no terminal, only long activities are reported, one line each time. Outside `progress_reporting`
    nothing is written.
    """
    descriptor = _stderr.get()
    if descriptor < 0:
        return
    _activity.get()[0] = text
    if os.isatty(descriptor) and os.environ.get("TERM") != "dumb":
        shown = translate(f"mindswap: {text} ...") if text else ""
        write_message(descriptor, f"{CLEAR_LINE}{shown}")


def _writing_to(stream: TextIO, descriptor: int) -> TextIO:
    """Return the stream if it writes to the descriptor, else a new one; a logger may keep it permanently."""
    with contextlib.suppress(OSError, ValueError):  # the stream has no descriptor
        if stream.fileno() == descriptor:
            return stream
    return open(descriptor, "w", buffering=1, encoding="utf-8", closefd=False)  # closed by its owner


@contextlib.contextmanager
def progress_reporting(text: str) -> Iterator[int]:
    """Let `report_progress` write to stderr inside the block, first `text`; yield a descriptor of stderr."""
    descriptor = os.dup(2)
    token = _stderr.set(descriptor)
    activity = [""]
    of_activity = _activity.set(activity)
    report_progress(text)
    try:
        with contextlib.ExitStack() as stack:
            if not os.isatty(descriptor):
                write = partial(write_message, descriptor)
                stack.enter_context(heartbeat.heartbeat(lambda: activity[0], write))
            yield descriptor
    finally:
        report_progress("")
        _activity.reset(of_activity)
        _stderr.reset(token)
        os.close(descriptor)


@contextlib.contextmanager
def quiet() -> Iterator[Path]:
    """Redirect all output of the process to a log file and work in a scratch folder inside the block.

    MindSpore also prints from C++, so the file descriptors themselves are redirected, as well as the streams of a
    notebook. Both packages write logs and graphs into the working folder, MindFormers as soon as it is imported. The
    folder is deleted at the end. After an error it is kept for a week, or until `remove_kept` of `system.scratch`, and
    the error contains the path of the log. Only `report_progress` writes to the terminal.

    Yields:
        Path of the log.
    """
    remove_abandoned()
    with (
        collector_disabled(),  # collection over new modules takes 5 % of the CPU time of importing MindFormers
        scratch_folder("compile", kept_on=(Exception,)) as folder,
        progress_reporting("starting MindSpore and MindFormers") as descriptor,
        replaced_environment(),
        _redirected(folder / LOG_NAME, descriptor),
    ):
        try:
            yield folder / LOG_NAME
        except MindswapError as error:
            error.args = (f"{error}\n    full log: {folder / LOG_NAME}",)
            raise
        except Exception as error:
            if sys.version_info >= (3, 11):
                error.add_note(f"full log: {folder / LOG_NAME}")
            raise


def _flush_or_drop(stream: TextIO) -> None:
    """Flush a stream; on failure drop its buffer, which would otherwise be written elsewhere later."""
    try:
        stream.flush()
    except (OSError, ValueError, OutputError):
        drop_output(stream)
        with contextlib.suppress(OSError, ValueError, OutputError):
            stream.flush()


@contextlib.contextmanager
def _redirected(log_path: Path, descriptor: int) -> Iterator[None]:
    """Redirect the output of the process to a log, and change to its folder, inside the block.

    Args:
        log_path: the log.
        descriptor: of the original stderr.
    """
    streams = sys.stdout, sys.stderr
    for stream in streams:
        stream.flush()
    # no name, because the folder may be deleted or moved
    saved, home = (os.dup(1), descriptor), os.open(".", os.O_PATH)
    try:
        os.chdir(log_path.parent)
        with log_path.open("wb") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        sys.stdout, sys.stderr = _writing_to(streams[0], 1), _writing_to(streams[1], 2)
        yield
    except OutputError as error:  # standard output is the log
        with system_errors_as(DataError, f"{log_path}: cannot be written"):
            raise error.__cause__ or error from None
    finally:
        with held_signals():
            for stream in (sys.stdout, sys.stderr):
                _flush_or_drop(stream)
            sys.stdout, sys.stderr = streams
            for original, copy in zip((1, 2), saved, strict=True):
                os.dup2(copy, original)
            os.close(saved[0])
            os.fchdir(home)
            os.close(home)
