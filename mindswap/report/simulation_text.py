"""Texts, rows and curves of simulation reports, shared by all output formats."""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np

from mindswap.policy.wording import name_indices
from mindswap.report.tables import group_equal
from mindswap.report.timeline_bars import BarKind, Bars, list_bars
from mindswap.simulator.cost.budget import MemoryBudget
from mindswap.simulator.report_data import Cause, Moment, PeakContributor, SimulationReport, StageReport
from mindswap.simulator.summary import group_layer_rows
from mindswap.simulator.timeline import MemoryProfile, StallCause, Timeline
from mindswap.units import common_unit, format_bytes, format_time

MAX_PIECES = 4  # limit of ranges in a list of layers


class Head(Enum):
    """Headline figures with their names."""

    STEP_TIME = "step time"
    TOKENS = "tokens/s per card"
    MFU = "MFU"
    PEAK = "peak memory"
    MOMENT = "peak is at"
    EXPOSED = "exposed copy time"
    HOST = "host memory"


def describe_layers(layers: Sequence[int]) -> str:
    """Format layers, for example `layers 0-3` or `layer 1 and outside the layers`; -1 means outside.

    A list of many ranges is abbreviated: `29 layers of 0-79`.
    """
    inside = [layer for layer in layers if layer >= 0]
    parts = [name_indices("layer", inside)] if inside else []
    if parts and parts[0].count(",") >= MAX_PIECES:
        parts = [f"{len(inside)} layers of {inside[0]}-{inside[-1]}"]
    if len(inside) < len(layers):
        parts.append("outside the layers")
    return " and ".join(parts)


def describe_moment(moment: Moment) -> str:
    """Format a moment, for example `backward of layer 3, micro-batch 0: ffn Mul`."""
    return f"{moment.phase}, {describe_layers([moment.layer])}, micro-batch {moment.micro_batch}: {moment.label}"


def describe_holder(holder: PeakContributor) -> str:
    """Format a holder of memory, for example `attention.wq MatMul, layers 0-31, saved activations`."""
    return f"{holder.label}, {describe_layers(holder.layers)}, {holder.part.title}"


def describe_cause(cause: Cause) -> str:
    """Format the cause of a wait, for example `prefetch (H2D) of ffn Mul, layers 3-5`."""
    copy = "offload (D2H)" if cause.cause == StallCause.COPY_OUT else "prefetch (H2D)"
    return f"{copy} of {cause.label}, {describe_layers(cause.layers)}"


def describe_budget(peak_bytes: int, budget_bytes: int | None, margin_permille: int = 0) -> str:
    """Format the budget, for example `fits in 54.0 GiB with 6.9 GiB to spare`; "" without a budget."""
    return "" if budget_bytes is None else MemoryBudget(budget_bytes, margin_permille).describe(peak_bytes)


def format_share(part: int, total: int) -> str:
    """Format a percentage, for example `3.1 %`; `-` for zero."""
    return f"{100 * part / total:.1f} %" if part and total else "-"


class Headline(NamedTuple):
    """A headline figure."""

    head: Head
    value: str
    remark: str


def headline(report: SimulationReport) -> tuple[Headline, ...]:
    """Return the headline figures."""
    stage = report.peak_stage
    stage_prefix = f"stage {stage.stage}, " if len(report.stages) > 1 else ""
    when = format_time(stage.moment.time_ns)
    exposed = report.exposed_copy_ns
    share = f"{format_share(exposed, report.step_time_ns)} of the step" if exposed else ""
    host = format_bytes(max(stage.host_bytes for stage in report.stages))
    terms = [f"{format_time(term.duration_ns)} {term.name}" for term in report.terms if term.duration_ns]
    budget = describe_budget(report.actual_peak_bytes, report.budget_bytes, report.margin_permille)
    if report.actual_peak_bytes > report.peak_bytes:
        budget = f"{format_bytes(report.actual_peak_bytes)} with fragments{', ' if budget else ''}{budget}"
    mfu = f"{report.mfu:.1%}".replace("%", " %")
    return (
        Headline(Head.STEP_TIME, format_time(report.step_time_ns), f"of which {', '.join(terms)}" if terms else ""),
        Headline(Head.TOKENS, f"{report.tokens_per_s:.0f}", f"{report.num_cards} cards" * (report.num_cards > 1)),
        Headline(Head.MFU, mfu, f"of {report.peak_flops / 1e12:.1f} TFLOPS per card"),
        Headline(Head.PEAK, format_bytes(stage.peak_bytes), budget),
        Headline(Head.MOMENT, when, stage_prefix + describe_moment(stage.moment)),
        Headline(Head.EXPOSED, format_time(exposed), share),
        Headline(Head.HOST, host, f"pinned per card; {format_bytes(report.host_bytes_per_node)} per node"),
    )


# Reduction of bars and curves to a size that can be drawn: bars that are too short to see are joined.

WAITS = tuple(kind for kind in BarKind if kind.is_wait)
LEAST_WAIT = 8  # the waits of a joined bar are omitted if their total is below this fraction (1/8) of the resolution


def join_bars(bars: Bars, resolution_ns: int, by_layer: bool = True) -> Bars:
    """Join adjacent short bars of equal kind, layer and micro-batch.

    Short waits are added up and drawn before the joined bar that follows them, so that a picture shows the true total
    of waiting time.

    Args:
        bars: bars of one stage, by lane and start.
        resolution_ns: bars shorter than this are joined.
        by_layer: False also joins longer bars, and bars of different layers.

    Returns:
        The joined bars.
    """
    is_long = bars.end_ns - bars.start_ns >= resolution_ns
    is_work = is_long | ~np.isin(bars.kind, WAITS)
    if resolution_ns <= 0 or not is_work.any():
        return bars
    # A group: adjacent work that becomes one bar, with the short waits before each part of it.
    work = np.flatnonzero(is_work)
    before, behind = work[:-1], work[1:]
    keys = ("lane", "kind", "micro_batch", *(["layer"] if by_layer else []))
    begins = np.any([getattr(bars, key)[behind] != getattr(bars, key)[before] for key in keys], axis=0)
    begins |= bars.start_ns[behind] - bars.end_ns[before] >= resolution_ns
    begins |= (is_long[behind] | is_long[before]) & by_layer
    group = np.append(0, np.cumsum(begins))[np.searchsorted(work, np.arange(work[-1] + 1))]
    wait_ns = np.bincount(group, np.where(is_work, 0, bars.busy_ns)[: len(group)]).astype(np.int64)
    shown = np.flatnonzero(is_work[: len(group)] | (wait_ns > resolution_ns // LEAST_WAIT)[group])
    # Pieces of a group: its waits sorted by kind, then its work.
    shown = shown[np.lexsort((bars.kind[shown], is_work[shown], group[shown]))]
    marks = np.stack([group[shown], is_work[shown], np.where(is_work[shown], -1, bars.kind[shown])])
    first = np.flatnonzero(np.append(True, (marks[:, 1:] != marks[:, :-1]).any(axis=0)))
    joined = bars[shown[first]].view(Bars)
    for name in ("busy_ns", "count", "size_bytes"):
        joined[name] = np.add.reduceat(getattr(bars, name)[shown], first)
    layers = bars.layer[shown]
    is_one_layer = np.maximum.reduceat(layers, first) == np.minimum.reduceat(layers, first)
    joined["layer"] = np.where(is_one_layer, joined["layer"], -1)
    # Waits precede the work, from the start of the group, and get its layer and micro-batch.
    of_work, group_of_joined = is_work[shown[first]], group[shown[first]]
    begin, last = (np.flatnonzero(np.diff(group_of_joined, **edge)) for edge in ({"prepend": -1}, {"append": -1}))
    for name in ("layer", "micro_batch"):
        joined[name] = joined[name][last][group_of_joined]
    joined["label"] = np.where(of_work, joined["label"], -1)
    waited_ns = np.where(of_work, 0, joined["busy_ns"])
    so_far_ns = np.cumsum(waited_ns) - waited_ns
    group_start_ns = np.minimum.reduceat(np.minimum.reduceat(bars.start_ns[shown], first), begin)
    joined["start_ns"] = group_start_ns[group_of_joined] + so_far_ns - so_far_ns[begin][group_of_joined]
    joined["end_ns"] = np.where(of_work, np.maximum.reduceat(bars.end_ns[shown], first), joined["start_ns"] + waited_ns)
    return joined


def fit_bars(timeline: Timeline, stages: Sequence[int], max_bars: int) -> list[Bars]:
    """Return the bars of some stages with the finest resolution that `max_bars` allows; layers are joined last."""
    full = [list_bars(timeline, stage) for stage in stages]
    step_ns = max(1, timeline.step_time_ns)
    resolutions = [0, *(step_ns // parts for parts in (100_000, 30_000, 10_000, 3_000))]
    for by_layer in (True, False):
        for resolution_ns in resolutions[0 if by_layer else -1 :]:
            joined = [join_bars(bars, resolution_ns, by_layer) for bars in full]
            if sum(map(len, joined)) <= max_bars:
                return joined
    return joined


def sample_memory(memory: MemoryProfile, end_ns: int, max_points: int) -> tuple[np.ndarray, np.ndarray]:
    """Reduce a memory curve to about `max_points` points; the maximum of each part of the step is kept.

    Returns:
        Times (int64, shape (n,)) and bytes by kind (int64, shape (num_kinds, n)), constant between times; the last time
        is `end_ns`.
    """
    time_ns, by_kind = memory.time_ns, memory.by_kind_bytes
    if len(time_ns) > max_points:
        part = time_ns * (max_points // 2) // max(1, end_ns)
        total = by_kind.sum(axis=0)
        last = np.flatnonzero(np.append(np.diff(part) > 0, True))
        # Sort by size within each part, then take the first of each part.
        order = np.lexsort((-total, part))
        highest = order[np.append(True, np.diff(part[order]) > 0)]
        chosen = np.unique(np.concatenate([highest, last]))
        time_ns, by_kind = time_ns[chosen], by_kind[:, chosen]
    if not len(time_ns) or time_ns[-1] < end_ns:
        level = by_kind[:, -1:] if len(time_ns) else np.zeros((by_kind.shape[0], 1), np.int64)
        time_ns, by_kind = np.append(time_ns, end_ns), np.concatenate([by_kind, level], axis=1)
    return time_ns, by_kind


STAGE_HEADER = ("pipeline stage", "peak", "static", "activations", "compute", "of which recompute", "bubble",
                "waits for D2H", "waits for H2D", "waits for collectives", "swapped",
                "D2H busy", "H2D busy")  # fmt: skip
LAYER_HEADER = ("per micro-batch", "kept", "swapped", "recomputed", "copies", "forward", "backward", "recompute",
                "waited for its copies")  # fmt: skip


def stage_rows(report: SimulationReport) -> list[tuple[StageReport, tuple[str, ...]]]:
    """Return the rows for `STAGE_HEADER`, equal stages in one, each with its first stage."""

    def cells(stage: StageReport) -> tuple[str, ...]:
        return _stage_cells(stage, report.timeline.step_time_ns)

    groups = group_equal(report.stages, cells, (stage.stage for stage in report.stages))
    return [(first, (name_indices("stage", stages), *cells(first))) for stages, first in groups]


def _stage_cells(stage: StageReport, step_ns: int) -> tuple[str, ...]:
    sizes = (stage.peak_bytes, stage.static_bytes, stage.memory.peak_bytes)
    times = (stage.compute_ns, stage.recompute_ns, stage.bubble_ns)
    waits = (stage.copy_out_ns, stage.copy_in_ns, stage.communication_ns)
    return (
        *map(format_bytes, sizes),
        *(format_time(time_ns) if time_ns else "-" for time_ns in (*times, *waits)),
        format_bytes(stage.swapped_bytes) if stage.swapped_bytes else "-",
        format_share(stage.offload_busy_ns, step_ns),
        format_share(stage.prefetch_busy_ns, step_ns),
    )


def layer_rows(report: SimulationReport) -> list[tuple[str, ...]]:
    """Return the rows for `LAYER_HEADER`, equal layers in one, with a common unit for all sizes."""
    groups = group_layer_rows(report.layers)
    sizes = [(row.kept_bytes, row.swapped_bytes, row.recomputed_bytes) for _, row in groups]
    unit = common_unit(size for row in sizes for size in row)
    rows = []
    for (name, row), row_bytes in zip(groups, sizes, strict=True):
        times = (row.forward_ns, row.backward_ns, row.recompute_ns, row.exposed_ns)
        shown = [format_bytes(size, unit) if size else "-" for size in row_bytes]
        shown += [str(row.num_copies or "-"), *(format_time(time_ns) if time_ns else "-" for time_ns in times)]
        rows.append((name, *shown))
    return rows
