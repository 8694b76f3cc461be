"""Choices that free so many bytes: by swap what is dearest to recompute, by recompute what is cheapest."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mindswap.planner.space import KEEP, Figures, Space


@dataclass(frozen=True)
class RecomputeStep:
    """From one way to recompute an item to a more thorough one."""

    # item, way: what it leads to
    item: int
    way: int
    before: int  # way that it starts from; 0 for keep
    ns_per_byte: float  # what each further byte costs, all layers together


def recompute_order(figures: Figures) -> list[RecomputeStep]:
    """Ways to recompute that are worth it, cheapest byte first: for each item the lower convex hull of its ways."""
    bytes_of = figures.freed_bytes.sum(axis=0)
    ns_of = figures.recompute_ns.sum(axis=0)
    recompute_steps: list[RecomputeStep] = []
    for item in range(1, figures.num_items):
        recompute_steps += _hull(item, bytes_of[item], ns_of[item])
    recompute_steps.sort(key=lambda step: (step.ns_per_byte, step.item))
    freed = sum(int(bytes_of[u.item, u.way] - bytes_of[u.item, u.before] * (u.before > 0)) for u in recompute_steps)
    spent = sum(int(ns_of[u.item, u.way] - ns_of[u.item, u.before]) for u in recompute_steps)
    if bytes_of[0, 1:].sum() > freed:  # the whole layer frees what the items cannot
        more = max(0, int(ns_of[0, 1]) - spent) / (int(bytes_of[0, 1]) - freed)
        recompute_steps.append(RecomputeStep(0, 1, 0, more))
    return recompute_steps


def _hull(item: int, bytes_of: np.ndarray, ns_of: np.ndarray) -> list[RecomputeStep]:
    found: list[RecomputeStep] = []
    way, done_bytes, done_ns = 0, 0, 0
    while True:
        better = [w for w in range(1, len(bytes_of)) if bytes_of[w] > done_bytes]
        if not better:
            return found
        slopes = [((ns_of[w] - done_ns) / (bytes_of[w] - done_bytes), -bytes_of[w], w) for w in better]
        slope, _, best = min(slopes)
        found.append(RecomputeStep(item, best, way, max(0.0, float(slope))))
        way, done_bytes, done_ns = best, bytes_of[best], ns_of[best]


def swap_order(figures: Figures) -> list[int]:
    """Items by what recompute of all their bytes would cost, dearest first; what cannot be recomputed goes first."""
    bytes_of = figures.freed_bytes.sum(axis=0)
    ns_of = figures.recompute_ns.sum(axis=0)

    def price(item: int) -> float:
        ways = [w for w in range(1, bytes_of.shape[1]) if bytes_of[item, w] * 2 >= bytes_of[item, 0] > 0]
        return min((ns_of[item, w] / bytes_of[item, w] for w in ways), default=float("inf"))

    items = [item for item in range(figures.num_items) if bytes_of[item, 0] > 0]
    return sorted(items, key=lambda item: (-price(item), -bytes_of[item, 0], item))


class UniformSwap:
    """Choices in which many layers swap the same little, so that the link is never long behind.

    Args:
        space: whose layers.
    """

    def __init__(self, space: Space):
        self.figures = space.figures
        self.swaps, self.recompute_steps = swap_order(self.figures), recompute_order(self.figures)

    def choice(self, freed_bytes: int, copy_ns: float, host_bytes: float) -> np.ndarray:
        """A choice that frees so much, by swap as far as link and host allow; swaps have distance 1."""
        size, time_ns = 0, 0
        for item in self.swaps:
            for own_bytes, own_ns in zip(
                self.figures.freed_bytes[:, item, 0].tolist(), self.figures.copy_ns[:, item].tolist(), strict=True
            ):
                if size < min(freed_bytes, host_bytes) and time_ns < copy_ns:
                    size, time_ns = size + own_bytes, time_ns + own_ns
        return fill(self.figures, self.swaps, self.recompute_steps, size, freed_bytes - size)


def fill(
    figures: Figures,
    swaps: Sequence[int],
    recompute_steps: Sequence[RecomputeStep],
    swap_bytes: int,
    recompute_bytes: int,
) -> np.ndarray:
    """A choice that swaps about `swap_bytes` and recomputes about `recompute_bytes`, per micro-batch.

    Args:
        figures: of the decisions.
        swaps: items in the order in which they are swapped, first layers first.
        recompute_steps: ways to recompute in order.
        swap_bytes, recompute_bytes: how much to free in each way; less where there is no more.

    Returns:
        Swaps have distance 1.
    """
    choice = np.zeros((figures.num_layers, figures.num_items), np.int64)
    for item in swaps:
        size = figures.freed_bytes[:, item, 0]
        taken = (size > 0) & (np.cumsum(size) - size < swap_bytes)
        choice[taken, item] = 1
        swap_bytes -= int(size[taken].sum())
    for step in recompute_steps:
        column = choice[:, step.item]
        size = figures.freed_bytes[:, step.item, step.way]
        if step.before:
            size = size - figures.freed_bytes[:, step.item, step.before]
        if step.item == 0:
            size = size - figures.freed_by(choice).sum(axis=1)
        else:  # where it would undo a swap, the swap stays
            size = np.where(figures.undone_by(choice, step.item, step.way), 0, size)
        size = np.where((column == -step.before) & (size > 0), size, 0)
        taken = (size > 0) & (np.cumsum(size) - size < recompute_bytes)
        if step.item == 0:
            choice[taken] = KEEP
        choice[taken, step.item] = -step.way
        recompute_bytes -= int(size[taken].sum())
    return choice
