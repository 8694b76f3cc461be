"""Logs of the workers: old ones out of the way, and what they say when a run failed."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["put_old_logs_aside", "worker_log", "failure_report"]

OLD = ".old"
_TAIL_BYTES = 1 << 18
_MAX_LINE = 300
# The last line of a Python traceback, or a MindSpore log line; both only where the line begins.
_EXCEPTION = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)\b(?::|$)")
_LOGGED = re.compile(
    r"\[(?:ERROR|CRITICAL)\]|mindswap: error:|.*: (?:error|fatal):|.* - (?:ERROR|CRITICAL) - ", re.IGNORECASE
)


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
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    text = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)
    return f"worker_{ranks[0]}.log" if len(ranks) == 1 else f"workers {text}"


def _examine(log: Path) -> _Finding:
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return _Finding(True, "no log: this worker was not started")
    for pattern in (_EXCEPTION, _LOGGED):
        for line in reversed(lines):
            if pattern.match(line):
                return _Finding(True, line if len(line) <= _MAX_LINE else line[:_MAX_LINE] + " ...")
    return _Finding(
        False, "no error in the log; msrun stops all workers when one fails" if size else "its log is empty"
    )
