"""The logs of the workers against the policy, as text and as JSON."""

from typing import Any

from mindswap.policy.words import name_indices
from mindswap.report.tables import format_table, group_equal
from mindswap.training.logs.compare import FindingLevel, LogFinding, LogReport
from mindswap.training.logs.model import MemoryStatistics
from mindswap.units import format_bytes, format_count

# Of the memory of a worker, as `MemoryStatistics` has them.
FIGURES = ("device", "available", "used_peak", "actual_peak")


def format_logs(report: LogReport) -> str:
    """Memory statistics with equal workers in one row, then the findings, then the verdict."""
    lines = [_format_memory(report), ""] if report.memory else []
    for finding in report.findings:
        lines += _format_finding(finding)
    verdict = "agree with the policy" if report.is_ok else "do NOT show that the policy was in effect"
    return "\n".join([*lines, f"logs of {format_count(report.num_workers, 'worker')} {verdict}"])


def logs_to_json(report: LogReport) -> dict[str, Any]:
    """The same as plain data; sizes in bytes."""
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
                **{f"{name}_bytes": getattr(measured, f"{name}_bytes") for name in FIGURES},
                "difference_bytes": report.difference_bytes(measured),
            }
            for worker, measured in report.memory.items()
        ],
    }


def _format_finding(finding: LogFinding) -> list[str]:
    who = f"{name_indices('worker', finding.workers)}: " if finding.workers else ""
    level = finding.level.value
    first = f"{who}{level}: {finding.message}" if finding.level is not FindingLevel.NOTE else f"{who}{finding.message}"
    return [first, f"    fix: {finding.fix}"] if finding.fix else [first]


def _format_memory(report: LogReport) -> str:
    """Measured memory; the difference to the prediction only if there is one."""

    def cells(measured: MemoryStatistics) -> tuple[str, ...]:
        shown = [_size(getattr(measured, f"{name}_bytes")) for name in FIGURES]
        if report.predicted_peak_bytes is not None:
            difference = report.difference_bytes(measured)
            sign = "-" if difference is not None and difference < 0 else "+"
            shown.append(format_bytes(report.predicted_peak_bytes))
            shown.append("-" if difference is None else sign + format_bytes(abs(difference)))
        return tuple(shown)

    header = ["memory", "device", "for MindSpore", "used peak", "with fragments"]
    if report.predicted_peak_bytes is not None:
        header += ["simulated peak", "difference"]
    groups = group_equal(report.memory.values(), cells, report.memory)
    return format_table(header, [(name_indices("worker", workers), *cells(first)) for workers, first in groups])


def _size(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else format_bytes(size_bytes)
