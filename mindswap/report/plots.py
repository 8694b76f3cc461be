"""Pictures. Needs matplotlib, which the extra `mindswap[plot]` brings."""

from pathlib import Path

from mindswap.graph.memory import LayerMemory, OperatorMemory
from mindswap.report.figures import load_figure_class, save_figure
from mindswap.report.memory import MemoryReport, group_layers
from mindswap.units import format_bytes

__all__ = ["plot_memory"]

MAX_BARS = 24
KINDS = (("kept_bytes", "kept on device", "#c0392b"), ("swapped_bytes", "swapped", "#2980b9"),
         ("recomputed_bytes", "recomputed", "#7f8c8d"))  # fmt: skip


def plot_memory(report: MemoryReport, path: Path, title: str) -> None:
    """One panel per kind of layer: bytes of each operator, largest on top, kept, swapped and recomputed stacked.

    Args:
        report: what `mindswap inspect` measured.
        path: file to write; its ending says the format.
        title: heading of the picture.

    Raises:
        DataError: if matplotlib is missing or the file cannot be written.
    """
    figure_class = load_figure_class()
    groups = group_layers(report.layers)
    bars = [_largest(layer) for _, layer in groups]
    height = 1.6 + sum(0.24 * len(b) + 0.9 for b in bars)
    figure = figure_class(figsize=(11, height), layout="constrained")
    axes = figure.subplots(len(groups), 1, squeeze=False, sharex=True, height_ratios=[len(b) + 2 for b in bars])[:, 0]
    for axis, (name, layer), operators in zip(axes, groups, bars, strict=True):
        _draw_panel(axis, name, layer, operators)
    axes[0].legend(loc="lower right", frameon=False)
    axes[-1].set_xlabel("MiB per layer, one micro-batch, one rank")
    figure.suptitle(
        f"{title}: activations from forward to backward\n{format_bytes(report.kept_bytes)} kept, "
        f"{format_bytes(report.swapped_bytes)} swapped, {format_bytes(report.recomputed_bytes)} recomputed in the step"
    )
    save_figure(figure, path)


def _largest(layer: LayerMemory) -> list[OperatorMemory]:
    return sorted(layer.operators, key=_size)[-MAX_BARS:]


def _size(operator: OperatorMemory) -> int:
    return operator.kept_bytes + operator.swapped_bytes + operator.recomputed_bytes


def _draw_panel(axis, name: str, layer: LayerMemory, operators: list[OperatorMemory]) -> None:
    left = [0.0] * len(operators)
    labels = [operator.path for operator in operators]
    for attribute, label, colour in KINDS:
        widths = [getattr(operator, attribute) / 2**20 for operator in operators]
        axis.barh(range(len(operators)), widths, left=left, color=colour, label=label)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axis.set_yticks(range(len(operators)), labels, fontsize=8)
    rest = len(layer.operators) - len(operators)
    more = f", {rest} smaller operators not shown" if rest else ""
    axis.set_title(f"{name}: {format_bytes(layer.kept_bytes)} kept each{more}", loc="left", fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="x", alpha=0.3)
