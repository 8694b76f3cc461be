"""Report of a simulated step as text and JSON."""

from collections.abc import Callable, Sequence
from typing import Any

from mindswap.report.problems import escape
from mindswap.report.simulation_text import (
    LAYER_HEADER,
    STAGE_HEADER,
    describe_cause,
    describe_holder,
    headline,
    layer_rows,
    stage_rows,
)
from mindswap.report.tables import attributes, format_table
from mindswap.simulator.report_data import SimulationReport, StageReport
from mindswap.simulator.summary import group_layer_rows
from mindswap.units import format_bytes, format_time

NUM_CAUSES = 8
NUM_HOLDERS = 8


def format_simulation(report: SimulationReport, has_figures: bool = False) -> str:
    """Format headline figures, stages, peak memory, layers and causes of waits, equal rows once.

    Args:
        report: the simulated step.
        has_figures: also list the figures of the device with their sources.
    """
    width = max(len(head.value) for head, *_ in headline(report))
    lines = [f"simulated step of {report.title} on {report.device_title}", ""]
    for head, value, remark in headline(report):
        lines.append(f"  {head.value:<{width}}  {value:>9}  {remark}".rstrip())
    lines += ["", _table(STAGE_HEADER, [row for _, row in stage_rows(report)]), ""]
    lines += [*_peak_lines(report.peak_stage), *filter(None, [report.outside]), ""]
    lines.append(_table(LAYER_HEADER, layer_rows(report)))
    lines += [
        f"offloaded but never prefetched: {format_bytes(row.out_only_bytes)}, {name}"
        for name, row in group_layer_rows(report.layers)
        if row.out_only_bytes
    ]
    lines.append("")
    if report.causes:
        lines.append("compute waits for, longest first (all stages and micro-batches):")
        lines += [f"    {format_time(c.exposed_ns):>8}  {describe_cause(c)}" for c in report.causes[:NUM_CAUSES]]
        lines += [*_remainder_line([cause.exposed_ns for cause in report.causes[NUM_CAUSES:]], format_time), ""]
    if has_figures:
        lines.append("figures of the device that were used:")
        width = max((len(figure.name) for figure in report.figures), default=0)
        lines += [f"    {figure.name:<{width}}  {figure.value}  ({figure.source})" for figure in report.figures]
    lines += [f"note: {note}" for note in report.notes]
    hint = "" if has_figures else "; the figures of the device, with sources: --figures"
    lines.append(f"every figure above is simulated; no device was used{hint}")
    return "\n".join(escape(line) for text in lines for line in text.split("\n"))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table without empty columns."""
    columns = [column for column in range(len(header)) if any(row[column] != "-" for row in rows)]
    return format_table([header[column] for column in columns], [[row[column] for column in columns] for row in rows])


def _peak_lines(stage: StageReport) -> list[str]:
    lines = [f"at the peak of stage {stage.stage} the device holds:"]
    lines += [f"    {format_bytes(size):>10}  {part.title}" for part, size in stage.parts.items() if size]
    lines.append("of these, without static memory, by operator:")
    shown, remaining = stage.holders[:NUM_HOLDERS], stage.holders[NUM_HOLDERS:]
    lines += [f"    {format_bytes(holder.size_bytes):>10}  {describe_holder(holder)}" for holder in shown]
    return lines + _remainder_line([holder.size_bytes for holder in remaining], format_bytes)


def _remainder_line(amounts: Sequence[int], form: Callable[[int], str]) -> list[str]:
    return [f"    {form(sum(amounts)):>10}  {len(amounts)} more"] if amounts else []


def simulation_to_json(report: SimulationReport) -> dict[str, Any]:
    """Return the report as JSON data: every stage and layer; sizes in bytes, times in ns."""
    return {
        "simulated": True,
        "title": report.title,
        "device": report.device_title,
        "device_figures": [vars(figure) for figure in report.figures],
        "step_time_ns": report.step_time_ns,
        "terms": [vars(term) for term in report.terms],
        **attributes(
            report, "tokens_per_s num_tokens num_cards mfu model_flops peak_flops peak_bytes actual_peak_bytes"
        ),
        "peak_stage": report.peak_stage.stage,
        **attributes(report, "budget_bytes fits outside_bytes exposed_copy_ns host_bytes_per_node"),
        "stages": [
            _stage_to_json(stage, actual_bytes, report.timeline.step_time_ns)
            for stage, actual_bytes in zip(report.stages, report.actual_peaks_bytes, strict=True)
        ],
        "layers": [vars(row) for row in report.layers],
        "causes": [
            {**vars(cause), "cause": cause.cause.name.lower(), "layers": list(cause.layers)} for cause in report.causes
        ],
        "notes": list(report.notes),
    }


def _stage_to_json(stage: StageReport, actual_peak_bytes: int, step_ns: int) -> dict[str, Any]:
    duration_ns = max(1, step_ns)
    return {
        "stage": stage.stage,
        "peak_bytes": stage.peak_bytes,
        "actual_peak_bytes": actual_peak_bytes,
        "static_bytes": {part.title: size_bytes for part, size_bytes in stage.static_parts.items()},
        "parts": {part.title: size_bytes for part, size_bytes in stage.parts.items()},
        "activation_peak_bytes": stage.memory.peak_bytes,
        "peak_moment": vars(stage.moment),
        "holders": [
            {
                **vars(holder),
                "kind": holder.kind.name.lower(),
                "part": holder.part.title,
                "layers": list(holder.layers),
            }
            for holder in stage.holders
        ],
        **attributes(stage, "compute_ns recompute_ns bubble_ns"),
        "exposed_copy_out_ns": stage.copy_out_ns,
        "exposed_copy_in_ns": stage.copy_in_ns,
        "exposed_communication_ns": stage.communication_ns,
        "copied_out_bytes": stage.swapped_bytes,
        "copied_in_bytes": stage.swapped_bytes,
        "link_out_use": stage.offload_busy_ns / duration_ns,
        "link_in_use": stage.prefetch_busy_ns / duration_ns,
        "host_bytes": stage.host_bytes,
    }
