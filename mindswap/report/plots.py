"""Pictures. Needs matplotlib, which the extra `mindswap[plot]` brings."""

from pathlib import Path
from typing import TYPE_CHECKING

from mindswap.graph.memory import LayerMemory, OperatorMemory
from mindswap.report.dryrun_html import real_curve, simulated_curve
from mindswap.report.figures import load_figure_class, save_figure
from mindswap.report.memory import LayerMemoryReport, group_layer_memory, rows_of
from mindswap.report.simulation.bars import MEMORY_STYLES
from mindswap.simulator.program import MemoryKind
from mindswap.training.dryrun.stages import DryRunReport
from mindswap.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_BARS = 24
# Right of the longest bar, for its number.
ROOM = 1.12
# The colours that `mindswap simulate` has for the same memory.
KINDS = (
    ("kept_bytes", "kept on device", MEMORY_STYLES[MemoryKind.KEPT].light),
    ("swapped_bytes", "swapped", MEMORY_STYLES[MemoryKind.OFFLOADING].light),
    ("recomputed_bytes", "recomputed", MEMORY_STYLES[MemoryKind.RECOMPUTED].light),
)


def plot_memory(report: LayerMemoryReport, path: Path, title: str, by: str = "operator") -> None:
    """One panel per kind of layer: bytes of each row, largest on top, kept, swapped and recomputed stacked.

    All kinds of layers have one scale; what is outside the layers has its own, as head and loss would dwarf them. A row
    is a "layer", an "operator" or a "cell"; the ending of the path says the format.

    Raises:
        DataError: if matplotlib is missing or the file cannot be written.
    """
    figure_class = load_figure_class()
    from matplotlib.patches import Patch

    groups = group_layer_memory(report.layers)
    rows = [sorted(filter(_size, rows_of(layer, by)), key=_size) for _, layer in groups]
    bars = [panel[-MAX_BARS:] for panel in rows]
    height = 1.6 + sum(0.24 * len(b) + 0.9 for b in bars)
    figure = figure_class(figsize=(11, height), layout="constrained")
    axes = figure.subplots(len(groups), 1, squeeze=False, height_ratios=[len(b) + 2 for b in bars])[:, 0]
    for axis, (name, layer), operators, panel in zip(axes, groups, bars, rows, strict=True):
        _draw_panel(axis, name, layer, operators, len(panel) - len(operators))
    is_layer = [layer.layer_index is not None for _, layer in groups]
    for wanted, label in ((True, "MiB per layer"), (False, "MiB")):
        panels = [index for index, found in enumerate(is_layer) if found is wanted]
        longest = max((_size(row) / 2**20 for index in panels for row in bars[index]), default=0)
        for index in panels:
            axes[index].set_xlim(0, ROOM * longest or 1)
        for index in panels[-1:]:
            axes[index].set_xlabel(f"{label}, one micro-batch, one rank")
    shown = [row for panel in bars for row in panel]
    used = [(label, colour) for name, label, colour in KINDS if any(getattr(row, name) for row in shown)]
    axes[0].legend(
        handles=[Patch(color=colour, label=label) for label, colour in used], loc="lower right", frameon=False
    )
    figure.suptitle(f"{title}: activations from forward to backward\n{report.describe_total()} in the step")
    save_figure(figure, path)


def _size(operator: OperatorMemory) -> int:
    return operator.kept_bytes + operator.swapped_bytes + operator.recomputed_bytes


def _draw_panel(
    axis: "Axes", name: str, layer: LayerMemory, operators: list[OperatorMemory], num_left_out: int
) -> None:
    left = [0.0] * len(operators)
    labels = [operator.path for operator in operators]
    for attribute, _, colour in KINDS:
        widths = [getattr(operator, attribute) / 2**20 for operator in operators]
        bars = axis.barh(range(len(operators)), widths, left=left, color=colour)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axis.bar_label(bars, [format_bytes(_size(operator)) for operator in operators], padding=3, fontsize=8)
    axis.set_yticks(range(len(operators)), labels, fontsize=8)
    more = f", {num_left_out} smaller ones not shown" if num_left_out else ""
    each = " each" if layer.layer_index is not None else ""
    axis.set_title(f"{name}: {format_bytes(layer.kept_bytes)} kept{each}{more}", loc="left", fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="x", alpha=0.3)


# A dry run as a picture: the real memory of every rank over the simulated one. Needs matplotlib.

GIB = 1 << 30


def plot_dry_run(report: DryRunReport, path: Path, other: DryRunReport | None = None) -> None:
    """A panel for each rank; the ending of the path says the format.

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
            for match in each.stages if each is not None else ():
                if each is not None and match.run.rank == stage.run.rank:
                    shares, live = real_curve(match.run)
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
