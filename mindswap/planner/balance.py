"""Balance the layers of pipeline stages, and split the bubble of a pipeline by cause."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import NamedTuple, TypeVar

import numpy as np

from mindswap.config.pipeline_layout import Layout
from mindswap.simulator.layout import StageLayout
from mindswap.simulator.program import OpKind
from mindswap.simulator.timeline import StallCause, Timeline, find_waits

T = TypeVar("T")
# Limit of moves without improvement, after which the current layout is taken as the best.
MAX_MOVES = 3


def balance_stages(
    best: T,
    layout_of: Callable[[T], Layout | None],
    busy_ns_of: Callable[[T], Sequence[int]],
    faster: Callable[[T, Sequence[Layout]], T | None],
) -> T:
    """Move layers from the busiest stage to others while the step gets faster.

    Args:
        best: initial candidate.
        layout_of: candidate -> its layers by stage; None if they cannot be moved.
        busy_ns_of: candidate -> busy time of each stage in a step.
        faster: (candidate, layouts) -> candidate with the first of these layouts that is faster; None if none is.
    """
    tried = {layout_of(best)}
    while (current := layout_of(best)) is not None:
        untried = islice(
            (layout for layout in moved_layers(current, busy_ns_of(best)) if layout not in tried), MAX_MOVES
        )
        improved = faster(best, moves := tuple(untried))
        if improved is None:
            break
        tried.update(moves[: moves.index(layout_of(improved)) + 1])
        best = improved
    return best


def moved_layers(layout: Layout, busy_ns: Sequence[int]) -> Iterator[Layout]:
    """Yield layouts with one layer moved from the busiest stage to another one, the least busy first.

    No stage is left without layers.

    Args:
        layout: layers of each chunk on each stage.
        busy_ns: busy time of each stage in a step.
    """
    cells = list(layout.cells())
    busiest = max(range(len(busy_ns)), key=busy_ns.__getitem__)
    for target in sorted(range(len(busy_ns)), key=busy_ns.__getitem__):
        for source in (cell for cell in cells if cell.stage == busiest != target and len(cell.layers) > 1):
            destination = next(cell for cell in cells if cell.stage == target and cell.chunk == source.chunk)
            sizes = [list(row) for row in layout.sizes]
            sizes[source.chunk][source.position] -= 1
            sizes[destination.chunk][destination.position] += 1
            yield Layout(tuple(map(tuple, sizes)), layout.num_layers, layout.is_zero_bubble_v)


def busy_of(timeline: Timeline) -> tuple[int, ...]:
    """Return the busy time of each stage in ns: the step time without waits for other stages."""
    return tuple(sum(parts) for parts in _stage_times(timeline))


@dataclass(frozen=True)
class Bubble:
    """Time of a step in addition to forward and backward, as fractions of the time of forward and backward.

    Attributes:
        ideal: fill and drain of the pipeline if all stages were equal.
        recompute: recompute, and its share of fill and drain.
        copies: waits for copies, and their share of fill and drain.
        imbalance: the remainder: waits for stages that have more to do.
    """

    ideal: float
    recompute: float
    copies: float
    imbalance: float

    def __str__(self) -> str:
        total = self.ideal + self.recompute + self.copies + self.imbalance
        return (
            f"{total:.4f} = {self.ideal:.4f} ideal + {self.imbalance:.4f} imbalance + {self.recompute:.4f} recompute "
            f"+ {self.copies:.4f} waits for copies"
        )


def split_bubble(timeline: Timeline, layout: StageLayout) -> Bubble:
    """Split the bubble of a pipeline step, without the optimizer; averaged over the stages."""
    parts_ns = np.array(_stage_times(timeline), float).mean(axis=0)
    base_ns, recompute_ns, copies_ns = parts_ns.tolist()
    ideal = (layout.num_stages - 1) / (layout.num_micro_steps * layout.shape.num_chunks)
    recompute, copies = (part_ns * (1 + ideal) / base_ns for part_ns in (recompute_ns, copies_ns))
    return Bubble(ideal, recompute, copies, timeline.step_time_ns / base_ns - 1 - ideal - recompute - copies)


class _StageTimes(NamedTuple):
    """Times of a stage in ns, without waits for other stages."""

    work_ns: int  # forward and backward, with exposed communication
    recompute_ns: int
    copies_ns: int  # waits for copies


def _stage_times(timeline: Timeline) -> list[_StageTimes]:
    """Return the times of each stage."""
    ops, starts = timeline.program.ops, timeline.program.stage_starts.tolist()
    times_ns = []
    for stage, (begin, end) in enumerate(pairwise(starts)):
        kind, duration_ns = ops.kind[begin:end], ops.duration_ns[begin:end]
        work_ns = int(duration_ns[(kind == OpKind.FORWARD) | (kind == OpKind.BACKWARD)].sum())
        recompute_ns = int(duration_ns[kind == OpKind.RECOMPUTE].sum())
        _, wait_begin_ns, wait_end_ns, cause = find_waits(timeline, stage)
        wait_ns = wait_end_ns - wait_begin_ns
        communication_ns = int(wait_ns[cause == StallCause.COMMUNICATION].sum())
        copies_ns = int(wait_ns[(cause == StallCause.COPY_OUT) | (cause == StallCause.COPY_IN)].sum())
        times_ns.append(_StageTimes(work_ns + communication_ns, recompute_ns, copies_ns))
    return times_ns
