"""Logs of the workers: old ones out of the way, and what they say when a run failed."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mindswap.logs.tail import find_last_error, read_tail
from mindswap.report.tables import format_indices

__all__ = ["put_old_logs_aside", "worker_log", "failure_report"]

OLD = ".old"


def worker_log(folder: Path, rank: int) -> Path:
    """Where msrun writes what a worker prints."""
    return folder / f"worker_{rank}.log"


def put_old_logs_aside(folder: Path, ranks: Iterable[int], num_workers: int, *, with_scheduler: bool) -> list[Path]:
    """Rename logs of an earlier run to `*.log.old`, so that none is taken for one of this run.

    Only logs that this machine is about to write, and those of workers that this job has not: others
    may come from other machines of the same job, in a shared folder.

    Returns:
        The logs that were renamed.
    """
    mine = set(ranks)
    logs = [folder / "scheduler.log"] if with_scheduler else []
    for path in sorted(folder.glob("worker_*.log")):
        rank = path.stem.removeprefix("worker_")
        if rank.isdigit() and (int(rank) in mine or int(rank) >= num_workers):
            logs.append(path)
    old = [path for path in logs if path.exists()]
    for path in old:
        path.replace(path.with_name(path.name + OLD))
    return old


@dataclass(frozen=True)
class _Finding:
    is_cause: bool
    text: str


def failure_report(folder: Path, ranks: Iterable[int]) -> str:
    """What the logs say: workers with the same last error once, those with an error first."""
    by_finding: dict[_Finding, list[int]] = {}
    for rank in ranks:
        by_finding.setdefault(_examine(worker_log(folder, rank)), []).append(rank)
    causes = {finding.text: same for finding, same in by_finding.items() if finding.is_cause}
    others = {finding.text: same for finding, same in by_finding.items() if not finding.is_cause}
    lines = [f"    {_name(same)}: {text}" for text, same in (*causes.items(), *others.items())]
    scheduler = _examine(folder / "scheduler.log")
    if scheduler.is_cause and scheduler.text not in causes and (folder / "scheduler.log").exists():
        lines.append(f"    scheduler.log: {scheduler.text}")
    elif not causes:
        lines.append("    no error in any log: was a worker killed, for want of memory? (dmesg)")
    return "\n".join([*lines, f"    logs: {folder}"])


def _name(ranks: list[int]) -> str:
    return f"worker_{ranks[0]}.log" if len(ranks) == 1 else format_indices("worker", ranks)


def _examine(log: Path) -> _Finding:
    try:
        lines = read_tail(log)
    except OSError:
        return _Finding(True, "no log: this worker was not started")
    if error := find_last_error(lines):
        return _Finding(True, error)
    return _Finding(
        False, "no error in the log; msrun stops all workers when one fails" if lines else "its log is empty"
    )
