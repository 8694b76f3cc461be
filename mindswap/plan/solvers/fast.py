"""The default solver: two amounts, what is swapped and what is recomputed, then improvement on the simulator. Pure.

Layers are alike, so a good choice is nearly: recompute what costs least per byte, swap what costs most to
recompute until the link is busy. For each amount of swap the least amount of recompute that fits is looked for;
the best of these is then changed in many small ways. Every figure that decides is simulated.
"""

import contextlib
from collections.abc import Sequence

import numpy as np

from mindswap.plan.solvers.fill import fill, lossless_order, recompute_order, swap_order
from mindswap.plan.solvers.improve import improve
from mindswap.plan.solvers.search import Progress, Search, Stop
from mindswap.plan.space import KEEP, Score, Space
from mindswap.simulate.program import OpKind

__all__ = ["solve"]

# Simulations: so many operators altogether, but no more simulations than this.
MAX_OPERATORS = 1_250_000
MAX_EVALUATIONS = 3000
# Time on the link per micro-batch that is tried, as parts of the time of forward.
LINK_LOADS = (0.0, 0.2, 0.4, 0.6, 0.75, 0.9, 1.0, 1.15, 1.4, 2.0, 4.0)
NUM_CORRECTIONS = 5
# With less effort than this every second load is tried.
QUICK_PERMILLE = 500
# Loads of the link from whose best choice the improvement starts.
NUM_STARTS = 4


def solve(
    space: Space, progress: Progress = lambda: None, effort_permille: int = 1000, starts: Sequence[np.ndarray] = ()
) -> Search:
    """The best choice that is found; the same for the same space.

    Args:
        space: what to choose from.
        progress: called after each simulation; may raise `Stop`.
        effort_permille: simulations to make, in thousandths of the usual number.
        starts: choices that were good for a space much like this one; if one fits, only they are improved.
    """
    search = Search(space, MAX_EVALUATIONS, progress)
    with contextlib.suppress(Stop):
        _Solver(search, effort_permille).run(starts)
    return search


class _Solver:
    def __init__(self, search: Search, effort_permille: int):
        self.search = search
        self.space = search.space
        self.figures = search.space.figures
        orders = [swap_order(self.figures), lossless_order(self.figures)]
        self.orders = orders[:1] if orders[0] == orders[1] else orders
        self.loads = LINK_LOADS[::2] if effort_permille < QUICK_PERMILLE else LINK_LOADS
        self.swaps = self.orders[0]
        self.upgrades = recompute_order(self.figures)
        self.effort_permille = effort_permille
        self.starts: dict[float, np.ndarray] = {}  # the best choice with each load of the link, in the order at hand

    def run(self, given: Sequence[np.ndarray]) -> None:
        shape = (self.figures.num_layers, self.figures.num_items)
        keep = np.zeros(shape, np.int64)
        score, timeline = self.search.run(keep)
        num_ops = len(timeline.program.ops)
        limit = MAX_OPERATORS // max(num_ops + self.space.fixed_operators, 1) * self.effort_permille // 1000
        self.search.max_evaluations = min(MAX_EVALUATIONS, max(limit, 40))
        if score.fits:
            return  # nothing is faster than to keep everything
        self.far = num_ops // max(1, self.space.layout.num_turns)  # a distance beyond every use
        ops = timeline.program.ops
        micro_batches = self.space.layout.num_turns
        self.forward_ns = int(ops.duration_ns[ops.kind == OpKind.FORWARD].sum()) // micro_batches
        self.deficit_bytes = -(-score.excess_bytes // self.figures.num_in_flight)
        if any(self.search.score(choice).fits for choice in given):
            improve(self.search, self.forward_ns)
            return
        starts: list[tuple[Score, int, float, np.ndarray]] = []
        for number, order in enumerate(self.orders):
            self.swaps = order
            found = self._try_loads()
            starts += [(score, number, load, self.starts[load]) for load, score in found.items()]
        if self.deficit_bytes > 0:
            self._squeeze()
        starts.sort(key=lambda start: start[:3])
        improve(self.search, self.forward_ns, [start[3] for start in starts[:NUM_STARTS]])

    def _try_loads(self) -> dict[float, Score]:
        """The best with each load of the link, and with some between the best ones."""
        found = {load: self._best_with(load) for load in self.loads if self._is_new_load(load)}
        for _ in range(len(self.loads) // 3):
            loads = sorted(found)
            best = min(loads, key=lambda load: (found[load], load))
            at = loads.index(best)
            for near in loads[max(0, at - 1) : at] + loads[at + 1 : at + 2]:
                load = (near + best) / 2
                found[load] = self._best_with(load)
        return found

    def _is_new_load(self, load: float) -> bool:
        """Whether there is as much to swap."""
        total_ns = int(self.figures.copy_ns[self.figures.freed_bytes[:, :, 0] > 0].sum())
        return load == 0 or load * self.forward_ns < total_ns * 1.5

    def _best_with(self, load: float) -> Score:
        """The least recompute that fits beside so much swap, by its measured excess."""
        swap_bytes = self._bytes_on_link(load)
        recompute_bytes = self.deficit_bytes - swap_bytes
        best: Score | None = None
        low, high = 0, None  # recompute that is too little; that fits
        distances = self._distances(
            fill(self.figures, self.swaps, self.upgrades, swap_bytes, recompute_bytes, self.far)
        )
        for _ in range(NUM_CORRECTIONS):
            recompute_bytes = max(recompute_bytes, 0)
            choice = fill(self.figures, self.swaps, self.upgrades, swap_bytes, recompute_bytes, distances)
            score, timeline = self.search.run(choice)
            if (choice > KEEP).any():  # with less recompute or more, other distances may be enough
                needed = self.space.smallest_distances(timeline).max(axis=0)[None, :]
                closer = np.where(choice > KEEP, np.where(needed > 0, needed, self.far), choice)
                closer_score = self.search.score(closer)
                if closer_score < score:
                    choice, score, distances = closer, closer_score, np.where(needed > 0, needed, distances)
            if best is None or score < best:
                best, self.starts[load] = score, choice
            in_flight = self.figures.num_in_flight
            spare = self.space.budget_bytes - score.peak_bytes
            if score.fits:
                high = recompute_bytes if high is None else min(high, recompute_bytes)
                recompute_bytes = max(low + (high - low) // 8, recompute_bytes - spare // in_flight)
                if high == 0 or high - low < self.deficit_bytes // 200:
                    break
            else:
                low = max(low, recompute_bytes)
                recompute_bytes += -(-score.excess_bytes // in_flight)
                if high is not None:
                    recompute_bytes = min(recompute_bytes, (low + high) // 2)
        assert best is not None
        return best

    def _distances(self, choice: np.ndarray) -> np.ndarray:
        """For each item the least distance with which copies delay nothing, or the one that delays least.

        The copies of all items share the link, so what the first timeline asks for may be too little together.
        """
        if not (choice > KEEP).any():
            return np.full((1, choice.shape[1]), self.far)
        score, timeline = self.search.run(choice)
        needed = self.space.smallest_distances(timeline).max(axis=0)[None, :]
        found = []
        for factor in (1, 2, 4):
            distances = np.minimum(np.where(needed > 0, needed * factor, self.far), self.far)
            found.append((self.search.score(np.where(choice > KEEP, distances, choice)), factor, distances))
            if found[-1][0].step_time_ns <= score.step_time_ns * 1001 // 1000:
                break
        return min(found, key=lambda entry: (entry[0].step_time_ns, entry[1]))[2]

    def _bytes_on_link(self, load: float) -> int:
        """Bytes whose copies take so much of forward, in the order in which they are swapped."""
        left_ns, size = load * self.forward_ns, 0
        for item in self.swaps:
            for layer in range(self.figures.num_layers):
                if left_ns <= 0:
                    return size
                left_ns -= self.figures.copy_ns[layer, item]
                size += int(self.figures.freed_bytes[layer, item, 0])
        return size

    def _squeeze(self) -> None:
        """The least memory there is: all that can be swapped is, close to its use, and all else is recomputed."""
        everything = 2 * int(self.figures.freed_bytes.max(axis=2).sum())
        whole = np.zeros((self.figures.num_layers, self.figures.num_items), np.int64)
        whole[:, 0] = np.where(self.figures.freed_bytes[:, 0, 1] > 0, -1, KEEP) if whole.size else KEEP
        self.search.score(whole)
        for distance in (1, 2, 4, self.far // max(1, self.figures.num_layers)):
            for swap_bytes in (everything, 0):
                for upgrades in (self.upgrades, [u for u in self.upgrades if u.item]):
                    self.search.score(
                        fill(self.figures, self.swaps, upgrades, swap_bytes, everything, max(distance, 1))
                    )
            first = [u for u in self.upgrades if u.item]
            both = fill(self.figures, [], first, 0, everything, 1)
            swapped = fill(self.figures, self.swaps, [], everything, 0, max(distance, 1))
            self.search.score(np.where(both == KEEP, swapped, both))
