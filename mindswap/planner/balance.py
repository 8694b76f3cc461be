"""Layers of pipeline stages: who hands one to whom, and what a pipeline loses."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import TypeVar

import numpy as np

from mindswap.config.pipeline_layout import Layout
from mindswap.simulator.layout import StageLayout
from mindswap.simulator.program import OpKind
from mindswap.simulator.timeline import StallCause, Timeline, find_waits

T = TypeVar("T")
# Moves of a layer that are tried before the best is taken to be the best.
MAX_MOVES = 3


def balance_stages(
    best: T,
    layout_of: Callable[[T], Layout | None],
    busy_ns_of: Callable[[T], Sequence[int]],
    faster: Callable[[T, Sequence[Layout]], T | None],
) -> T:
    """Hands layers of the busiest stage to others, as long as it gets faster.

    Args:
        best: where to begin.
        layout_of: layers on its stages.
        busy_ns_of: how long each stage works in a step.
        faster: the first of these layouts with which it is faster; None if it is with none.
    """
    tried = {layout_of(best)}
    while (layout := layout_of(best)) is not None:
        others = islice((one for one in moved_layers(layout, busy_ns_of(best)) if one not in tried), MAX_MOVES)
        found = faster(best, moves := tuple(others))
        if found is None:
            break
        tried.update(moves[: moves.index(layout_of(found)) + 1])
        best = found
    return best


def moved_layers(layout: Layout, busy_ns: Sequence[int]) -> Iterator[Layout]:
    """The layout with one layer moved from the busiest stage to another one, the idlest first; no stage is left empty.

    Args:
        layout: layers of each chunk on each stage.
        busy_ns: how long each stage works in a step.
    """
    cells = list(layout.cells())
    busiest = max(range(len(busy_ns)), key=busy_ns.__getitem__)
    for target in sorted(range(len(busy_ns)), key=busy_ns.__getitem__):
        for source in (cell for cell in cells if cell.stage == busiest != target and len(cell.layers) > 1):
            to = next(cell for cell in cells if cell.stage == target and cell.chunk == source.chunk)
            sizes = [list(row) for row in layout.sizes]
            sizes[source.chunk][source.position] -= 1
            sizes[to.chunk][to.position] += 1
            yield Layout(tuple(map(tuple, sizes)), layout.num_layers, layout.is_zero_bubble_v)


def busy_of(timeline: Timeline) -> tuple[int, ...]:
    """How long each stage works in a step, ns: all but what it waits for other stages."""
    return tuple(sum(parts) for parts in _parts_ns(timeline))


@dataclass(frozen=True)
class Bubble:
    """Time of a step beyond forward and backward, communication in the stages with them, as parts of these.

    Attributes:
        ideal: stages that fill and drain, if all were alike.
        recompute: forward that runs again, and longer to fill and drain with it.
        copies: operators that wait for swaps; likewise.
        imbalance: the rest: stages that wait for others, which have more to do.
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
    """The bubble of a step of a pipeline, without the optimizer; figures are of the average stage."""
    parts_ns = np.array(_parts_ns(timeline), float).mean(axis=0)
    base_ns, recompute_ns, copies_ns = parts_ns.tolist()
    ideal = (layout.num_stages - 1) / (layout.num_micro_steps * layout.shape.num_chunks)
    recompute, copies = (part_ns * (1 + ideal) / base_ns for part_ns in (recompute_ns, copies_ns))
    return Bubble(ideal, recompute, copies, timeline.step_time_ns / base_ns - 1 - ideal - recompute - copies)


def _parts_ns(timeline: Timeline) -> list[tuple[int, int, int]]:
    """Of each stage: forward and backward with communication that they wait for, forward again, waits for copies."""
    ops, starts = timeline.program.ops, timeline.program.stage_starts.tolist()
    found = []
    for stage, (begin, end) in enumerate(pairwise(starts)):
        kind, duration_ns = ops.kind[begin:end], ops.duration_ns[begin:end]
        work_ns = int(duration_ns[(kind == OpKind.FORWARD) | (kind == OpKind.BACKWARD)].sum())
        recompute_ns = int(duration_ns[kind == OpKind.RECOMPUTE].sum())
        _, wait_begin_ns, wait_end_ns, cause = find_waits(timeline, stage)
        wait_ns = wait_end_ns - wait_begin_ns
        talk_ns = int(wait_ns[cause == StallCause.COMMUNICATION].sum())
        copies_ns = int(wait_ns[(cause == StallCause.COPY_OUT) | (cause == StallCause.COPY_IN)].sum())
        found.append((work_ns + talk_ns, recompute_ns, copies_ns))
    return found
