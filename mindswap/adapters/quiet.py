"""Keeps the chatter of MindSpore and MindFormers off the terminal and out of the user's folder.

Needs neither of them: it must act before they are imported.
"""

import contextlib
import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import TextIO

from mindswap.errors import DataError, MindswapError, system_errors_as
from mindswap.system.environment import replaced_environment
from mindswap.system.scratch import remove_abandoned, scratch_folder
from mindswap.system.signals import held_signals
from mindswap.system.streams import OutputError, drop_output, write_message

# A descriptor of stderr, as it was before it was redirected, while `report_progress` may say something; none otherwise.
_stderr: ContextVar[int] = ContextVar("stderr", default=-1)
# What takes its time now.
_activity: ContextVar[list[str]] = ContextVar("activity")
# Where stderr is no terminal, it is said after so many seconds, and again after twice, four times, ... as many,
# unless this variable of the environment is 0: for those who keep stderr and compare it.
FIRST_S, PROGRESS = 5.0, "MINDSWAP_PROGRESS"
# To the start of the line, and delete it.
CLEAR_LINE = "\r\x1b[K"
LOG_NAME = "compile.log"


def report_progress(text: str) -> None:
    """Say on a terminal, in a few words, what takes its time now; the line before is deleted, by "" without a new one.

    Where stderr is no terminal only what takes long is said, a line each time. Nothing outside `progress_reporting`.
    """
    descriptor = _stderr.get()
    if descriptor < 0:
        return
    _activity.get()[0] = text
    if os.isatty(descriptor) and os.environ.get("TERM") != "dumb":
        write_message(descriptor, f"{CLEAR_LINE}{f'mindswap: {text} ...' if text else ''}")


def _repeat(descriptor: int, activity: list[str], is_over: threading.Event) -> None:
    """Say now and then what still takes its time."""
    begin_s, pause_s = time.monotonic(), FIRST_S
    while not is_over.wait(begin_s + pause_s - time.monotonic()):
        if activity[0]:
            write_message(descriptor, f"mindswap: {activity[0]}, {time.monotonic() - begin_s:.0f} s so far\n")
        pause_s *= 2


def _writing_to(stream: TextIO, descriptor: int) -> TextIO:
    """The stream, or one that writes to the descriptor where it does not; a logger may keep it for good."""
    with contextlib.suppress(OSError, ValueError):  # it has no descriptor at all
        if stream.fileno() == descriptor:
            return stream
    return open(descriptor, "w", buffering=1, encoding="utf-8", closefd=False)  # not ours to close


@contextlib.contextmanager
def progress_reporting(text: str) -> Iterator[int]:
    """Let `report_progress` write to stderr inside the block, first `text`; yield a descriptor of stderr."""
    descriptor = os.dup(2)
    token, is_over = _stderr.set(descriptor), threading.Event()
    activity = [""]
    of_activity = _activity.set(activity)
    repeater = threading.Thread(target=_repeat, args=(descriptor, activity, is_over), daemon=True)
    if not os.isatty(descriptor) and os.environ.get(PROGRESS) != "0":
        repeater.start()
    report_progress(text)
    try:
        yield descriptor
    finally:
        report_progress("")
        is_over.set()
        if repeater.is_alive():
            repeater.join()
        _activity.reset(of_activity)
        _stderr.reset(token)
        os.close(descriptor)


@contextlib.contextmanager
def quiet() -> Iterator[Path]:
    """While this lasts, whatever the process prints goes to a log file, and the working folder is a scratch one.

    MindSpore prints from C++ too, so the file descriptors themselves are redirected, and with them what stands for them
    in a notebook; both packages write logs and graphs into the working folder, MindFormers as soon as it is imported.
    The folder is deleted at the end; after an error it is kept, until `remove_kept` of `system.scratch` or for a
    week, and the error carries the path of the log, which is what this gives. Only `report_progress` gets through.
    """
    remove_abandoned()
    was_collecting = gc.isenabled()
    gc.disable()  # a quarter of the time of importing MindFormers is the collector walking over new modules
    try:
        with (
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
    finally:
        if was_collecting:
            gc.enable()


def _flush_or_drop(stream: TextIO) -> None:
    """Write what a stream has in its buffer; nowhere if that fails, or it would go where the stream writes later."""
    try:
        stream.flush()
    except (OSError, ValueError, OutputError):
        drop_output(stream)
        with contextlib.suppress(OSError, ValueError, OutputError):
            stream.flush()


@contextlib.contextmanager
def _redirected(log_path: Path, descriptor: int) -> Iterator[None]:
    """While this lasts, what the process prints goes to a log, whose folder is the working one.

    `descriptor` is of the stderr until now.
    """
    streams = sys.stdout, sys.stderr
    for stream in streams:
        stream.flush()
    saved, home = (os.dup(1), descriptor), os.open(".", os.O_PATH)  # no name: the folder may vanish, or move
    try:
        os.chdir(log_path.parent)
        with log_path.open("wb") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        sys.stdout, sys.stderr = _writing_to(streams[0], 1), _writing_to(streams[1], 2)
        yield
    except OutputError as error:  # the standard output is the log
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
