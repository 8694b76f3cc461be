"""Plot of a dry run: memory of each rank over a step, and its parts at the peak."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mindswap.features.dryrun.page import dry_run_curve
from mindswap.features.dryrun.report import same_rank
from mindswap.features.dryrun.stage_runs import DryRunReport
from mindswap.report.html import simulated_curve
from mindswap.report.plots import GIB, load_figure_class, save_figure
from mindswap.simulator.memory_parts import MemoryPart

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_dry_run(report: DryRunReport, path: Path, other: DryRunReport | None = None) -> None:
    """Plot one row per rank: its memory over a step, and the parts at the peak with those of the simulated step.

    The suffix of the path gives the image format.

    Raises:
        DataError: matplotlib is missing, or the file cannot be written.
    """
    figure = load_figure_class()(figsize=(14, 1 + 3 * len(report.stages)), layout="constrained")
    axes = figure.subplots(len(report.stages), 2, squeeze=False, width_ratios=(4, 1))
    for (axis, part_axis), stage in zip(axes, report.stages, strict=True):
        _plot_parts(part_axis, {"dry run": stage.part_bytes, "simulated": report.simulated_part_bytes(stage)})
        simulated = report.simulated_stage(stage)
        if simulated and stage.num_layers in stage.runs:
            shares, live = simulated_curve(simulated, report.workspace_bytes(stage))
            axis.fill_between(shares, live / GIB, step="post", color="#d5dae1", label="simulated, over time")
        for each, colour in ((report, "#3b76c4"), (other, "#e07b26")):
            if each is not None and (match := same_rank(each, stage)):
                shares, live = dry_run_curve(match.run)
                axis.step(shares, live / GIB, where="post", color=colour, linewidth=0.9, label=each.title)
        layers = max(stage.runs)
        of_all = "" if layers == stage.num_layers else f", {layers} of {stage.num_layers} layers"
        axis.set_title(f"rank {stage.run.rank}, stage {stage.stage}{of_all}", loc="left", fontsize=10)
        axis.set_ylabel("GiB")
        axis.set_ylim(bottom=0)
        axis.legend(loc="lower right", frameon=False, fontsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1, 0].set_xlabel("operators of a step in the order of launch; 1: end of backward")
    figure.suptitle(f"{report.title}: memory on MindSpore's Ascend backend, dry run")
    save_figure(figure, path)


def _plot_parts(axis: "Axes", columns: Mapping[str, Mapping[MemoryPart, int]]) -> None:
    """Draw one stacked bar for each column that has parts, with a legend of those above 0."""
    from matplotlib import colormaps

    shown = {name: part_bytes for name, part_bytes in columns.items() if part_bytes}
    bottom = np.zeros(len(shown))
    for part in MemoryPart:
        sizes = np.array([part_bytes[part] / GIB for part_bytes in shown.values()])
        if sizes.any():
            axis.bar(list(shown), sizes, bottom=bottom, color=colormaps["tab20"](int(part)), label=part.title)
            bottom = bottom + sizes
    axis.set_title("parts at the peak", loc="left", fontsize=10)
    handles, labels = axis.get_legend_handles_labels()
    axis.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
