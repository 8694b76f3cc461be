"""Report of a dry run as one HTML file: the page of `simulate`, overlaid with the memory curve of every rank."""

import numpy as np

from mindswap.features.dryrun.block_roles import LAYER
from mindswap.features.dryrun.memory_pool import DryRun
from mindswap.features.dryrun.report import (
    NOT_A_CARD,
    describe_basis,
    describe_position,
    dry_run_cards,
    part_rows,
    peak_rows,
    same_rank,
)
from mindswap.features.dryrun.stage_runs import DryRunReport, StageRun
from mindswap.report.html import html, memory_curve, render
from mindswap.report.step_page import OverlayCurve, format_html
from mindswap.simulator.program import OpKind
from mindswap.simulator.report_data import SimulationReport

INTRO = (
    "Times and coloured areas are simulated; lines over them are memory as MindSpore's own Ascend backend has it in a "
    "dry run, without a card. A line has no times: operators that both know lie on each other, and the simulated "
    "workspace is added, which a dry run does not know."
)
# Backward operators do not name their layer, so backward is aligned at this number of positions.
NUM_ANCHORS = 9


def format_dry_run_html(report: DryRunReport, other: DryRunReport | None = None) -> str:
    """Return the HTML page; texts from the user's files are escaped."""
    stages = [
        {
            "rank": stage.run.rank,
            "stage": stage.stage,
            "place": f"{describe_position(stage.position)} ({describe_basis(stage)})",
            "curve": html("" if _has_overlay(report, stage) else standalone_curve(stage)),
            "parts": part_rows(report, stage, same_rank(other, stage)),
        }
        for stage in report.stages
    ]
    sections = {"peaks": peak_rows(report, other), "stages": stages, "notes": (*report.notes, NOT_A_CARD)}
    cards = dry_run_cards(report)
    if report.simulated is not None:
        curves = {stage.stage: _curves(report, stage.stage, other) for stage in report.stages}
        return format_html(report.simulated, INTRO, "simulated and dry run", curves, cards, sections)
    texts = {"title": report.title, "what": "dry run", "badge": "dry run", "remark": ""}
    lead = "On MindSpore's Ascend backend, without a card."
    return render("step.html", **texts, lead=lead, cards=cards, dry_run=sections, report=None)


def _has_overlay(report: DryRunReport, stage: StageRun) -> bool:
    """Return whether the curve is drawn over the simulation: all layers ran, and the step was simulated."""
    return report.simulated is not None and stage.num_layers in stage.runs


def standalone_curve(stage: StageRun) -> str:
    """Return an SVG of the memory curve of the longest run, for runs that are not drawn over the simulation."""
    shares, live_bytes = dry_run_curve(stage.run)
    of = f", {max(stage.runs)} of {stage.num_layers} layers" if stage.num_layers not in stage.runs else ""
    label = f"memory of rank {stage.run.rank} by operators in the order of launch, the optimizer at the end{of}"
    return memory_curve(shares / max(float(shares.max(initial=0)), 1e-9), live_bytes, label)


def _curves(report: DryRunReport, number: int, other: DryRunReport | None) -> list[OverlayCurve]:
    found = []
    for each, colour, name in ((report, "real", "dry run"), (other, "other-real", other.title if other else "")):
        for stage in each.stages if each else ():
            if stage.stage == number and report.simulated is not None and _has_overlay(report, stage):
                time_ns, live_bytes = align_to_simulation(stage.run, report.simulated, number)
                live_bytes = live_bytes + report.workspace_bytes(stage)
                found.append(OverlayCurve(f"{name}, rank {stage.run.rank}", colour, time_ns, live_bytes))
    return found


def align_to_simulation(run: DryRun, simulated: SimulationReport, stage: int) -> tuple[np.ndarray, np.ndarray]:
    """Map the memory curve of a dry run to the time axis of the simulated step.

    Anchors are the middle of each layer's forward of each micro-batch, and `NUM_ANCHORS` positions of backward by
    fraction of its operators. Between anchors, time is interpolated linearly over ticks; the optimizer is at the end.

    Returns:
        Time in ns and live memory in bytes of each change, two arrays of equal length.
    """
    program, timeline = simulated.timeline.program, simulated.timeline
    stage_ops = np.arange(program.stage_starts[stage], program.stage_starts[stage + 1])
    is_forward, is_backward = (program.ops.kind[stage_ops] == kind for kind in (OpKind.FORWARD, OpKind.BACKWARD))
    num_pieces = int(program.ops.micro_batch.max(initial=0)) + 1
    forward: dict[int, list[int]] = {}
    backward: list[int] = []
    for tick, name in sorted(run.operators.items()):
        match = LAYER.search(name)
        if match and name.startswith("Gradients/"):
            backward.append(tick)
        elif match and not name.startswith("recompute_"):
            forward.setdefault(int(match[1]), []).append(tick)
    begin, points = _memory_points(run)
    anchors = [(begin, 0), (max((begin, *run.operators)), simulated.step_time_ns)]
    for number, ticks in forward.items():
        start_ns = timeline.op_start_ns[stage_ops[is_forward & (program.ops.layer[stage_ops] == number)]]
        anchors += _anchor_points(np.array(ticks), start_ns, num_pieces, [0.5])
    positions = np.linspace(0, 1, NUM_ANCHORS).tolist()
    anchors += _anchor_points(
        np.array(backward),
        timeline.op_start_ns[stage_ops[is_backward & (program.ops.layer[stage_ops] >= 0)]],
        num_pieces,
        positions,
    )
    ticks, time_ns = np.array(sorted(anchors), dtype=np.int64).T
    point_time_ns = np.interp(points[:, 0], ticks, np.maximum.accumulate(time_ns))
    return point_time_ns.astype(np.int64), points[:, 1]


def _anchor_points(
    ticks: np.ndarray, time_ns: np.ndarray, num_pieces: int, positions: list[float]
) -> list[tuple[int, int]]:
    """Return (tick, time in ns) pairs: split both into equal pieces and match the same fractions of each piece."""
    if min(len(ticks), len(time_ns)) < num_pieces:
        return []
    pairs = zip(np.array_split(ticks, num_pieces), np.array_split(np.sort(time_ns), num_pieces), strict=True)
    return [
        (int(own[int(position * (len(own) - 1))]), int(times[int(position * (len(times) - 1))]))
        for own, times in pairs
        for position in positions
    ]


def _memory_points(run: DryRun) -> tuple[int, np.ndarray]:
    """Return the first tick of the step, and (tick, live bytes) of each change from there on, shape (n, 2)."""
    begin = min((tick for tick, name in run.operators.items() if "/" in name and "/data-" not in name), default=0)
    points = np.array(run.curve, dtype=np.int64).reshape(-1, 2)
    return begin, points[points[:, 0] >= begin]


def dry_run_curve(run: DryRun) -> tuple[np.ndarray, np.ndarray]:
    """Return the memory curve of a step: the fraction of ticks (1 at the end of backward) and live bytes."""
    begin, points = _memory_points(run)
    end = max((tick for tick, name in run.operators.items() if name.startswith("Gradients/")), default=begin)
    span = max(end - begin, 1)
    return (points[:, 0] - begin) / span, points[:, 1]
