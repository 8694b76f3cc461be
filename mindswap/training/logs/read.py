"""Read the logs of all workers of a run: `worker_0.log`, `worker_1.log`, ..."""

import re
import stat
from dataclasses import replace
from pathlib import Path

from mindswap.errors import LogError
from mindswap.training.logs.model import WorkerLog
from mindswap.training.logs.scan import LogScanner
from mindswap.training.logs.tail import find_last_error, find_last_step, read_tail

BLOCK_BYTES = 1 << 18
_NAME = re.compile(r"worker_(\d{1,9})\.log")


def read_worker_logs(directory: str | Path) -> tuple[WorkerLog, ...]:
    """The logs that msrun wrote into a folder, by number of worker; one that cannot be read comes with its `problem`.

    Reads in blocks: a log of 5 GB takes no more memory than a small one.

    Raises:
        LogError: if the folder itself cannot be read.
    """
    folder = Path(directory)
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        raise LogError(f"{folder}: no such folder; give the one of `msrun --log_dir`, usually output/msrun") from None
    except NotADirectoryError:
        raise LogError(f"{folder} is no folder: give the one that holds worker_0.log, worker_1.log, ...") from None
    except OSError as error:
        raise LogError(f"{folder}: {error.strerror or error}") from None
    numbers = sorted((int(match[1]), name) for name in names if (match := _NAME.fullmatch(name)))
    return tuple(read_worker_log(folder / name, number) for number, name in numbers)


def read_worker_log(path: Path, worker: int) -> WorkerLog:
    """One log; whatever keeps it from being read is its `problem`."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            return WorkerLog(worker, problem="is a folder")
        if not stat.S_ISREG(status.st_mode):
            return WorkerLog(worker, problem="is no regular file")
        return _scan(path, worker, status.st_size)
    except OSError as error:
        return WorkerLog(worker, problem=f"cannot be read: {error.strerror or error}")


def _scan(path: Path, worker: int, size_bytes: int) -> WorkerLog:
    scanner = LogScanner()
    remaining = size_bytes  # a log that grows while it is read has an end nevertheless
    with path.open("rb") as file:
        while remaining and (block := file.read(min(BLOCK_BYTES, remaining))):
            scanner.feed(block)
            remaining -= len(block)
    lines = read_tail(path)
    return replace(
        scanner.finish(worker, size_bytes), last_error=find_last_error(lines), last_step=find_last_step(lines)
    )
