"""Pictures of step time against peak memory: several configurations, or the curve that a planner found."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from mindswap.report.figures import load_figure_class, save_figure
from mindswap.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.backend_bases import RendererBase
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

GIB, SECOND = 2**30, 10**9
WIDE = 2  # step times that differ by more are drawn on a logarithmic scale
BEST, OTHER, OVER, CURVE = "#2f6bb8", "#5a6877", "#b3202a", "#2f9e77"
# Where a name may stand, in points from its mark, nearest first.
PLACES = [
    (x * reach, y * reach)
    for reach in (9, 16, 26, 40, 58, 80, 110)
    for x, y in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))
]


@dataclass(frozen=True)
class TradeOff:
    """A simulated configuration as one point."""

    name: str
    step_time_ns: int
    peak_bytes: int


def plot_tradeoffs(
    points: Sequence[TradeOff],
    path: Path,
    *,
    title: str,
    caption: str,
    budget_bytes: int | None = None,
    curve: Sequence[TradeOff] = (),
    bound: Sequence[TradeOff] = (),
) -> None:
    """Step time against peak memory of several configurations, each with its name, and the plans for every memory.

    Args:
        points: configurations; at least one, or a curve.
        path: file to write; its ending says the format.
        title: what the picture is about.
        caption: the device and its figures.
        budget_bytes: device memory that may be used.
        curve: plans, in any order; their names are not shown.
        bound: step times that no policy can beat, each for a memory, least memory first; no policy can do with less
            memory than the first has.

    Raises:
        DataError: if matplotlib is missing or the file cannot be written.
    """
    curve = sorted(curve, key=lambda point: point.peak_bytes)
    figure = load_figure_class()(figsize=(9.6, 6.2))
    axis = figure.add_axes((0.085, 0.165, 0.885, 0.735))
    figure.text(0.012, 0.95, f"{title}: simulated", fontsize=13, weight="bold")
    words = "\n".join(wrap(f"Simulated, no device was used. {caption}", 150))
    figure.text(0.012, 0.012, words, fontsize=7, color="#555555", va="bottom")
    axis.set_xlabel("peak memory (GiB)", fontsize=9)
    axis.tick_params(labelsize=8.5)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25, linewidth=0.6)
    axis.set_axisbelow(True)
    everything = [*points, *curve]
    longest_ns, shortest_ns = (choose(p.step_time_ns for p in everything) for choose in (max, min))
    unit_ns, unit = (SECOND, "s") if longest_ns >= 2 * SECOND else (SECOND // 1000, "ms")
    axis.set_ylabel(f"step time ({unit})", fontsize=9)
    if curve and longest_ns > WIDE * shortest_ns:
        _set_log_scale(axis)
    _set_limits(axis, everything, unit_ns, budget_bytes)
    if bound:
        _fill_below(axis, bound, unit_ns)
    if curve:
        x, y = [p.peak_bytes / GIB for p in curve], [p.step_time_ns / unit_ns for p in curve]
        # Between two plans the one that needs less memory is the best there is.
        axis.plot(x, y, color=CURVE, linewidth=1.8, marker="o", markersize=4, drawstyle="steps-post", label="plans")
        axis.legend(loc="upper center", frameon=False, fontsize=9)
    for point in points:
        axis.plot(point.peak_bytes / GIB, point.step_time_ns / unit_ns, color=_colour(point, points, budget_bytes),
                  marker="D" if curve else "o", markersize=7, linestyle="none", markeredgecolor="white")  # fmt: skip
    if budget_bytes is not None:
        axis.axvline(budget_bytes / GIB, color=OVER, linewidth=1.3, linestyle=(0, (5, 3)))
        axis.axvspan(budget_bytes / GIB, axis.get_xlim()[1], color=OVER, alpha=0.05, linewidth=0)
        axis.annotate(f"budget {format_bytes(budget_bytes)}", (budget_bytes / GIB, 1.0), (0, 4), va="bottom",
                      xycoords=("data", "axes fraction"), textcoords="offset points", ha="center", fontsize=8.5,
                      color=OVER)  # fmt: skip
    _write_names(figure, axis, points, curve, unit_ns, budget_bytes)
    save_figure(figure, path, dpi=120)


def _set_log_scale(axis: "Axes") -> None:
    """For step times that differ by more than `WIDE`: equal distances are equal ratios."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axis.set_yscale("log")
    axis.set_ylabel(f"{axis.get_ylabel()}, log scale", fontsize=9)
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def _fill_below(axis: "Axes", bound: Sequence[TradeOff], unit_ns: int) -> None:
    """The part of the picture where no policy can be."""
    low_x, low_y = axis.get_xlim()[0], axis.get_ylim()[0]
    high_x, high_y = axis.get_xlim()[1], axis.get_ylim()[1]
    x = [low_x, bound[0].peak_bytes / GIB, *(p.peak_bytes / GIB for p in bound), high_x]
    y = [high_y, high_y, *(p.step_time_ns / unit_ns for p in bound), bound[-1].step_time_ns / unit_ns]
    label = "no policy can be here" if x[1] > low_x or max(y[2:]) > low_y else None  # None: outside of what is shown
    axis.fill_between(x, y, low_y, color=OTHER, alpha=0.13, linewidth=0, label=label)


def _set_limits(axis: "Axes", points: Iterable[TradeOff], unit_ns: int, budget_bytes: int | None) -> None:
    """Room around the points for their names."""
    x = [p.peak_bytes / GIB for p in points] + ([budget_bytes / GIB] if budget_bytes is not None else [])
    y = [p.step_time_ns / unit_ns for p in points]
    is_log = axis.get_yscale() == "log"
    for values, set_limits in ((x, axis.set_xlim), *(() if is_log else ((y, axis.set_ylim),))):
        low, high = min(values), max(values)
        room = 0.14 * (high - low) or 0.1 * high or 1.0
        set_limits(max(0.0, low - room), high + room)
    if is_log:
        low, high = min(y), max(y)
        axis.set_ylim(low / (high / low) ** 0.14, high * (high / low) ** 0.14)


def _colour(point: TradeOff, points: Sequence[TradeOff], budget_bytes: int | None) -> str:
    """Red over the budget; blue where no other is both smaller and faster; else grey."""
    if budget_bytes is not None and point.peak_bytes > budget_bytes:
        return OVER
    beaten = any(
        other.peak_bytes <= point.peak_bytes
        and other.step_time_ns <= point.step_time_ns
        and (other.peak_bytes, other.step_time_ns) != (point.peak_bytes, point.step_time_ns)
        for other in points
    )
    return OTHER if beaten else BEST


def _write_names(
    figure: "Figure",
    axis: "Axes",
    points: Sequence[TradeOff],
    curve: Sequence[TradeOff],
    unit_ns: int,
    budget_bytes: int | None,
) -> None:
    """Each name at the nearest place where it covers no mark, no line, no other name and not the edge, or nearly so."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.path import Path as Line
    from matplotlib.transforms import Bbox

    renderer = FigureCanvasAgg(figure).get_renderer()

    def place_of(point: TradeOff) -> tuple[float, float]:
        return tuple(axis.transData.transform((point.peak_bytes / GIB, point.step_time_ns / unit_ns)))

    marks = [Bbox.from_extents(x - 7, y - 7, x + 7, y + 7) for x, y in map(place_of, [*points, *curve])]
    names: list[Bbox] = []
    lines = [Line([place_of(a), (place_of(b)[0], place_of(a)[1]), place_of(b)]) for a, b in pairwise(curve)]
    if budget_bytes is not None:
        at = axis.transData.transform((budget_bytes / GIB, 0))[0]
        lines.append(Line([(at, 0), (at, 1e5)]))
    inside = axis.get_window_extent(renderer)

    def look(text: "Annotation", point: TradeOff, place: tuple[int, int]) -> tuple[Bbox, Line | None, int]:
        """Box of a name at a place, the line to its mark if it is far, and how badly the place suits."""
        _put(text, place)
        box, leader = _text_box(text, renderer), None
        if max(map(abs, place)) > PLACES[0][0]:
            x, y = place_of(point)
            leader = Line([(x, y), (min(max(x, box.x0), box.x1), min(max(y, box.y0), box.y1))])
        is_inside = inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0 and box.y1 <= inside.y1
        num_covered = sum(box.overlaps(other) for other in [*marks, *names])
        num_crossed = sum(line.intersects_bbox(box, filled=False) for line in lines)
        num_crossed += sum(leader is not None and leader.intersects_bbox(other, filled=False) for other in names)
        return box, leader, num_crossed + 100 * num_covered + 10_000 * (not is_inside)

    for point in _joined(points):
        colour = _colour(point, points, budget_bytes)
        text = axis.annotate(
            point.name,
            (point.peak_bytes / GIB, point.step_time_ns / unit_ns),
            PLACES[0],
            textcoords="offset points",
            fontsize=8.5,
            color=colour,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 4},
        )
        best = min(PLACES, key=lambda place: look(text, point, place)[2])  # the nearest of those that suit best
        box, leader, _ = look(text, point, best)
        names.append(box)
        text.arrow_patch.set_visible(leader is not None)
        if leader is not None:
            lines.append(leader)


def _joined(points: Sequence[TradeOff]) -> list[TradeOff]:
    """Points that are the same, with both names."""
    names: dict[tuple[int, int], list[str]] = {}
    for point in points:
        names.setdefault((point.step_time_ns, point.peak_bytes), []).append(point.name)
    return [TradeOff(", ".join(found), *key) for key, found in names.items()]


def _put(text: "Annotation", place: tuple[int, int]) -> None:
    x, y = place
    text.set_position(place)
    text.set_horizontalalignment("left" if x > 0 else "right" if x < 0 else "center")
    text.set_verticalalignment("bottom" if y > 0 else "top" if y < 0 else "center")


def _text_box(text: "Annotation", renderer: "RendererBase") -> "Bbox":
    """The words alone, without the line to their mark."""
    from matplotlib.text import Text

    text.update_positions(renderer)
    return Text.get_window_extent(text, renderer).padded(2)
