"""Picture of a plan: memory and streams of a step before and after. Needs matplotlib, from the extra `plot`."""

from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np

from mindswap.report.plots import GIB, SECOND, load_figure_class, save_figure
from mindswap.report.simulation_text import fit_bars, sample_memory
from mindswap.report.timeline_bars import BAR_STYLES, BUDGET, BarKind, Lane
from mindswap.simulator.report_data import SimulationReport
from mindswap.units import format_bytes, format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LANES = (Lane.COMPUTE, Lane.COPY_OUT, Lane.COPY_IN)
MAX_BARS, MAX_POINTS = 2000, 2800  # of a picture 1400 pixels wide
KEPT, MEMORY = "#7aa5dc", "#3b76c4"


def plot_before_after(
    before: SimulationReport, after: SimulationReport, path: Path, budget_bytes: int, names: tuple[str, str]
) -> None:
    """Plot memory and streams over time of two steps of one network, with a common time axis and the memory budget.

    Drawn is the pipeline stage with the highest peak.

    Args:
        before: the step of the configuration.
        after: the step under a plan.
        path: output file; its suffix is the format.
        budget_bytes: memory budget of a card.
        names: what the two are called.

    Raises:
        DataError: if matplotlib is missing or the file cannot be written.
    """
    from matplotlib.patches import Patch

    figure = load_figure_class()(figsize=(10, 6), layout="constrained")
    axes = figure.subplots(4, 1, sharex=True, height_ratios=(3, 1, 3, 1))
    reports = (before, after)
    highest = max(budget_bytes, *(report.peak_bytes for report in reports))
    kinds: set[BarKind] = set()
    for report, name, memory, streams in zip(reports, names, axes[::2], axes[1::2], strict=True):
        fit = "fits" if report.peak_bytes <= budget_bytes else "does not fit"
        figures = f"{format_time(report.step_time_ns)}, peak {format_bytes(report.peak_bytes)}, {fit}"
        memory.set_title(f"{name}: {figures}", loc="left", fontsize=10)
        memory.set_ylim(0, 1.12 * highest / GIB)
        _draw_memory(memory, report, budget_bytes)
        kinds |= _draw_streams(streams, report)
    axes[-1].set_xlabel("time (s)", fontsize=9)
    axes[-1].set_xlim(0, max(report.step_time_ns for report in reports) / SECOND)
    legend = [Patch(color=BAR_STYLES[kind].light, label=BAR_STYLES[kind].title) for kind in sorted(kinds)]
    figure.legend(handles=legend, loc="outside lower center", ncols=6, frameon=False, fontsize=9)
    stage = after.peak_stage.stage
    which = f" of pipeline stage {stage}" if len(after.stages) > 1 else ""
    title = f"Memory and streams{which} over a step. Simulated, no device was used. {after.device_title}"
    figure.suptitle("\n".join(wrap(title, 110)), fontsize=10)
    save_figure(figure, path)


def _draw_memory(axis: "Axes", report: SimulationReport, budget_bytes: int) -> None:
    stage = report.peak_stage
    time_ns, by_kind_bytes = sample_memory(stage.memory, report.step_time_ns, MAX_POINTS)
    size_bytes = by_kind_bytes.sum(axis=0) + stage.static_bytes
    axis.fill_between(time_ns / SECOND, size_bytes / GIB, step="post", color=KEPT, alpha=0.6, linewidth=0)
    axis.plot(time_ns / SECOND, size_bytes / GIB, drawstyle="steps-post", color=MEMORY, linewidth=0.6)
    axis.set_ylabel("GiB", fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
    budget = budget_bytes / GIB
    axis.axhline(budget, color=BUDGET.light, linewidth=1.3, linestyle=(0, (5, 3)))
    axis.annotate(f"budget {format_bytes(budget_bytes)}", (1, budget), (-2, 3), fontsize=9, ha="right",
                  xycoords=("axes fraction", "data"), textcoords="offset points", color=BUDGET.light)  # fmt: skip


def _draw_streams(axis: "Axes", report: SimulationReport) -> set[BarKind]:
    """Draw the streams of a stage, one lane each; return the kinds of bars."""
    (bars,) = fit_bars(report.timeline, [report.peak_stage.stage], MAX_BARS)
    kinds = set()
    for row, lane in enumerate(LANES):
        for kind in np.unique(bars.kind[bars.lane == lane]):
            drawn = bars[(bars.lane == lane) & (bars.kind == kind)]
            spans = np.stack([drawn.start_ns, drawn.end_ns - drawn.start_ns], axis=1) / SECOND
            axis.broken_barh(spans.tolist(), (-row - 0.4, 0.8), color=BAR_STYLES[BarKind(kind)].light, linewidth=0)
            kinds.add(BarKind(kind))
    axis.set_yticks([-row for row in range(len(LANES))], [lane.title for lane in LANES], fontsize=8)
    axis.set_ylim(0.6 - len(LANES), 0.6)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(left=False)
    return kinds
