"""Report of a dry run as text and JSON, with the simulated step for comparison."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from mindswap.features.dryrun.memory_pool import DryRun, Kernel
from mindswap.features.dryrun.phases import StepPosition
from mindswap.features.dryrun.stage_runs import DryRunReport, StageRun
from mindswap.report.problems import escape
from mindswap.report.simulation_text import describe_budget, describe_moment
from mindswap.report.tables import NOTHING, attributes, format_table
from mindswap.simulator.memory_parts import MemoryPart
from mindswap.units import format_bytes, format_count, format_difference

NUM_CELLS = 6
MIB = 1 << 20
NOT_A_CARD = (
    "a dry run launches no kernel: no times, no values, and nothing runs out of memory; it knows no workspaces: the "
    "one shown is simulated"
)
Rows = tuple[list[str], list[list[str]]]


def format_dry_run(report: DryRunReport, other: DryRunReport | None = None) -> str:
    """Format peak memory, live memory at the peak and copies of every stage; with `other`, both side by side."""
    lines = [f"dry run of {report.title} on MindSpore's Ascend backend, without a card", ""]
    lines.append(format_table(*peak_rows(report, other)))
    for stage in report.stages:
        lines += ["", *_stage_lines(report, stage, same_rank(other, stage))]
    lines += ["", f"needs {format_bytes(report.peak_bytes)} {_verdict(report)}"]
    lines += [f"note: {note}" for note in report.notes]
    if other is not None:
        lines += [f"note: {other.title}: {note}" for note in other.notes]
    libraries = "CANN's own libraries" if report.has_cann else "stand-ins for CANN's libraries"
    lines += [f"ran with {libraries}; {NOT_A_CARD}"]
    return "\n".join(escape(line) for text in lines for line in text.split("\n"))


def dry_run_cards(report: DryRunReport) -> list[tuple[str, str, str, str]]:
    """Return the main figures for the top of a page: name, value, remark, verdict."""
    verdict = "" if report.budget_bytes is None else "good" if report.fits else "bad"
    return [
        ("dry run: peak", _mib(report.used_peak_bytes), "without fragments", ""),
        ("dry run: with fragments", _mib(report.actual_peak_bytes), "", ""),
        ("dry run: needs", format_bytes(report.peak_bytes), _verdict(report), verdict),
    ]


def same_rank(other: DryRunReport | None, stage: StageRun) -> StageRun | None:
    """Return the run of the same rank in another dry run; None if it has none."""
    return next((each for each in other.stages if each.run.rank == stage.run.rank), None) if other else None


def peak_rows(report: DryRunReport, other: DryRunReport | None) -> Rows:
    """Return header and rows of the table of peaks, one row per rank."""
    header = ["rank (stage)", "peak", "with fragments", "workspace, simulated", "simulate", "difference"]
    if other is not None:
        header += [other.title, "with fragments"]
    rows = []
    for stage in report.stages:
        simulated, match = simulated_peak(report, stage), same_rank(other, stage)
        row = [f"{stage.run.rank} ({stage.stage})", _mib(stage.used_peak_bytes), _mib(stage.actual_peak_bytes)]
        if simulated is None:
            row += [NOTHING, NOTHING, NOTHING]
        else:
            row += [_mib(report.workspace_bytes(stage)), _mib(simulated)]
            row.append(format_difference(simulated, stage.used_peak_bytes))
        if other is not None:
            row += [_mib(match.used_peak_bytes), _mib(match.actual_peak_bytes)] if match else [NOTHING, NOTHING]
        rows.append(row)
    return header, rows


def simulated_peak(report: DryRunReport, stage: StageRun) -> int | None:
    """Return the simulated peak without workspace, as a dry run measures it; None if not simulated."""
    simulated = report.simulated_stage(stage)
    return simulated.peak_bytes - report.workspace_bytes(stage) if simulated else None


def part_rows(report: DryRunReport, stage: StageRun, other: StageRun | None) -> Rows:
    """Return header and rows of the table of live memory at the peak, one row per part."""
    columns = {"dry run": stage.part_bytes}
    if simulated := report.simulated_part_bytes(stage):
        columns["simulate"] = simulated
        columns["difference"] = {part: simulated[part] - stage.part_bytes[part] for part in MemoryPart}
    if other:
        columns["against"] = other.part_bytes
    sizes = {part: [part_bytes[part] for part_bytes in columns.values()] for part in MemoryPart}
    rows = [[part.title, *map(_mib, row)] for part, row in sizes.items() if any(map(_round_mib, row))]
    return ["live at the peak", *columns], rows


def _stage_lines(report: DryRunReport, stage: StageRun, other: StageRun | None) -> list[str]:
    run = stage.run
    lines = [f"rank {run.rank}, peak: {describe_position(stage.position)}", f"    {describe_basis(stage)}"]
    if simulated := report.simulated_stage(stage):
        lines.append(f"    simulated peak: {describe_moment(simulated.moment)}")
    lines += [f"    {line}" for line in format_table(*part_rows(report, stage, other)).split("\n")]
    if cells := [(name, size) for name, size in saved_cells(run).most_common(NUM_CELLS) if size >= MIB]:
        shown = ", ".join(f"{name} {_mib(size)}" for name, size in cells)
        lines.append(f"    saved activations by cell, largest first: {shown}")
    return [*lines, *(f"    {line}" for line in _copy_lines(run))]


def saved_cells(run: DryRun) -> Counter[str]:
    """Return the bytes of saved activations at the peak by cell, summed over layers."""
    sums: Counter[str] = Counter()
    for block in run.live_blocks():
        if run.part(block) is MemoryPart.SAVED_ACTIVATIONS:
            sums[block.cell[1] if block.cell else "outside the layers"] += block.size_bytes
    return sums


def _copy_lines(run: DryRun) -> list[str]:
    if not run.offload_kernels and not run.prefetch_kernels:
        return ["copies: none"]
    return [
        f"D2H copies: {_describe_copies(run, run.offload_kernels)}",
        f"H2D copies: {_describe_copies(run, run.prefetch_kernels)}, {_mib(run.prefetched_bytes)}",
    ]


def _describe_copies(run: DryRun, copies: list[Kernel]) -> str:
    """Format the number of copies, and the positions of the first and the last in launch order."""
    if not copies:
        return "0"
    first, last = (run.kernels.index(copies[end]) + 1 for end in (0, -1))
    return f"{len(copies)}, the first as operator {first}, the last as operator {last} of {len(run.kernels)}"


def _verdict(report: DryRunReport) -> str:
    """Format the comparison with the budget: `with workspace: fits in 54.0 GiB with 6.9 GiB to spare`."""
    counted = "with fragments and workspace" if report.counts_fragments else "with workspace"
    budget = describe_budget(report.peak_bytes, report.budget_bytes, report.margin_permille)
    return ": ".join(filter(None, [counted, budget]))


def describe_position(position: StepPosition) -> str:
    """Format a position: `forward, layer 3: Default/.../MatMul-op3`."""
    where = position.where if position.layer is None else f"layer {position.layer}"
    return f"{'backward' if position.is_backward else 'forward'}, {where}: {position.operator}"


def describe_basis(stage: StageRun) -> str:
    """Format how the memory of a stage is known: measured with all layers, or extrapolated, and with what error."""
    if stage.is_exact:
        return f"exact: all {format_count(stage.num_layers, 'layer')}"
    depths = " and ".join(map(str, sorted(stage.runs)))
    if len(stage.runs) == 1:
        return f"{depths} of {format_count(stage.num_layers, 'layer')} alone"
    text = f"extrapolated to {format_count(stage.num_layers, 'layer')} from depths {depths}"
    if stage.error is None:
        return f"{text}; not simulated, so the error is unknown"
    return f"{text}; the simulator's extrapolation of the same depths is {stage.error:.1%} off"


def _titled(part_bytes: Mapping[MemoryPart, int]) -> dict[str, int]:
    return {part.title: size_bytes for part, size_bytes in part_bytes.items()}


def _round_mib(size_bytes: int) -> int:
    return round(size_bytes / MIB)


def _mib(size_bytes: int | None) -> str:
    return NOTHING if size_bytes is None else f"{_round_mib(size_bytes)} MiB"


def dry_run_to_json(report: DryRunReport) -> dict[str, Any]:
    """Return the report as plain data for `--json`; sizes in bytes."""
    return {
        "dry_run": True,
        **attributes(report, "title num_layers depths has_cann used_peak_bytes actual_peak_bytes peak_bytes"),
        **attributes(report, "budget_bytes counts_fragments fits"),
        "stages": [_stage_to_json(report, stage) for stage in report.stages],
        "notes": list(report.notes),
    }


def _stage_to_json(report: DryRunReport, stage: StageRun) -> dict[str, Any]:
    run = stage.run
    return {
        "stage": stage.stage,
        "rank": run.rank,
        **attributes(stage, "num_layers used_peak_bytes actual_peak_bytes is_exact"),
        "basis": describe_basis(stage),
        "extrapolation_error": stage.error,
        "workspace_bytes": report.workspace_bytes(stage),
        "simulated_peak_bytes": simulated_peak(report, stage),
        "moment": {
            "phase": "backward" if stage.position.is_backward else "forward",
            **attributes(stage.position, "where layer operator"),
        },
        "parts": _titled(stage.part_bytes),
        "simulated_parts": _titled(report.simulated_part_bytes(stage)) or None,
        "saved_by_cell": dict(saved_cells(run).most_common()),
        "runs": [
            {
                "num_layers": depth,
                **attributes(each, "used_peak_bytes actual_peak_bytes"),
                "copies_out": len(each.offload_kernels),
                "copies_back": len(each.prefetch_kernels),
                "copied_bytes": each.prefetched_bytes,
                "set_lines": list(each.set_lines),
                "wall_s": round(each.wall_s, 1),
                "cpu_s": round(each.cpu_s, 1),
            }
            for depth, each in sorted(stage.runs.items())
        ],
    }
