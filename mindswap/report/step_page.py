"""Self-contained HTML page of a simulated step, light and dark, with a picture that can be zoomed."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from mindswap.report.html import html, render
from mindswap.report.simulation_text import (
    LAYER_HEADER,
    STAGE_HEADER,
    Head,
    describe_cause,
    describe_layers,
    describe_moment,
    fit_bars,
    format_share,
    headline,
    layer_rows,
    sample_memory,
    stage_rows,
)
from mindswap.report.timeline_bars import BAR_STYLES, MEMORY_STYLES, STATIC, BarKind, Bars, Lane, find_kinds
from mindswap.simulator.report_data import SimulationReport, StageReport
from mindswap.units import format_bytes, format_time

# Data of the script in the page: bars and memory of every stage, as compact columns of integers.

MAX_BARS = 20_000  # all stages; about 40 bytes each
MAX_POINTS = 8_000  # of memory, all stages
MIN_POINTS = 500  # of memory, each stage
MEMORY_BITS = 18  # of the peak; the unit is a power of two, as most sizes are multiples of one


@dataclass(frozen=True, eq=False)
class OverlayCurve:
    """Memory curve of a rank from MindSpore's backend, over the time of the simulated step."""

    name: str
    colour: str  # of the style sheet
    time_ns: np.ndarray  # int64, rising
    live_bytes: np.ndarray  # int64, from each of them on


Curves = Mapping[int, Sequence[OverlayCurve]]  # by stage
Card = tuple[str, str, str, str]


def page_data(report: SimulationReport, curves: Curves = MappingProxyType({})) -> dict[str, Any]:
    """Return the data of the page; times in ns, memory in `memory_unit_bytes`, starts relative to the previous one."""
    bars = fit_bars(report.timeline, [stage.stage for stage in report.stages], MAX_BARS)
    above = [part[part.lane == Lane.COMPUTE] for part in bars]  # of all stages, over the one that is shown
    labels = sorted({int(label) for part in bars for label in np.unique(part.label) if label >= 0})
    # -1, no label, is the last entry.
    number = np.full(len(report.timeline.program.labels) + 1, -1)
    number[labels] = np.arange(len(labels))
    unit_bytes = 1 << max(0, report.peak_bytes.bit_length() - MEMORY_BITS)
    num_points = max(MIN_POINTS, MAX_POINTS // len(report.stages))
    return {
        "step_ns": report.step_time_ns,
        "timeline_ns": report.timeline.step_time_ns,
        "terms": [[term.name, term.duration_ns] for term in report.terms if term.duration_ns],
        "budget_bytes": report.budget_bytes,
        "memory_unit_bytes": unit_bytes,
        "peak_stage": report.peak_stage.stage,
        "lanes": [lane.title for lane in Lane],
        "bar_titles": [BAR_STYLES[kind].title for kind in BarKind],
        "first_wait": int(BarKind.WAIT_COPY_OUT),
        "bubble": int(BarKind.BUBBLE),
        "memory_kinds": [[int(kind), style.title] for kind, style in MEMORY_STYLES.items()],
        "labels": [str(report.timeline.program.labels[label]) for label in labels],
        "stages": [
            {
                **_stage_data(report, stage, part, number, unit_bytes, num_points),
                "bar_legend": [(f"bar-{kind}", BAR_STYLES[kind].title) for kind in find_kinds(report, [part, *above])],
                "real": [_curve_data(curve, unit_bytes, num_points) for curve in curves.get(stage.stage, ())],
            }
            for stage, part in zip(report.stages, bars, strict=True)
        ],
    }


def _stage_data(
    report: SimulationReport, stage: StageReport, bars: Bars, number: np.ndarray, unit_bytes: int, num_points: int
) -> dict[str, Any]:
    time_ns, by_kind = sample_memory(stage.memory, report.step_time_ns, num_points)
    duration_ns = bars.end_ns - bars.start_ns
    levels = {kind: by_kind[kind] // unit_bytes for kind in MEMORY_STYLES}
    used = [(f"memory-{kind:d}", style.title) for kind, style in MEMORY_STYLES.items() if levels[kind].any()]
    return {
        "stage": stage.stage,
        "static_bytes": stage.static_bytes,
        "peak_ns": stage.memory.peak_ns,
        "peak_bytes": stage.peak_bytes,
        "peak_words": f"peak {format_bytes(stage.peak_bytes)}",
        "peak_moment": describe_moment(stage.moment),
        "bars": {
            **{name: bars[name].tolist() for name in ("lane", "kind", "layer", "micro_batch", "count")},
            "start": np.diff(bars.start_ns, prepend=0).tolist(),
            "duration": duration_ns.tolist(),
            "idle": (duration_ns - bars.busy_ns).tolist(),
            "label": number[bars.label].tolist(),
            "size": bars.size_bytes.tolist(),
        },
        "memory": {
            "time": np.diff(time_ns, prepend=0).tolist(),
            "kinds": [level.tolist() for level in levels.values()],
        },
        "memory_legend": [*used[::-1], *([("static", STATIC.title)] if stage.static_bytes else [])],
    }


def _curve_data(curve: OverlayCurve, unit_bytes: int, num_points: int) -> dict[str, Any]:
    """Reduce a curve to the maximum of each of `num_points` intervals, so that no peak is lost."""
    pieces = np.array_split(np.arange(len(curve.time_ns)), max(1, min(num_points, len(curve.time_ns))))
    kept = [int(piece[np.argmax(curve.live_bytes[piece])]) for piece in pieces if len(piece)]
    return {
        "name": curve.name,
        "colour": curve.colour,
        "time": np.diff(curve.time_ns[kept], prepend=0).tolist(),
        "level": (curve.live_bytes[kept] // unit_bytes).tolist(),
    }


NUM_HOLDERS = 24
NUM_CAUSES = 24
NO_DEVICE = "No device was used; every figure on this page is simulated."


def format_html(
    report: SimulationReport,
    intro: str = NO_DEVICE,
    kind: str = "simulated",
    curves: Curves = MappingProxyType({}),
    cards: Iterable[Card] = (),
    dry_run: Mapping[str, Any] | None = None,
) -> str:
    """Format the page; texts from the user's files are escaped.

    Args:
        report: the simulated step.
        intro: source of the figures.
        kind: short form of the source.
        curves: stage -> memory curves of the backend, drawn over the simulated one.
        cards: additional headline figures.
        dry_run: sections of a dry run, for `step.html`.
    """
    stage = report.peak_stage
    prefix = f"Stage {stage.stage}, at " if len(report.stages) > 1 else "At "
    # A "<" in the data could end the script element; in JSON it may be written as its number.
    data = json.dumps(page_data(report, curves), separators=(",", ":")).replace("<", "\\u003c")
    return render(
        "step.html",
        title=report.title,
        what=f"{kind} step",
        badge=kind,
        lead=f"One training step on {report.device_title}. {intro}",
        cards=[*_cards(report), *cards],
        remark="Simulated.",
        data=html(data),
        dry_run=dry_run,
        report=report,
        stage_header=STAGE_HEADER,
        stages=[(cells, _shares(stage_report)) for stage_report, cells in stage_rows(report)],
        step_ns=max(1, report.timeline.step_time_ns),
        terms=sorted((term for term in report.terms if term.duration_ns), key=lambda term: -term.duration_ns),
        moment=prefix + format_time(stage.memory.peak_ns) + ": " + describe_moment(stage.moment),
        parts=(["part", "size", "of the peak"], part_rows(stage)),
        held=list(_held(stage)),
        layers=(LAYER_HEADER, layer_rows(report)),
        causes=[(describe_cause(cause), cause.exposed_ns) for cause in report.causes[:NUM_CAUSES]],
        wait_colour=f"bar-{BarKind.WAIT_COPY_OUT:d}",
        share=format_share,
    )


def _cards(report: SimulationReport) -> Iterable[Card]:
    update_ns = sum(term.duration_ns for term in report.terms)
    for head, value, remark in headline(report):
        if head is Head.MOMENT:
            continue  # shown with the table of memory at the peak
        if head is Head.STEP_TIME:  # its parts are shown with the table of activities
            remark = f"{format_time(update_ns)} of it after the last operator" if update_ns else ""
        judged = "" if head is not Head.PEAK or report.fits is None else "good" if report.fits else "bad"
        yield head.value, value, remark, judged


def _shares(stage: StageReport) -> Sequence[tuple[int, str, int]]:
    """Return kind, name and time (ns) of all activities of the compute stream."""
    return (
        (int(BarKind.FORWARD), "compute", stage.compute_ns - stage.recompute_ns),
        (int(BarKind.RECOMPUTE), "recompute", stage.recompute_ns),
        (int(BarKind.WAIT_COPY_OUT), "waits for D2H", stage.copy_out_ns),
        (int(BarKind.WAIT_COPY_IN), "waits for H2D", stage.copy_in_ns),
        (int(BarKind.WAIT_COMMUNICATION), "waits for communication", stage.communication_ns),
        (int(BarKind.BUBBLE), "bubble", stage.bubble_ns),
    )


def part_rows(stage: StageReport) -> list[list[str]]:
    """Return the rows of the table of parts at the peak; they add up to the peak."""
    return [
        [part.title, format_bytes(size_bytes), format_share(size_bytes, stage.peak_bytes)]
        for part, size_bytes in stage.parts.items()
        if size_bytes
    ]


def _held(stage: StageReport) -> Iterable[tuple[int, str, str, str, str]]:
    """Yield the memory at the peak: bytes, producer, layers, purpose and colour."""
    for part, size_bytes in stage.static_parts.items():
        yield size_bytes, part.title, "", "static", "static"
    for holder in stage.holders[:NUM_HOLDERS]:
        colour = f"memory-{holder.kind:d}"
        yield holder.size_bytes, holder.label, describe_layers(holder.layers), holder.part.title, colour
    if remaining := stage.holders[NUM_HOLDERS:]:
        yield sum(holder.size_bytes for holder in remaining), f"{len(remaining)} more", "", "", "soft"
