"""The logs of the workers against the policy, as text and as JSON."""

from typing import Any

from mindswap.logs.compare import Finding, FindingLevel, LogReport, MemoryRow
from mindswap.report.tables import format_indices, format_table
from mindswap.units import format_bytes, format_count

__all__ = ["format_logs", "logs_to_json"]


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
                "worker": row.worker,
                "device_bytes": row.statistics.device_bytes,
                "available_bytes": row.statistics.available_bytes,
                "used_peak_bytes": row.statistics.used_peak_bytes,
                "actual_peak_bytes": row.statistics.actual_peak_bytes,
                "difference_bytes": row.difference_bytes,
            }
            for row in report.memory
        ],
    }


def _format_finding(finding: Finding) -> list[str]:
    who = f"{format_indices('worker', finding.workers)}: " if finding.workers else ""
    level = finding.level.value
    first = f"{who}{level}: {finding.message}" if finding.level is not FindingLevel.NOTE else f"{who}{finding.message}"
    return [first, f"    fix: {finding.fix}"] if finding.fix else [first]


def _format_memory(report: LogReport) -> str:
    """Measured memory; the difference to the prediction only if there is one."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for row in report.memory:
        groups.setdefault(_cells(row, report.predicted_peak_bytes), []).append(row.worker)
    header = ["memory", "device", "for MindSpore", "used peak", "with fragments"]
    if report.predicted_peak_bytes is not None:
        header += ["simulated peak", "difference"]
    rows = [(format_indices("worker", sorted(workers)), *cells) for cells, workers in groups.items()]
    return format_table(header, rows)


def _cells(row: MemoryRow, predicted: int | None) -> tuple[str, ...]:
    statistics = row.statistics
    cells = [
        _size(statistics.device_bytes),
        _size(statistics.available_bytes),
        _size(statistics.used_peak_bytes),
        _size(statistics.actual_peak_bytes),
    ]
    if predicted is not None:
        difference = row.difference_bytes
        sign = "-" if difference is not None and difference < 0 else "+"
        cells += [_size(predicted), "-" if difference is None else sign + format_bytes(abs(difference))]
    return tuple(cells)


def _size(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else format_bytes(size_bytes)
