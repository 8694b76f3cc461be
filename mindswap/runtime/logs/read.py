"""Read the logs of all workers of a run.

Under msrun these are `worker_*.log` in one folder, or in one folder per node. Without msrun MindFormers itself writes
`output/log/rank_*/info.log`, one for each process.
"""

import importlib
import multiprocessing
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from mindswap.errors import LogError
from mindswap.runtime.logs.oom import SetLine, WorkerLog
from mindswap.runtime.logs.scan import LogScanner, Search, search

# The end of a log: last step and last error.

TAIL_BYTES = 1 << 18
MAX_LINE = 300
# The last line of a Python traceback, or a MindSpore log line; both only where the line begins.
_EXCEPTION = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)\b(?::|$)")
# Messages of mindswap have their Chinese words where the locale of the workers is Chinese.
_LOGGED = re.compile(
    r"\[(?:ERROR|CRITICAL)\]|mindswap[:\uff1a] ?(?:error|a bug|错误|程序缺陷)[:\uff1a]"
    r"|.*[:\uff1a] ?(?:error|fatal|错误)[:\uff1a]|.* - (?:ERROR|CRITICAL) - ",
    re.IGNORECASE,
)
# `{ Epoch:[  1/  1], step:[   37/   40], loss:[...` of MindFormers' MFLossMonitor.
_STEP = re.compile(r"\bstep:\[ *(\d+) */ *(\d+)\]")


def read_tail(log: Path) -> list[str]:
    """Return the last lines of a log; the first of them may be truncated.

    Raises:
        OSError: if the log cannot be read.
    """
    with log.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - TAIL_BYTES))
        return file.read(TAIL_BYTES).decode(errors="replace").splitlines()


def find_last_error(lines: list[str]) -> str:
    """Return the last exception, else the last logged error, limited to 300 characters; "" without any."""
    for pattern in (_EXCEPTION, _LOGGED):
        for line in reversed(lines):
            if pattern.match(line):
                return line if len(line) <= MAX_LINE else line[:MAX_LINE] + " ..."
    return ""


def find_last_step(lines: list[str]) -> str:
    """Return the last training step, such as `37/40`; "" without any."""
    for line in reversed(lines):
        if "step:[" in line and (match := _STEP.search(line)):
            return f"{match[1]}/{match[2]}"
    return ""


BLOCK_BYTES = 1 << 18
# Total size of logs above which several processes read them.
MIN_PARALLEL_BYTES = 256 << 20
_NAME = re.compile(r"worker_(\d{1,9})\.log")
_NODE = re.compile(r"node_(\d{1,9})")
_RANK = re.compile(r"rank_(\d{1,9})")
_RANK_LOG = "info.log"  # of MindFormers, in the folder of a rank
# Path of a log, number of its worker over all nodes, folder of its node.
_Task = tuple[Path, int, str]


def read_worker_logs(
    directory: str | Path, progress: Callable[[int, int], None] | None = None
) -> tuple[WorkerLog, ...]:
    """Read the logs that msrun, or MindFormers without it, wrote into a folder.

    Logs are read in blocks, so memory is independent of their size.

    Args:
        directory: folder with `worker_*.log`, or with one folder `node_*` of them for each node; without msrun the
            output folder of MindFormers, its `log`, a `rank_*` in it, or the `info.log` there.
        progress: function called after each log with the number of logs read so far and the number of logs.

    Returns:
        The logs by number of worker; `problem` is set if one cannot be read.

    Raises:
        LogError: if the folder itself cannot be read, or two logs are of the same worker.
    """
    tasks = _find_logs(Path(directory))
    logs = []
    texts: dict[tuple[SetLine, ...], tuple[SetLine, ...]] = {}  # equal lines of thousands of workers share memory
    with _mapper(tasks) as read:
        for log in read:
            logs.append(replace(log, set_lines=texts.setdefault(log.set_lines, log.set_lines)))
            if progress:
                progress(len(logs), len(tasks))
    return tuple(logs)


@contextmanager
def _mapper(tasks: list[_Task]) -> Iterator[Iterable[WorkerLog]]:
    """Yield the logs in order of the tasks, read by several processes if they are large."""
    num_processes = min(len(os.sched_getaffinity(0)), len(tasks))
    # Forking a process with threads of MindSpore may hang.
    if num_processes < 2 or "mindspore" in sys.modules or sum(map(_size_bytes, tasks)) < MIN_PARALLEL_BYTES:
        yield map(_read, tasks)
    else:
        find = importlib.import_module("mindswap.runtime.logs.search").search_compiled
        find(b"", 0, 0)(0)  # compiled before the fork
        with multiprocessing.get_context("fork").Pool(num_processes) as pool:
            yield pool.imap(partial(_read, find=find), tasks, chunksize=4)


def _find_logs(folder: Path) -> list[_Task]:
    """Find every log, by number of worker; those of ranks if there are none of workers.

    msrun numbers workers over all nodes if it knows the rank of its node. Else each node starts at 0, and the number
    follows from the folder of the node, as all nodes have the same number of workers.
    """
    if folder.name == _RANK_LOG and folder.is_file():
        return [(folder, _rank_of(folder.parent), "")]
    names = _names(folder, "give the one of `msrun --log_dir`, usually output/msrun; without msrun output/log")
    nodes = sorted((int(match[1]), name) for name in names if (match := _NODE.fullmatch(name)))
    files_by_node = {"": _numbered(names)} if any(map(_NAME.fullmatch, names)) or not nodes else {}
    files_by_node |= {name: numbered for _, name in nodes if (numbered := _numbered(_names(folder / name)))}
    tasks = [
        (folder / node / name, number, node) for node, logs in files_by_node.items() for number, name in logs.items()
    ]
    if not tasks:
        return _find_rank_logs(folder)
    twice = len(tasks) - len({number for _, number, _ in tasks})
    if twice and "" not in files_by_node:
        size = len(next(iter(files_by_node.values())))
        if all(list(logs) == list(range(size)) for logs in files_by_node.values()):
            ranks = {name: rank for rank, name in nodes}
            tasks = [(path, ranks[node] * size + number, node) for path, number, node in tasks]
            twice = 0
    if twice:
        places: dict[int, list[str]] = {}
        for path, number, _ in tasks:
            places.setdefault(number, []).append(str(path))
        first, second = next(files_by_node for files_by_node in places.values() if len(files_by_node) > 1)[:2]
        raise LogError(
            f"{folder}: {first} and {second} are of the same worker\n"
            "    allowed: numbers over all nodes (msrun --node_rank), or worker_0.log to worker_N.log in each node_*/\n"
            "    fix:     remove the logs of an older run, or name the folder of one run"
        )
    return sorted(tasks, key=lambda task: task[1])


def _find_rank_logs(folder: Path) -> list[_Task]:
    """Find the logs of MindFormers in its output folder, in `log` of that, or in the folder of one rank."""
    if (folder / _RANK_LOG).is_file():
        return [(folder / _RANK_LOG, _rank_of(folder), "")]
    for parent in (folder, folder / "log"):
        ranks = [path for path in parent.glob("rank_*") if _RANK.fullmatch(path.name) and (path / _RANK_LOG).is_file()]
        if ranks:
            return sorted(((path / _RANK_LOG, _rank_of(path), "") for path in ranks), key=lambda task: task[1])
    return []


def _rank_of(folder: Path) -> int:
    match = _RANK.fullmatch(folder.resolve().name)
    return int(match[1]) if match else 0


def _numbered(names: Iterable[str]) -> dict[int, str]:
    return dict(sorted((int(match[1]), name) for name in names if (match := _NAME.fullmatch(name))))


def _names(folder: Path, hint: str = "") -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        raise LogError(f"{folder}: no such folder; {hint}") from None
    except NotADirectoryError:
        raise LogError(f"{folder} is not a folder: give the one that holds worker_0.log, worker_1.log, ...") from None
    except OSError as error:
        raise LogError(f"{folder}: {error.strerror or error}") from None


def _size_bytes(task: _Task) -> int:
    try:
        return task[0].stat().st_size
    except OSError:
        return 0


def _read(task: _Task, find: Search = search) -> WorkerLog:
    path, worker, node = task
    return replace(read_worker_log(path, worker, find), node=node)


def read_worker_log(path: Path, worker: int, find: Search = search) -> WorkerLog:
    """Read one log; errors are reported in its `problem`."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            return WorkerLog(worker, problem="is a folder")
        if not stat.S_ISREG(status.st_mode):
            return WorkerLog(worker, problem="is no regular file")
        return _scan(path, worker, status.st_size, find)
    except OSError as error:
        return WorkerLog(worker, problem=f"cannot be read: {error.strerror or error}")


def _scan(path: Path, worker: int, size_bytes: int, find: Search) -> WorkerLog:
    scanner = LogScanner(find)
    remaining = size_bytes  # reading ends at this size, also if the log is growing
    with path.open("rb") as file:
        while remaining and (block := file.read(min(BLOCK_BYTES, remaining))):
            scanner.feed(block)
            remaining -= len(block)
    lines = read_tail(path)
    return replace(
        scanner.finish(worker, size_bytes), last_error=find_last_error(lines), last_step=find_last_step(lines)
    )
