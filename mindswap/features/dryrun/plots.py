"""Plot of a dry run: memory of each rank over a step."""

from pathlib import Path

from mindswap.features.dryrun.page import dry_run_curve
from mindswap.features.dryrun.report import same_rank
from mindswap.features.dryrun.stage_runs import DryRunReport
from mindswap.report.html import simulated_curve
from mindswap.report.plots import GIB, load_figure_class, save_figure


def plot_dry_run(report: DryRunReport, path: Path, other: DryRunReport | None = None) -> None:
    """Plot one panel per rank; the suffix of the path gives the image format.

    Raises:
        DataError: matplotlib is missing, or the file cannot be written.
    """
    figure = load_figure_class()(figsize=(11, 1 + 3 * len(report.stages)), layout="constrained")
    axes = figure.subplots(len(report.stages), 1, squeeze=False)[:, 0]
    for axis, stage in zip(axes, report.stages, strict=True):
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
    axes[-1].set_xlabel("operators of a step in the order of launch; 1: end of backward")
    figure.suptitle(f"{report.title}: memory on MindSpore's Ascend backend, dry run")
    save_figure(figure, path)
