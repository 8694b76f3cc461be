"""A simulated step as one HTML file: no requests, light and dark, the picture can be zoomed."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np

from mindswap.report.html_parts import card, list_items, page, read_part, section, table
from mindswap.report.simulation.bars import (
    BAR_STYLES,
    MEMORY_STYLES,
    STATIC,
    BarKind,
    Bars,
    Lane,
    find_kinds,
    only_bars,
)
from mindswap.report.simulation.text import LAYER_HEADER, STAGE_HEADER, layer_rows, stage_rows
from mindswap.report.simulation.words import (
    Head,
    describe_cause,
    describe_layers,
    describe_moment,
    fit_bars,
    format_share,
    headline,
    sample_memory,
)
from mindswap.simulator.summary_model import SimulationReport, StageReport
from mindswap.units import format_bytes, format_time

# What the script of the HTML report draws: bars and memory of every stage as short columns of integers.

MAX_BARS = 20_000  # all stages; about 40 bytes each
MAX_POINTS = 8_000  # of memory, all stages
MIN_POINTS = 500  # of memory, each stage
MEMORY_BITS = 18  # of the peak; the unit is a power of two, as most sizes are multiples of one


@dataclass(frozen=True, eq=False)
class RealCurve:
    """Memory of a rank as MindSpore's own backend has it, over the time of the simulated step."""

    name: str
    colour: str  # of the style sheet
    time_ns: np.ndarray  # int64, rising
    live_bytes: np.ndarray  # int64, from each of them on


@dataclass(frozen=True, eq=False)
class DryRunParts:
    """Parts that a dry run adds to the page."""

    kind: str  # of figures
    intro: str
    cards: str  # HTML
    sections: str  # HTML
    curves: Mapping[int, Sequence[RealCurve]] = field(default_factory=dict)  # by stage


SIMULATED = DryRunParts("simulated", "No device was used; every figure on this page is simulated.", "", "")


def page_data(report: SimulationReport, curves: Mapping[int, Sequence[RealCurve]] = SIMULATED.curves) -> dict[str, Any]:
    """Plain data; times in ns, memory in units of `memory_unit_bytes`, starts as differences to the one before."""
    bars = fit_bars(report.timeline, [stage.stage for stage in report.stages], MAX_BARS)
    above = [only_bars(part, part.lane == Lane.COMPUTE) for part in bars]  # of all stages, over the one that is shown
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
            "lane": bars.lane.tolist(),
            "kind": bars.kind.tolist(),
            "start": np.diff(bars.start_ns, prepend=0).tolist(),
            "duration": duration_ns.tolist(),
            "idle": (duration_ns - bars.busy_ns).tolist(),
            "label": number[bars.label].tolist(),
            "layer": bars.layer.tolist(),
            "micro_batch": bars.micro_batch.tolist(),
            "count": bars.count.tolist(),
            "size": bars.size_bytes.tolist(),
        },
        "memory": {
            "time": np.diff(time_ns, prepend=0).tolist(),
            "kinds": [level.tolist() for level in levels.values()],
        },
        "memory_legend": [*used[::-1], *([("static", STATIC.title)] if stage.static_bytes else [])],
    }


def _curve_data(curve: RealCurve, unit_bytes: int, num_points: int) -> dict[str, Any]:
    """A curve with the highest point of each of a number of pieces, so that no peak is lost."""
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


def format_html(report: SimulationReport, dry_run: DryRunParts = SIMULATED) -> str:
    """The page as text, with the parts of a dry run in it; whatever is from the user's files is escaped."""
    stage = report.peak_stage
    which = f"Stage {stage.stage}, at " if len(report.stages) > 1 else "At "
    # A "<" in the data could end the script element; in JSON it may be written as its number.
    data = json.dumps(page_data(report, dry_run.curves), separators=(",", ":")).replace("<", "\\u003c")
    figures = [(escape(figure.name), escape(figure.value), escape(figure.source)) for figure in report.figures]
    moment = which + format_time(stage.memory.peak_ns) + ": " + describe_moment(stage.moment)
    body = [
        read_part("step.html"),
        dry_run.sections,
        section("Where the time goes", _stage_table(report), _terms(report)),
        section("What fills the memory at the peak", f"<p>{escape(moment)}</p>", _holder_table(stage)),
        section("Layers", table(LAYER_HEADER, [tuple(map(escape, row)) for row in layer_rows(report)])),
        section("What compute waits for", _cause_table(report)),
        section("Figures of the device that were used", table(("figure", "value", "source"), figures, (1, 2))),
        section("Notes", f"<ul>{list_items(report.notes)}</ul>") if report.notes else "",
    ]
    lead = f"One training step on {report.device_title}. {dry_run.intro}"
    cards = [*_cards(report), dry_run.cards]
    scripts = (
        f'<script type="application/json" id="data">{data}</script>\n<script>\n{read_part("script.js")}\n</script>'
    )
    return page(report.title, f"{dry_run.kind} step", dry_run.kind, lead, cards, body, "Simulated.", scripts)


def _cards(report: SimulationReport) -> Iterable[str]:
    for head, value, remark in headline(report):
        if head is Head.MOMENT:
            continue  # stands with the table of what fills the memory
        if head is Head.STEP_TIME:  # its parts stand with the table of where the time goes
            remark = f"{format_time(_update_ns(report))} of it after the last operator" if _update_ns(report) else ""
        judged = "" if head is not Head.PEAK or report.fits is None else "good" if report.fits else "bad"
        yield card(head.value, value, remark, judged)


def _update_ns(report: SimulationReport) -> int:
    return sum(term.duration_ns for term in report.terms)


def _terms(report: SimulationReport) -> str:
    """Work after the last operator, longest first."""
    terms = sorted((term for term in report.terms if term.duration_ns), key=lambda term: -term.duration_ns)
    words = "; ".join(f"{format_time(term.duration_ns)} {term.name}" for term in terms)
    return f'<p class="hint">After the last operator: {escape(words)}</p>' if terms else ""


def _stage_table(report: SimulationReport) -> str:
    header = [STAGE_HEADER[0], "compute, waiting", *STAGE_HEADER[1:]]
    rows = [
        (escape(name), _share_bar(stage, report.timeline.step_time_ns), *map(escape, cells))
        for stage, (name, *cells) in stage_rows(report)
    ]
    return table(header, rows, text_columns=(1,))


def _share_bar(stage: StageReport, step_ns: int) -> str:
    parts = (
        (BarKind.FORWARD, "compute", stage.compute_ns - stage.recompute_ns),
        (BarKind.RECOMPUTE, "recompute", stage.recompute_ns),
        (BarKind.WAIT_COPY_OUT, "waits for copies out", stage.copy_out_ns),
        (BarKind.WAIT_COPY_IN, "waits for copies in", stage.copy_in_ns),
        (BarKind.WAIT_COMMUNICATION, "waits for communication", stage.communication_ns),
        (BarKind.BUBBLE, "bubble", stage.bubble_ns),
    )
    spans = "".join(
        f'<i style="width:{100 * time_ns / max(1, step_ns):.2f}%;background:var(--bar-{kind:d})" '
        f'title="{name}: {format_time(time_ns)}, {format_share(time_ns, step_ns)}"></i>'
        for kind, name, time_ns in parts
        if time_ns
    )
    return f'<div class="share">{spans}</div>'


def _holder_table(stage: StageReport) -> str:
    held = [(size_bytes, escape(name), "", "static", "var(--static)") for name, size_bytes in stage.static_parts]
    for holder in stage.holders[:NUM_HOLDERS]:
        colour = f"var(--memory-{holder.kind:d})"
        kind = MEMORY_STYLES[holder.kind].title
        held.append((holder.size_bytes, escape(holder.label), describe_layers(holder.layers), kind, colour))
    rest = stage.holders[NUM_HOLDERS:]
    if rest:
        held.append((sum(holder.size_bytes for holder in rest), f"{len(rest)} more", "", "", "var(--soft)"))
    largest = max((size_bytes for size_bytes, *_ in held), default=0)
    rows = [
        (label, place, kind, _meter(size_bytes, largest, colour), format_bytes(size_bytes),
         format_share(size_bytes, stage.peak_bytes))
        for size_bytes, label, place, kind, colour in held
        if size_bytes
    ]  # fmt: skip
    return table(("made by", "where", "what for", "", "size", "of the peak"), rows, text_columns=(0, 1, 2, 3))


def _meter(part: int, whole: int, colour: str) -> str:
    return f'<i class="meter" style="width:{160 * part / max(1, whole):.1f}px;background:{colour}"></i>'


def _cause_table(report: SimulationReport) -> str:
    if not report.causes:
        return "<p>Compute waits for no copy.</p>"
    total = sum(cause.exposed_ns for cause in report.causes)
    longest_ns, colour = report.causes[0].exposed_ns, f"var(--bar-{BarKind.WAIT_COPY_OUT:d})"
    rows = [
        (escape(describe_cause(cause)), _meter(cause.exposed_ns, longest_ns, colour),
         format_time(cause.exposed_ns), format_share(cause.exposed_ns, total))
        for cause in report.causes[:NUM_CAUSES]
    ]  # fmt: skip
    header = ("all stages and micro-batches, longest first", "", "exposed", "of all")
    return table(header, rows, text_columns=(0, 1))
