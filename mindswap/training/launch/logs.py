"""Logs of the workers: old ones out of the way, and what they say when a run failed."""

from collections.abc import Iterable
from pathlib import Path

from mindswap.policy.words import name_indices
from mindswap.training.logs.tail import find_last_error, read_tail


def worker_log(folder: Path, rank: int) -> Path:
    """Where msrun writes what a worker prints."""
    return folder / f"worker_{rank}.log"


def put_old_logs_aside(folder: Path, ranks: Iterable[int], num_workers: int, *, with_scheduler: bool) -> list[Path]:
    """Rename logs of an earlier run to `*.log.old`, so that none is taken for one of this run; gives those.

    Only logs that this machine is about to write, and those of workers that this job has not: others
    may come from other machines of the same job, in a shared folder.
    """
    mine = set(ranks)
    logs = [folder / "scheduler.log"] if with_scheduler else []
    for path in sorted(folder.glob("worker_*.log")):
        rank = path.stem.removeprefix("worker_")
        if rank.isdigit() and (int(rank) in mine or int(rank) >= num_workers):
            logs.append(path)
    old = [path for path in logs if path.exists()]
    for path in old:
        path.replace(path.with_name(f"{path.name}.old"))
    return old


def failure_report(folder: Path, ranks: Iterable[int]) -> str:
    """What the logs say: workers with the same last error once, those with an error first."""
    found: dict[tuple[bool, str], list[int]] = {}
    for rank in ranks:
        found.setdefault(_examine(worker_log(folder, rank)), []).append(rank)
    causes = [text for is_cause, text in found if is_cause]
    causes_first = sorted(found.items(), key=lambda finding: not finding[0][0])
    lines = [f"    {_name(same)}: {text}" for (_, text), same in causes_first]
    scheduler = folder / "scheduler.log"
    is_cause, text = _examine(scheduler)
    if is_cause and text not in causes and scheduler.exists():
        lines.append(f"    scheduler.log: {text}")
    elif not causes:
        lines.append("    no error in any log: was a worker killed, for want of memory? (dmesg)")
    return "\n".join([*lines, f"    logs: {folder}"])


def _name(ranks: list[int]) -> str:
    return f"worker_{ranks[0]}.log" if len(ranks) == 1 else name_indices("worker", ranks)


def _examine(log: Path) -> tuple[bool, str]:
    """Whether a log tells of a cause, and what it tells."""
    try:
        lines = read_tail(log)
    except OSError:
        return True, "no log: this worker was not started"
    if error := find_last_error(lines):
        return True, error
    return False, "no error in the log; msrun stops all workers when one fails" if lines else "its log is empty"
