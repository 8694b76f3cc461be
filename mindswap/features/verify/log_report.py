"""Report of the comparison of logs with the policy, as text and JSON."""

import re
from collections.abc import Sequence
from typing import Any

from mindswap.config.problem import Level
from mindswap.features.verify.log_comparison import LogFinding, LogReport
from mindswap.policy.wording import format_names, index_runs, name_indices
from mindswap.report.tables import format_table, group_equal, shown
from mindswap.runtime.logs.oom import MemoryStatistics
from mindswap.units import format_bytes, format_count, format_signed

# Of the memory of a worker, as `MemoryStatistics` has them.
MEMORY_FIGURES = ("device", "available", "used_peak", "actual_peak")
# More rows of memory than this are joined to one for each pipeline stage, more runs of workers are counted.
MAX_ROWS = 16
MAX_RUNS = 8
# Minimum number of similar findings that are grouped.
MIN_GROUPED = 4
_DIGITS = re.compile(r"\d+")


def format_logs(report: LogReport) -> str:
    """Format memory statistics (equal workers in one row), findings and verdict."""
    lines = [_format_memory(report), ""] if report.memory else []
    for findings in _group_alike(report.findings):
        lines += _format_findings(findings, report)
    verdict = "agree with the policy" if report.is_ok else "do NOT show that the policy was in effect"
    return "\n".join([*lines, f"logs of {format_count(report.num_workers, 'worker')} {verdict}"])


def logs_to_json(report: LogReport) -> dict[str, Any]:
    """Return the comparison as JSON data; sizes in bytes."""
    return {
        "ok": report.is_ok,
        "num_workers": report.num_workers,
        "predicted_peak_bytes": report.predicted_peak_bytes,
        "findings": [
            {**vars(finding), "workers": list(finding.workers), "level": finding.level.value}
            for finding in report.findings
        ],
        "memory": [
            {
                "worker": worker,
                **{f"{name}_bytes": getattr(measured, f"{name}_bytes") for name in MEMORY_FIGURES},
                "difference_bytes": report.difference_bytes(measured),
            }
            for worker, measured in report.memory.items()
        ],
    }


def _group_alike(findings: Sequence[LogFinding]) -> list[list[LogFinding]]:
    """Group findings that differ in numbers only, if there are more than a few."""
    groups: dict[tuple[object, ...], list[LogFinding]] = {}
    for finding in findings:
        groups.setdefault((finding.level, finding.fix, _DIGITS.sub("#", finding.message)), []).append(finding)
    merged: list[list[LogFinding]] = []
    for group in groups.values():
        merged += [group] if len(group) >= MIN_GROUPED else [[finding] for finding in group]
    return merged


def _format_findings(findings: Sequence[LogFinding], report: LogReport) -> list[str]:
    first = findings[0]
    workers = sorted({worker for finding in findings for worker in finding.workers})
    level = "" if first.level is Level.NOTE else f"{first.level.value}: "
    workers_prefix = f"{_name_workers(workers, report)}: " if workers else ""
    others_remark = f" (worker {first.workers[0]}; the others with other numbers)" if len(findings) > 1 else ""
    line = f"{workers_prefix}{level}{first.message}{others_remark}"
    return [line, f"    fix: {first.fix}"] if first.fix else [line]


def _name_workers(workers: Sequence[int], report: LogReport) -> str:
    """Name workers by number and node; long lists are abbreviated."""
    runs = index_runs(workers)
    named = name_indices("worker", workers)
    if len(runs) > MAX_RUNS:
        named = f"{len(workers)} workers ({format_names(runs, MAX_RUNS)})"
    stages = {report.stage(worker) for worker in workers}
    nodes = {report.nodes[worker]: None for worker in workers if worker in report.nodes}
    places = []
    if report.num_stages > 1 and len(stages) < report.num_stages:
        places.append(name_indices("stage", stages))
    if nodes and len(nodes) < len(set(report.nodes.values())):
        places.append(format_names(nodes))
    return f"{named} in {', '.join(places)}" if places else named


def _format_memory(report: LogReport) -> str:
    """Format the measured memory, and the difference to the prediction if there is one."""

    def cells(measured: MemoryStatistics) -> tuple[str, ...]:
        sizes = [shown(getattr(measured, f"{name}_bytes"), format_bytes) for name in MEMORY_FIGURES]
        if report.predicted_peak_bytes is not None:
            sizes.append(format_bytes(report.predicted_peak_bytes))
            sizes.append(shown(report.difference_bytes(measured), format_signed))
        return tuple(sizes)

    header = ["memory", "device", "for MindSpore", "used peak", "with fragments"]
    if report.predicted_peak_bytes is not None:
        header += ["simulated peak", "difference"]
    groups = group_equal(report.memory.values(), cells, report.memory)
    if len(groups) > MAX_ROWS:  # one row per stage, with the highest memory
        by_stage: dict[int, list[int]] = {}
        for worker in report.memory:
            by_stage.setdefault(report.stage(worker), []).append(worker)
        groups = [(workers, _highest(workers, report)) for workers in by_stage.values()]
        header[0] = "memory (highest)"
    return format_table(header, [(_name_workers(workers, report), *cells(first)) for workers, first in groups])


def _highest(workers: Sequence[int], report: LogReport) -> MemoryStatistics:
    return max((report.memory[worker] for worker in workers), key=lambda measured: measured.used_peak_bytes or 0)
