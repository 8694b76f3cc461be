"""Picture of a simulated step: what each stream does, above the memory over time."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten, wrap
from typing import TYPE_CHECKING

import numpy as np

from mindswap.report.figures import load_figure_class, save_figure
from mindswap.report.simulation.bars import (
    BAR_STYLES,
    BUDGET,
    MEMORY_STYLES,
    STATIC,
    BarKind,
    Bars,
    Lane,
    Style,
    find_kinds,
    list_bars,
    only_bars,
)
from mindswap.report.simulation.words import (
    describe_budget,
    describe_layers,
    describe_moment,
    device_line,
    join_bars,
    sample_memory,
)
from mindswap.simulator.summary_model import SimulationReport, StageReport
from mindswap.units import format_bytes, format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PIXELS = 2500  # of the step; what is narrower cannot be seen
MAX_POINTS = 4000
MIN_EDGED_PIXELS = 8  # edges would hide narrower bars
NUM_HOLDERS = 7
BAR_HEIGHT = 0.76
WIDTH = 13.0  # inches
LEFT, RIGHT, SIDE = 0.105, 0.745, 0.762  # of the width: the panels, and where the words beside them begin
TIME_SCALES = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1, "ns"))

# A budget that is so many times the peak is said and not drawn: the memory would be a thin line below it.
FAR_BUDGET = 3


def plot_simulation(report: SimulationReport, path: Path) -> None:
    """Streams of the stage, or of a pipeline the compute stream of all stages, above the memory that is highest.

    The ending of the path says the format.

    Raises:
        DataError: if matplotlib is missing or the file cannot be written.
    """
    shown = report.peak_stage
    is_pipeline = len(report.stages) > 1
    rows = _pipeline_rows(report) if is_pipeline else _stream_rows(report)
    caption = wrap(f"Simulated, no device was used. {device_line(report)}", 190)
    heights = (0.88, 0.36 * len(rows) + 0.25, 0.3, 3.6, 0.62 + 0.17 * len(caption))  # inches, top to bottom
    figure = load_figure_class()(figsize=(WIDTH, sum(heights)))
    bottoms = 1 - np.cumsum(heights) / sum(heights)
    streams = figure.add_axes((LEFT, bottoms[1], RIGHT - LEFT, bottoms[0] - bottoms[1]))
    memory = figure.add_axes((LEFT, bottoms[3], RIGHT - LEFT, bottoms[2] - bottoms[3]), sharex=streams)
    divisor, unit = next((d, u) for d, u in TIME_SCALES if report.step_time_ns >= 2 * d or u == "ns")

    _draw_streams(streams, report, rows, divisor, is_pipeline)
    _draw_memory(memory, report, shown, divisor)
    memory.set_xlabel(f"time ({unit})", fontsize=9)
    memory.set_xlim(0, max(1, report.step_time_ns) / divisor)
    streams.tick_params(axis="x", labelbottom=False, length=0)
    _write_words(figure, report, shown, (bottoms[0], bottoms[2]), [bars for _, bars in rows])
    figure.text(0.012, 1 - 0.3 / sum(heights), f"{report.title}: simulated step", fontsize=14, weight="bold")
    figure.text(0.012, 1 - 0.6 / sum(heights), _subtitle(report), fontsize=10, color="#444444")
    figure.text(0.012, 0.1 / sum(heights), "\n".join(caption), fontsize=7.5, color="#555555", va="bottom")
    save_figure(figure, path, dpi=120)


def _subtitle(report: SimulationReport) -> str:
    parts = [
        f"step time {format_time(report.step_time_ns)}",
        f"{report.tokens_per_s:.0f} tokens/s per card",
        f"MFU {100 * report.mfu:.1f} %",
        f"peak memory {format_bytes(report.peak_bytes)}",
        describe_budget(report),
        f"exposed copy time {format_time(report.exposed_copy_ns)}",
    ]
    return "   |   ".join(part for part in parts if part)


def _stream_rows(report: SimulationReport) -> list[tuple[str, Bars]]:
    """One row per stream that does something, of the only stage."""
    bars = join_bars(list_bars(report.timeline, 0), report.step_time_ns // PIXELS)
    rows = [(lane.title, only_bars(bars, bars.lane == lane)) for lane in Lane]
    return [(title, part) for title, part in rows if len(part)]


def _pipeline_rows(report: SimulationReport) -> list[tuple[str, Bars]]:
    """One row per stage: its compute stream, micro-batch by micro-batch."""
    rows = []
    for stage in report.stages:
        bars = list_bars(report.timeline, stage.stage)
        compute = only_bars(bars, bars.lane == Lane.COMPUTE)
        rows.append((f"stage {stage.stage}", join_bars(compute, report.step_time_ns // PIXELS, by_layer=False)))
    return rows


def _draw_streams(
    axis: "Axes", report: SimulationReport, rows: list[tuple[str, Bars]], divisor: float, numbers: bool
) -> None:
    """Bars of each row; with numbers, the micro-batch is written into those that are wide enough."""
    term_ns = report.step_time_ns - report.timeline.step_time_ns
    for row, (_, bars) in enumerate(rows):
        bottom = len(rows) - 1 - row + (1 - BAR_HEIGHT) / 2
        typical_ns = np.median(bars.end_ns - bars.start_ns) if len(bars) else 0
        is_edged = typical_ns * PIXELS >= MIN_EDGED_PIXELS * report.step_time_ns
        for kind in np.unique(bars.kind):
            chosen = bars.kind == kind
            starts, widths = bars.start_ns[chosen] / divisor, (bars.end_ns - bars.start_ns)[chosen] / divisor
            colour = BAR_STYLES[BarKind(kind)].light
            # Without edges a narrow bar takes no more than its share: kinds are drawn one over the other.
            edge = {"edgecolor": "white", "linewidth": 0.3} if is_edged else {"linewidth": 0, "antialiased": False}
            axis.broken_barh(list(zip(starts, widths, strict=True)), (bottom, BAR_HEIGHT), facecolor=colour, **edge)
        if term_ns and (row == 0 or numbers):
            start = report.timeline.step_time_ns / divisor
            colour = BAR_STYLES[BarKind.TERM].light
            axis.broken_barh([(start, term_ns / divisor)], (bottom, BAR_HEIGHT), facecolor=colour)
        if numbers:
            _write_micro_batches(axis, report, bars, bottom, divisor)
    axis.set_ylim(0, len(rows))
    axis.set_yticks([len(rows) - row - 0.5 for row in range(len(rows))], [title for title, _ in rows], fontsize=9)
    axis.tick_params(axis="y", length=0)
    axis.spines[:].set_visible(False)


def _write_micro_batches(axis: "Axes", report: SimulationReport, bars: Bars, bottom: float, divisor: float) -> None:
    width_ns = bars.end_ns - bars.start_ns
    is_work = (bars.kind == BarKind.FORWARD) | (bars.kind == BarKind.BACKWARD)
    for bar in np.flatnonzero(is_work & (width_ns > 0.014 * report.step_time_ns)).tolist():
        centre = (bars.start_ns[bar] + bars.end_ns[bar]) / 2 / divisor
        number = str(bars.micro_batch[bar])
        axis.text(centre, bottom + BAR_HEIGHT / 2, number, fontsize=7, color="white", ha="center", va="center")


def _draw_memory(axis: "Axes", report: SimulationReport, stage: StageReport, divisor: float) -> None:
    """Stacked by kind above what is static, with the budget and the peak."""
    time_ns, by_kind = sample_memory(stage.memory, report.step_time_ns, MAX_POINTS)
    unit, divisor_bytes = ("GiB", 2**30) if stage.peak_bytes >= 2**30 else ("MiB", 2**20)
    time = time_ns / divisor
    level = np.full(len(time_ns), stage.static_bytes / divisor_bytes)
    axis.fill_between([0, report.step_time_ns / divisor], 0, level[0], color=STATIC.light, linewidth=0)
    for kind, style in MEMORY_STYLES.items():
        upper = level + by_kind[kind] / divisor_bytes
        axis.fill_between(time, level, upper, step="post", color=style.light, linewidth=0)
        level = upper
    axis.step(time, level, where="post", color="#33414f", linewidth=0.7)
    budget = (report.budget_bytes or 0) / divisor_bytes
    peak = stage.peak_bytes / divisor_bytes
    is_far = budget > FAR_BUDGET * peak
    top = 1.16 * max(0 if is_far else budget, peak, 1e-9)
    if report.budget_bytes is not None:
        words = f"budget {format_bytes(report.budget_bytes)}"
        if not is_far:
            axis.axhline(budget, color=BUDGET.light, linewidth=1.4, linestyle=(0, (5, 3)))
        height = 0.95 * top if is_far else budget + 0.015 * top
        axis.text(0.006, height, f"{words}, far above" if is_far else words, transform=axis.get_yaxis_transform(),
                  fontsize=8.5, color=BUDGET.light, va="bottom")  # fmt: skip
    peak_at = stage.memory.peak_ns / divisor
    axis.plot([peak_at], [peak], marker="o", markersize=6, color="#1b2733", markeredgecolor="white", zorder=5)
    is_late = stage.memory.peak_ns > 0.7 * report.step_time_ns
    axis.annotate(f"peak {format_bytes(stage.peak_bytes)}", (peak_at, peak), (-9 if is_late else 9, 2),
                  textcoords="offset points", fontsize=9, weight="bold", ha="right" if is_late else "left",
                  va="bottom", bbox={"boxstyle": "round,pad=0.2", "fc": "white", "ec": "none", "alpha": 0.85},
                  zorder=6)  # fmt: skip
    axis.set_ylim(0, top)
    which = f"memory of stage {stage.stage}" if len(report.stages) > 1 else "device memory"
    axis.set_ylabel(f"{which} ({unit})", fontsize=9)
    axis.tick_params(labelsize=8.5)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", alpha=0.25, linewidth=0.6)
    axis.set_axisbelow(True)


def _write_words(
    figure: "Figure", report: SimulationReport, stage: StageReport, tops: Sequence[float], rows: list[Bars]
) -> None:
    """Beside the panels: what the colours mean, and what is in memory at the peak."""
    from matplotlib.patches import Patch

    def legend(styles: Sequence[Style], top: float, columns: int) -> None:
        patches = [Patch(facecolor=style.light, edgecolor="#9aa3ad", linewidth=0.3) for style in styles]
        place = {"loc": "upper left", "bbox_to_anchor": (SIDE - 0.005, top), "borderaxespad": 0.0}
        look = {"fontsize": 8, "frameon": False, "handlelength": 1.1, "labelspacing": 0.35, "columnspacing": 1.0}
        figure.legend(patches, [style.title for style in styles], ncols=columns, **place, **look)

    kinds = find_kinds(report, rows)
    legend([BAR_STYLES[kind] for kind in kinds], tops[0], 2 if len(kinds) > 4 else 1)
    used = [style for kind, style in MEMORY_STYLES.items() if stage.memory.by_kind_bytes[kind].any()]
    memory_styles = [*used[::-1], *([STATIC] if stage.static_bytes else [])]
    legend(memory_styles, tops[1], 2)

    height = figure.get_size_inches()[1]
    top = tops[1] - (0.17 * ((len(memory_styles) + 1) // 2) + 0.18) / height
    title = f"Peak of stage {stage.stage}" if len(report.stages) > 1 else "Peak"
    figure.text(SIDE, top, title, fontsize=9, weight="bold", va="top")
    moment = wrap(f"at {format_time(stage.memory.peak_ns)}: {describe_moment(stage.moment)}", 54)[:3]
    figure.text(SIDE, top - 0.19 / height, "\n".join(moment), fontsize=7.5, va="top", color="#333333")
    top -= (0.26 + 0.125 * len(moment)) / height
    for line, (size_bytes, name, colour) in enumerate(_held(stage)):
        at = top - 0.152 * line / height
        figure.text(SIDE, at, "\u25a0", fontsize=7.5, va="top", color=colour)
        figure.text(SIDE + 0.056, at, format_bytes(size_bytes), fontsize=7.5, va="top", ha="right", color="#333333")
        figure.text(SIDE + 0.063, at, shorten(name, 40, placeholder=" ..."), fontsize=7.5, va="top", color="#333333")


def _held(stage: StageReport) -> list[tuple[int, str, str]]:
    """Memory at the peak: bytes, name, colour; the smaller holders together."""
    held = [(size_bytes, name, STATIC.light) for name, size_bytes in stage.static_parts if size_bytes]
    for holder in stage.holders[:NUM_HOLDERS]:
        name = f"{holder.label}, {describe_layers(holder.layers)}"
        held.append((holder.size_bytes, name, MEMORY_STYLES[holder.kind].light))
    rest = stage.holders[NUM_HOLDERS:]
    return held + ([(sum(holder.size_bytes for holder in rest), f"{len(rest)} more", "#ffffff")] if rest else [])
