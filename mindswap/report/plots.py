"""Common parts of pictures, and step time over memory. Needs matplotlib, from the extra `plot`."""

import io
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from mindswap.errors import DataError, install_command
from mindswap.files import write_new
from mindswap.planner.problem import Compared, Plan
from mindswap.report.tables import group_equal
from mindswap.report.timeline_bars import BUDGET
from mindswap.units import format_bytes, format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GIB, MIB, SECOND = 2**30, 2**20, 10**9


def load_figure_class() -> "type[Figure]":
    """Import and return `matplotlib.figure.Figure`, on first use because the import is slow.

    Raises:
        DataError: if matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise DataError(f"--plot needs matplotlib\n    fix:     {install_command('plot')}") from None
    return Figure


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a picture in the format of the path's suffix. A .png includes its texts as metadata, for comparisons.

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
    """Return all texts of a picture, without the tick labels of its axes."""
    from matplotlib.text import Text

    ticks = {id(text) for axis in figure.axes for text in (*axis.get_xticklabels(), *axis.get_yticklabels())}
    texts = [text.get_text() for text in figure.findobj(Text) if text.get_visible() and id(text) not in ticks]
    return "\n".join(text for text in texts if text)


# Step times that differ by a larger factor are drawn on a logarithmic scale; points that are slower than every plan by
# a larger factor are not drawn.
WIDE = 2
BEST, OTHER, CURVE = "#2f6bb8", "#5a6877", "#2f9e77"
MARKS = "oDs^vP*X<>hd"
MAX_LEGEND_COLUMNS = 34  # characters of a line of the legend, which takes its width from the axes


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
    """Plot step time over peak memory of configurations, named in the legend, and of plans for many budgets.

    Args:
        points: configurations; may be empty if there is a curve.
        path: output file; its suffix is the format.
        title: title of the picture.
        caption: the device and its figures.
        budget_bytes: memory budget; None without one.
        curve: plans, in any order.
        bound: (memory in bytes, lower bound of the step time in ns), ascending by memory; below the first memory no
            policy is feasible.

    Raises:
        DataError: if matplotlib is missing or the file cannot be written.
    """
    curve = sorted(curve, key=lambda point: point.peak_bytes)
    slowest_ns = WIDE * max((p.step_time_ns for p in curve), default=0)
    far = [p for p in points if curve and p.step_time_ns > slowest_ns]  # would compress the other points
    points = [p for p in points if p not in far]
    caption += "".join(
        f". Not drawn: {p.name}, {format_time(p.step_time_ns)}, {format_bytes(p.peak_bytes)}" for p in far
    )
    figure = load_figure_class()(figsize=(8.5, 4.6), layout="constrained")
    axis = figure.subplots()
    figure.suptitle(f"{title}: simulated", x=0.01, horizontalalignment="left")  # above the legend, too
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
        # For budgets between two plans, the one with less memory is the best plan.
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
    """Set a logarithmic scale, for step times that differ by more than a factor of `WIDE`."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axis.set_yscale("log")
    axis.set_ylabel(f"{axis.get_ylabel()}, log scale")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def _fill_below(axis: "Axes", bound: Sequence[tuple[int, int]], unit_ns: int) -> None:
    """Fill the infeasible region below the bound."""
    (low_x, high_x), (low_y, high_y) = axis.get_xlim(), axis.get_ylim()
    x = [low_x, bound[0][0] / GIB, *(size / GIB for size, _ in bound), high_x]
    y = [high_y, high_y, *(time_ns / unit_ns for _, time_ns in bound), bound[-1][1] / unit_ns]
    label = "no policy can be here" if x[1] > low_x or max(y[2:]) > low_y else None  # None: outside of the axes
    axis.fill_between(x, y, low_y, color=OTHER, alpha=0.13, linewidth=0, label=label)


def _set_limits(axis: "Axes", points: Iterable[Compared | Plan], unit_ns: int, budget_bytes: int | None) -> None:
    """Set the limits of the axes with a margin around the points."""
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
    """Return red for points over the budget, blue for Pareto-optimal points, else grey."""
    if budget_bytes is not None and point.peak_bytes > budget_bytes:
        return BUDGET.light
    values = (point.peak_bytes, point.step_time_ns)
    all_values = ((compared.peak_bytes, compared.step_time_ns) for compared in points)
    return (
        OTHER
        if any(size <= values[0] and time <= values[1] and (size, time) != values for size, time in all_values)
        else BEST
    )


def _joined(points: Sequence[Compared]) -> list[Compared]:
    """Join equal points, with all names, each on a line of its own, as names may have commas."""
    same = group_equal(points, lambda point: (point.step_time_ns, point.peak_bytes), range(len(points)))
    return [replace(first, name="\n".join(_wrapped(points[i].name) for i in alike)) for alike, first in same]


def _wrapped(name: str) -> str:
    return "\n  ".join(wrap(name, MAX_LEGEND_COLUMNS))
