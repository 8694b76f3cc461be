"""Follow the growing logs of the workers."""

import contextlib
import os
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mindswap.runtime.logs.oom import OomEvent
from mindswap.runtime.logs.scan import LogScanner
from mindswap.runtime.logs.step_report import StepScanner

BLOCK_BYTES = 1 << 18
# Limit of bytes per log and poll, so that a very fast log does not delay the others.
MAX_POLL_BYTES = 64 << 20
MAX_KEPT_BYTES = 1 << 20
# Output of msrun when a worker fails: `Worker process 20300 exit with exception. Error code: -9.`
_EXIT = re.compile(r"Worker process (\d{1,9}) exit with exception\. Error code: (-?\d{1,5})")


class LogFollower:
    """Reader of the bytes appended to a file.

    A deleted or renamed file is still read, because its writer has it open, until a new file with the name exists. New
    and truncated files are read from the start.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = Path(os.devnull).open("rb", buffering=0)  # noqa: SIM115 placeholder until the file exists

    def poll(self, take: Callable[[bytes], None]) -> None:
        """Call `take` with each block of new bytes."""
        with contextlib.suppress(OSError):  # temporarily unreadable, for example on a file server
            self._drain(take)
        with contextlib.suppress(OSError):  # missing or temporarily unreadable
            if not os.path.samestat(self.path.stat(), os.fstat(self._file.fileno())):
                opened = os.fdopen(os.open(self.path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0)
                self.close()
                self._file = opened
                self._drain(take)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _drain(self, take: Callable[[bytes], None]) -> None:
        if os.fstat(self._file.fileno()).st_size < self._file.tell():
            self._file.seek(0)
        end = self._file.tell() + MAX_POLL_BYTES
        while self._file.tell() < end and (block := self._file.read(BLOCK_BYTES)):
            take(block)


@dataclass(frozen=True)
class LogProgress:
    """Progress of a training according to the logs of its workers."""

    step: int  # last step that all workers completed; 0 for none
    num_steps: int  # steps of the complete training; 0 while unknown
    num_timed_steps: int  # number of steps with a known time, minimum over the workers
    step_time_ns: int  # median step time of the slowest worker; 0 while unknown
    peak_bytes: int | None  # highest peak of any worker, with fragments if logged; None if no worker logged it
    out_of_memory: tuple[int, OomEvent] | None  # worker and event of the largest shortage; None without any
    num_finished: int  # number of workers that logged the end of the training


def merge_progress(entries: Sequence[LogProgress]) -> LogProgress:
    """Merge the progress of several workers or nodes."""
    return LogProgress(
        step=min((entry.step for entry in entries), default=0),
        num_steps=max((entry.num_steps for entry in entries), default=0),
        num_timed_steps=min((entry.num_timed_steps for entry in entries), default=0),
        step_time_ns=max((entry.step_time_ns for entry in entries), default=0),
        peak_bytes=max((entry.peak_bytes for entry in entries if entry.peak_bytes is not None), default=None),
        out_of_memory=_worst(entry.out_of_memory for entry in entries if entry.out_of_memory),
        num_finished=sum(entry.num_finished for entry in entries),
    )


def _worst(events: Iterable[tuple[int, OomEvent]]) -> tuple[int, OomEvent] | None:
    """Return the event with the largest shortage; device memory takes precedence over host memory."""
    return max(events, key=lambda event: (not event[1].is_host, event[1].missing_bytes or 0), default=None)


class _Worker:
    def __init__(self, path: Path) -> None:
        self.follower = LogFollower(path)
        self.scanner = LogScanner()
        self.steps = StepScanner()

    def take(self, block: bytes) -> None:
        self.scanner.feed(block)
        self.steps.feed(block)

    def progress(self, rank: int) -> LogProgress:
        """Return the progress according to this log."""
        log, times_ns = self.scanner.snapshot(rank), self.steps.times_ns
        peak_bytes = log.memory.actual_peak_bytes
        return LogProgress(
            step=self.steps.step,
            num_steps=self.steps.num_steps,
            num_timed_steps=len(times_ns),
            step_time_ns=int(statistics.median(times_ns)) if times_ns else 0,
            peak_bytes=peak_bytes if peak_bytes is not None else log.memory.used_peak_bytes,
            out_of_memory=_worst((rank, event) for event in log.oom_events),
            num_finished=int(log.is_finished),
        )


class RunWatch:
    """Follower of the logs of one attempt.

    Args:
        logs: rank -> path of its log.
    """

    def __init__(self, logs: dict[int, Path]) -> None:
        self._workers = {rank: _Worker(path) for rank, path in logs.items()}

    def poll(self) -> LogProgress:
        """Read new bytes of all logs, and return the progress."""
        for worker in self._workers.values():
            worker.follower.poll(worker.take)
        return merge_progress([worker.progress(rank) for rank, worker in self._workers.items()])

    def close(self) -> None:
        """Close all logs."""
        for worker in self._workers.values():
            worker.follower.close()


class MsrunOutput:
    """The last of what msrun printed, which has the exits of failed workers."""

    def __init__(self) -> None:
        self._kept = b""

    def take(self, block: bytes) -> None:
        """Keep a block."""
        self._kept = (self._kept + block)[-MAX_KEPT_BYTES:]

    def exits(self) -> list[tuple[int, int]]:
        """Return process id and exit code of failed workers."""
        return read_worker_exits(self._kept.decode(errors="replace"))


def read_worker_exits(text: str) -> list[tuple[int, int]]:
    """Parse process id and exit code of failed workers from the output of msrun; -9 means signal 9."""
    return [(int(pid), int(code)) for pid, code in _EXIT.findall(text)]
