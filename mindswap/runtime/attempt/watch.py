"""The logs of the workers while they grow: new bytes only, whatever happens to the files."""

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
# Of one log in one poll, so that a flood in one log does not hide the others.
MAX_POLL_BYTES = 64 << 20
# msrun, when a worker ends badly: `Worker process 20300 exit with exception. Error code: -9.`
_EXIT = re.compile(r"Worker process (\d{1,9}) exit with exception\. Error code: (-?\d{1,5})")


class LogFollower:
    """Gives the new bytes of a file.

    A file that was deleted or renamed is read on, as the process that writes it still has it, until another one stands
    under the name: that is read from its beginning, and one that became shorter, too.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = Path(os.devnull).open("rb", buffering=0)  # noqa: SIM115 until there is one

    def poll(self, take: Callable[[bytes], None]) -> None:
        """Hand over everything that is new."""
        with contextlib.suppress(OSError):  # not now, as of a file server that is away
            self._drain(take)
        with contextlib.suppress(OSError):  # not there, or not now
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
    """State of training by the logs of all workers."""

    step: int  # the step that all workers have passed; 0 for none
    num_steps: int  # of the whole training; 0 while unknown
    num_timed_steps: int  # steps whose time is known, of the worker with the fewest
    step_time_ns: int  # median of the slowest worker; 0 while unknown
    peak_bytes: int | None  # highest use of any worker, with fragments; None if none reports it
    out_of_memory: tuple[int, OomEvent] | None  # worker and event of the largest request that failed; None for none
    num_finished: int  # workers that said that the training is over


def merge_progress(seen: Sequence[LogProgress]) -> LogProgress:
    """State of training by the logs of several workers, or nodes."""
    return LogProgress(
        step=min((one.step for one in seen), default=0),
        num_steps=max((one.num_steps for one in seen), default=0),
        num_timed_steps=min((one.num_timed_steps for one in seen), default=0),
        step_time_ns=max((one.step_time_ns for one in seen), default=0),
        peak_bytes=max((one.peak_bytes for one in seen if one.peak_bytes is not None), default=None),
        out_of_memory=_worst(one.out_of_memory for one in seen if one.out_of_memory),
        num_finished=sum(one.num_finished for one in seen),
    )


def _worst(events: Iterable[tuple[int, OomEvent]]) -> tuple[int, OomEvent] | None:
    """The event that says most about what was missing; device memory before that of the host."""
    return max(events, key=lambda found: (not found[1].is_host, found[1].missing_bytes or 0), default=None)


class _Worker:
    def __init__(self, path: Path) -> None:
        self.follower = LogFollower(path)
        self.scanner = LogScanner()
        self.steps = StepScanner()

    def take(self, block: bytes) -> None:
        self.scanner.feed(block)
        self.steps.feed(block)

    def seen(self, rank: int) -> LogProgress:
        """State of training by this log."""
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
    """Follows the logs of one attempt, by rank."""

    def __init__(self, logs: dict[int, Path]) -> None:
        self._workers = {rank: _Worker(path) for rank, path in logs.items()}

    def poll(self) -> LogProgress:
        """Read what is new and say what is known."""
        for worker in self._workers.values():
            worker.follower.poll(worker.take)
        return merge_progress([worker.seen(rank) for rank, worker in self._workers.items()])

    def close(self) -> None:
        """Close all logs."""
        for worker in self._workers.values():
            worker.follower.close()


def read_worker_exits(text: str) -> list[tuple[int, int]]:
    """Process and exit code of workers that ended badly, from what msrun printed; -9 is signal 9."""
    return [(int(pid), int(code)) for pid, code in _EXIT.findall(text)]
