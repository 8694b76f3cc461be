"""Picture of activation memory by operator."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

from pathlib import Path

from mindswap.features.inspect.report import LayerMemoryReport, group_layer_memory, rows_of
from mindswap.graph.analysis.saved_tensors import LayerMemory, OperatorMemory
from mindswap.report.plots import MIB, load_figure_class, save_figure
from mindswap.report.timeline_bars import MEMORY_STYLES
from mindswap.simulator.program import MemoryKind
from mindswap.units import format_bytes

MAX_BARS = 24
# Width of a panel relative to its longest bar, with a margin for the number of the bar.
RELATIVE_WIDTH = 1.12
# Colours of the same kinds of memory in `mindswap simulate`.
KINDS = (
    ("kept_bytes", "kept on device", MEMORY_STYLES[MemoryKind.KEPT].light),
    ("swapped_bytes", "swapped", MEMORY_STYLES[MemoryKind.OFFLOADING].light),
    ("recomputed_bytes", "recomputed", MEMORY_STYLES[MemoryKind.RECOMPUTED].light),
)


def plot_memory(report: LayerMemoryReport, path: Path, title: str, by: str = "operator") -> None:
    """Plot saved, swapped and recomputed bytes of each row as stacked bars, with one panel per class of layers.

    All layers share one scale. Operators outside of the layers have their own, because head and loss are much larger.

    Args:
        report: memory of each layer.
        path: output file; its suffix is the format.
        title: title of the picture.
        by: unit of a row, "layer", "operator" or "cell".

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
    for selects_layers, label in ((True, "MiB per layer"), (False, "MiB")):
        panels = [index for index, is_in_layer in enumerate(is_layer) if is_in_layer is selects_layers]
        longest = max((_size(row) / MIB for index in panels for row in bars[index]), default=0)
        for index in panels:
            axes[index].set_xlim(0, RELATIVE_WIDTH * longest or 1)
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
    starts = [0.0] * len(operators)
    labels = [operator.path for operator in operators]
    for attribute, _, colour in KINDS:
        widths = [getattr(operator, attribute) / MIB for operator in operators]
        bars = axis.barh(range(len(operators)), widths, left=starts, color=colour)
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    axis.bar_label(bars, [format_bytes(_size(operator)) for operator in operators], padding=3, fontsize=8)
    axis.set_yticks(range(len(operators)), labels, fontsize=8)
    more = f", {num_left_out} smaller ones not shown" if num_left_out else ""
    per_layer = " each" if layer.layer_index is not None else ""
    kept = format_bytes(sum(operator.kept_bytes for operator in layer.operators))
    axis.set_title(f"{name}: {kept} kept{per_layer}{more}", loc="left", fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="x", alpha=0.3)
