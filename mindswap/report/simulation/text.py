"""A simulated step as text and as JSON."""

from collections.abc import Callable, Sequence
from typing import Any

from mindswap.policy.words import name_indices
from mindswap.report.problems import escape
from mindswap.report.simulation.words import describe_cause, describe_holder, format_share, headline
from mindswap.report.tables import attributes, format_table, group_equal
from mindswap.simulator.summary import group_layer_rows
from mindswap.simulator.summary_model import SimulationReport, StageReport
from mindswap.units import common_unit, format_bytes, format_time

NUM_CAUSES = 8
NUM_HOLDERS = 8
STAGE_HEADER = ("pipeline stage", "peak", "static", "activations", "compute", "of which recompute", "bubble",
                "waits: copy out", "waits: copy in", "waits: collective", "swapped", "link out", "link in")  # fmt: skip
LAYER_HEADER = ("per micro-batch", "kept", "swapped", "recomputed", "copies", "forward", "backward", "recompute",
                "waited for its copies")  # fmt: skip


def format_simulation(report: SimulationReport, has_figures: bool = False) -> str:
    """Headline figures, then stages, the peak, layers and who causes waiting, equal rows once.

    Args:
        report: what was simulated.
        has_figures: list the figures of the device with their sources, too.
    """
    width = max(len(head.value) for head, *_ in headline(report))
    lines = [f"simulated step of {report.title} on {report.device_title}", ""]
    for head, value, remark in headline(report):
        lines.append(f"  {head.value:<{width}}  {value:>9}  {remark}".rstrip())
    lines += ["", _table(STAGE_HEADER, [row for _, row in stage_rows(report)]), ""]
    lines += [*_peak_lines(report.peak_stage), *filter(None, [report.outside]), ""]
    lines.append(_table(LAYER_HEADER, layer_rows(report)))
    lines += [
        f"copied out and never read back, for nothing: {format_bytes(row.out_only_bytes)}, {name}"
        for name, row in group_layer_rows(report.layers)
        if row.out_only_bytes
    ]
    lines.append("")
    if report.causes:
        lines.append("compute waits for, longest first (all stages and micro-batches):")
        lines += [f"    {format_time(c.exposed_ns):>8}  {describe_cause(c)}" for c in report.causes[:NUM_CAUSES]]
        lines += _rest([cause.exposed_ns for cause in report.causes[NUM_CAUSES:]], format_time) + [""]
    if has_figures:
        lines.append("figures of the device that were used:")
        width = max((len(figure.name) for figure in report.figures), default=0)
        lines += [f"    {figure.name:<{width}}  {figure.value}  ({figure.source})" for figure in report.figures]
    lines += [f"note: {note}" for note in report.notes]
    where = "" if has_figures else "; the figures of the device, with sources: --figures"
    lines.append(f"every figure above is simulated; no device was used{where}")
    return "\n".join(escape(line) for text in lines for line in text.split("\n"))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table without the columns in which nothing stands."""
    columns = [column for column in range(len(header)) if any(row[column] != "-" for row in rows)]
    return format_table([header[column] for column in columns], [[row[column] for column in columns] for row in rows])


def stage_rows(report: SimulationReport) -> list[tuple[StageReport, tuple[str, ...]]]:
    """The cells for `STAGE_HEADER`, stages with equal ones together, each with the first of its stages."""

    def cells(stage: StageReport) -> tuple[str, ...]:
        return _stage_cells(stage, report.timeline.step_time_ns)

    groups = group_equal(report.stages, cells, (stage.stage for stage in report.stages))
    return [(first, (name_indices("stage", stages), *cells(first))) for stages, first in groups]


def _stage_cells(stage: StageReport, step_ns: int) -> tuple[str, ...]:
    sizes = (stage.peak_bytes, stage.static_bytes, stage.memory.peak_bytes)
    times = (stage.compute_ns, stage.recompute_ns, stage.bubble_ns)
    waits = (stage.copy_out_ns, stage.copy_in_ns, stage.communication_ns)
    return (
        *map(format_bytes, sizes),
        *(format_time(time_ns) if time_ns else "-" for time_ns in (*times, *waits)),
        format_bytes(stage.swapped_bytes) if stage.swapped_bytes else "-",
        format_share(stage.offload_busy_ns, step_ns),
        format_share(stage.prefetch_busy_ns, step_ns),
    )


def layer_rows(report: SimulationReport) -> list[tuple[str, ...]]:
    """The cells for `LAYER_HEADER`, equal layers together, all sizes in one unit."""
    groups = group_layer_rows(report.layers)
    sizes = [(row.kept_bytes, row.swapped_bytes, row.recomputed_bytes) for _, row in groups]
    unit = common_unit(size for row in sizes for size in row)
    rows = []
    for (name, row), row_bytes in zip(groups, sizes, strict=True):
        times = (row.forward_ns, row.backward_ns, row.recompute_ns, row.exposed_ns)
        shown = [format_bytes(size, unit) if size else "-" for size in row_bytes]
        shown += [str(row.num_copies or "-"), *(format_time(time_ns) if time_ns else "-" for time_ns in times)]
        rows.append((name, *shown))
    return rows


def _peak_lines(stage: StageReport) -> list[str]:
    parts = [(size_bytes, name) for name, size_bytes in stage.static_parts if size_bytes]
    parts += [(holder.size_bytes, describe_holder(holder)) for holder in stage.holders[:NUM_HOLDERS]]
    lines = [f"at the peak of stage {stage.stage} the device holds:"]
    lines += [f"    {format_bytes(size_bytes):>10}  {what}" for size_bytes, what in parts]
    return lines + _rest([holder.size_bytes for holder in stage.holders[NUM_HOLDERS:]], format_bytes)


def _rest(amounts: Sequence[int], form: Callable[[int], str]) -> list[str]:
    return [f"    {form(sum(amounts)):>10}  {len(amounts)} more"] if amounts else []


def simulation_to_json(report: SimulationReport) -> dict[str, Any]:
    """The same as plain data: every stage and layer; bytes and ns."""
    return {
        "simulated": True,
        "title": report.title,
        "device": report.device_title,
        "device_figures": [vars(figure) for figure in report.figures],
        "step_time_ns": report.step_time_ns,
        "terms": [vars(term) for term in report.terms],
        **attributes(report, "tokens_per_s num_tokens num_cards mfu model_flops peak_flops peak_bytes"),
        "peak_stage": report.peak_stage.stage,
        **attributes(report, "budget_bytes fits outside_bytes exposed_copy_ns host_bytes_per_node"),
        "stages": [_stage_to_json(stage, report.timeline.step_time_ns) for stage in report.stages],
        "layers": [vars(row) for row in report.layers],
        "causes": [
            {**vars(cause), "cause": cause.cause.name.lower(), "layers": list(cause.layers)} for cause in report.causes
        ],
        "notes": list(report.notes),
    }


def _stage_to_json(stage: StageReport, step_ns: int) -> dict[str, Any]:
    whole = max(1, step_ns)
    return {
        "stage": stage.stage,
        "peak_bytes": stage.peak_bytes,
        "static_bytes": dict(stage.static_parts),
        "activation_peak_bytes": stage.memory.peak_bytes,
        "peak_moment": vars(stage.moment),
        "holders": [
            {**vars(holder), "kind": holder.kind.name.lower(), "layers": list(holder.layers)}
            for holder in stage.holders
        ],
        **attributes(stage, "compute_ns recompute_ns bubble_ns"),
        "exposed_copy_out_ns": stage.copy_out_ns,
        "exposed_copy_in_ns": stage.copy_in_ns,
        "exposed_communication_ns": stage.communication_ns,
        "copied_out_bytes": stage.swapped_bytes,
        "copied_in_bytes": stage.swapped_bytes,
        "link_out_use": stage.offload_busy_ns / whole,
        "link_in_use": stage.prefetch_busy_ns / whole,
        "host_bytes": stage.host_bytes,
    }
