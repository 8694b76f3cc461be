"""Pictures: memory by operator, a dry run, step time against memory. Need matplotlib, of the extra `plot`."""

import io
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from mindswap.errors import DataError, install_command
from mindswap.files import write_new
from mindswap.graph.memory import LayerMemory, OperatorMemory
from mindswap.planner.problem import Compared, Plan
from mindswap.report.dryrun import same_rank
from mindswap.report.dryrun_html import real_curve, simulated_curve
from mindswap.report.memory import LayerMemoryReport, group_layer_memory, rows_of
from mindswap.report.simulation.bars import BUDGET, MEMORY_STYLES
from mindswap.report.tables import group_equal
from mindswap.simulator.program import MemoryKind
from mindswap.training.measure.stages import DryRunReport
from mindswap.units import format_bytes, format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GIB, MIB, SECOND = 2**30, 2**20, 10**9
MAX_BARS = 24
# Right of the longest bar, for its number.
ROOM = 1.12
# The colours that `mindswap simulate` has for the same memory.
KINDS = (
    ("kept_bytes", "kept on device", MEMORY_STYLES[MemoryKind.KEPT].light),
    ("swapped_bytes", "swapped", MEMORY_STYLES[MemoryKind.OFFLOADING].light),
    ("recomputed_bytes", "recomputed", MEMORY_STYLES[MemoryKind.RECOMPUTED].light),
)


def load_figure_class() -> "type[Figure]":
    """`matplotlib.figure.Figure`; loaded only when a picture is asked for.

    Raises:
        DataError: if matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise DataError(f"--plot needs matplotlib\n    fix:     {install_command('plot')}") from None
    return Figure


def save_figure(figure: "Figure", path: Path) -> None:
    """Writes a picture; the ending of the path says the format. A .png carries its words, so that they can be compared.

    Raises:
        DataError: if the format is unknown or the file cannot be written.
    """
    words = {"Description": _words(figure), "Software": None} if path.suffix == ".png" else None
    picture = io.BytesIO()
    try:
        figure.savefig(picture, dpi=140, metadata=words, format=path.suffix[1:] or None)
    except ValueError as error:
        raise DataError(f"cannot write {path}: {error}") from None
    write_new(path, picture.getvalue(), overwrite=True)


def _words(figure: "Figure") -> str:
    """Titles, names and figures of a picture, without the numbers at its axes."""
    from matplotlib.text import Text

    ticks = {id(text) for axis in figure.axes for text in (*axis.get_xticklabels(), *axis.get_yticklabels())}
    found = [text.get_text() for text in figure.findobj(Text) if text.get_visible() and id(text) not in ticks]
    return "\n".join(text for text in found if text)


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
        longest = max((_size(row) / MIB for index in panels for row in bars[index]), default=0)
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
        widths = [getattr(operator, attribute) / MIB for operator in operators]
        bars = axis.barh(range(len(operators)), widths, left=left, color=colour)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axis.bar_label(bars, [format_bytes(_size(operator)) for operator in operators], padding=3, fontsize=8)
    axis.set_yticks(range(len(operators)), labels, fontsize=8)
    more = f", {num_left_out} smaller ones not shown" if num_left_out else ""
    each = " each" if layer.layer_index is not None else ""
    kept = format_bytes(sum(operator.kept_bytes for operator in layer.operators))
    axis.set_title(f"{name}: {kept} kept{each}{more}", loc="left", fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="x", alpha=0.3)


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
            if each is not None and (match := same_rank(each, stage)):
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


# Step times that differ by more are drawn on a logarithmic scale; what is slower than every plan by more is not drawn.
WIDE = 2
BEST, OTHER, CURVE = "#2f6bb8", "#5a6877", "#2f9e77"
MARKS = "oDs^vP*X<>hd"


def plot_tradeoffs(
    points: Sequence[Compared],
    path: Path,
    *,
    title: str,
    caption: str,
    budget_bytes: int | None = None,
    curve: Sequence[Plan] = (),
    bound: Sequence[tuple[int, int]] = (),
) -> None:
    """Step time against peak memory of several configurations, named in the legend, and the plans for every memory.

    Args:
        points: configurations; at least one, or a curve.
        path: file to write; its ending says the format.
        title: what the picture is about.
        caption: the device and its figures.
        budget_bytes: device memory that may be used.
        curve: plans, in any order.
        bound: a memory in bytes and the step time that no policy can beat with it, least memory first; no policy can
            do with less than the first.

    Raises:
        DataError: if matplotlib is missing or the file cannot be written.
    """
    curve = sorted(curve, key=lambda point: point.peak_bytes)
    slowest_ns = WIDE * max((p.step_time_ns for p in curve), default=0)
    far = [p for p in points if curve and p.step_time_ns > slowest_ns]  # would leave no room for the rest
    points = [p for p in points if p not in far]
    caption += "".join(
        f". Not drawn: {p.name}, {format_time(p.step_time_ns)}, {format_bytes(p.peak_bytes)}" for p in far
    )
    figure = load_figure_class()(figsize=(8.5, 4.6), layout="constrained")
    axis = figure.subplots()
    axis.set_title(f"{title}: simulated", loc="left")
    caption = "\n".join(wrap(f"Simulated, no device was used. {caption}", 110))
    axis.set_xlabel("peak memory (GiB)", fontsize=9)
    figure.supxlabel(caption, fontsize=9)  # below the legend, too
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25, linewidth=0.6)
    axis.set_axisbelow(True)
    everything: list[Compared | Plan] = [*points, *curve]
    longest_ns, shortest_ns = (choose(p.step_time_ns for p in everything) for choose in (max, min))
    unit_ns, unit = (SECOND, "s") if longest_ns >= 2 * SECOND else (SECOND // 1000, "ms")
    axis.set_ylabel(f"step time ({unit})")
    if curve and longest_ns > WIDE * shortest_ns:
        _set_log_scale(axis)
    _set_limits(axis, everything, unit_ns, budget_bytes)
    if bound:
        _fill_below(axis, bound, unit_ns)
    if curve:
        x, y = [p.peak_bytes / GIB for p in curve], [p.step_time_ns / unit_ns for p in curve]
        # Between two plans the one that needs less memory is the best there is.
        axis.plot(x, y, color=CURVE, marker="o", markersize=4, drawstyle="steps-post", label="plans")
    for number, point in enumerate(_joined(points)):
        axis.plot(point.peak_bytes / GIB, point.step_time_ns / unit_ns, MARKS[number % len(MARKS)], markersize=8,
                  color=_colour(point, points, budget_bytes), markeredgecolor="white", label=point.name)  # fmt: skip
    if budget_bytes is not None:
        label = f"budget {format_bytes(budget_bytes)}, red: does not fit"
        axis.axvline(budget_bytes / GIB, color=BUDGET.light, linewidth=1.3, linestyle=(0, (5, 3)), label=label)
        axis.axvspan(budget_bytes / GIB, axis.get_xlim()[1], color=BUDGET.light, alpha=0.05, linewidth=0)
    figure.legend(loc="outside right upper", frameon=False)
    save_figure(figure, path)


def _set_log_scale(axis: "Axes") -> None:
    """For step times that differ by more than `WIDE`: equal distances are equal ratios."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axis.set_yscale("log")
    axis.set_ylabel(f"{axis.get_ylabel()}, log scale")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def _fill_below(axis: "Axes", bound: Sequence[tuple[int, int]], unit_ns: int) -> None:
    """The part of the picture where no policy can be."""
    (low_x, high_x), (low_y, high_y) = axis.get_xlim(), axis.get_ylim()
    x = [low_x, bound[0][0] / GIB, *(size / GIB for size, _ in bound), high_x]
    y = [high_y, high_y, *(time_ns / unit_ns for _, time_ns in bound), bound[-1][1] / unit_ns]
    label = "no policy can be here" if x[1] > low_x or max(y[2:]) > low_y else None  # None: outside of what is shown
    axis.fill_between(x, y, low_y, color=OTHER, alpha=0.13, linewidth=0, label=label)


def _set_limits(axis: "Axes", points: Iterable[Compared | Plan], unit_ns: int, budget_bytes: int | None) -> None:
    """Room around the points."""
    x = [p.peak_bytes / GIB for p in points] + ([budget_bytes / GIB] if budget_bytes is not None else [])
    y = [p.step_time_ns / unit_ns for p in points]
    low, high = min(y), max(y)
    if axis.get_yscale() == "log":
        axis.set_ylim(low / (high / low) ** 0.14, high * (high / low) ** 0.14)
    else:
        axis.set_ylim(*_widened(low, high))
    axis.set_xlim(*_widened(min(x), max(x)))


def _widened(low: float, high: float) -> tuple[float, float]:
    room = 0.14 * (high - low) or 0.1 * high or 1.0
    return max(0.0, low - room), high + room


def _colour(point: Compared, points: Sequence[Compared], budget_bytes: int | None) -> str:
    """Red over the budget; blue where no other is both smaller and faster; else grey."""
    if budget_bytes is not None and point.peak_bytes > budget_bytes:
        return BUDGET.light
    own = (point.peak_bytes, point.step_time_ns)
    others = ((other.peak_bytes, other.step_time_ns) for other in points)
    return OTHER if any(size <= own[0] and time <= own[1] and (size, time) != own for size, time in others) else BEST


def _joined(points: Sequence[Compared]) -> list[Compared]:
    """Points that are the same, with both names."""
    same = group_equal(points, lambda point: (point.step_time_ns, point.peak_bytes), range(len(points)))
    return [replace(first, name=", ".join(points[i].name for i in alike)) for alike, first in same]
