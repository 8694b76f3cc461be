"""The default solver: so much of the link for swap, the least recompute beside it, then improvement.

Layers are alike, so a good choice has few different rows (`column_generation`). For each amount of swap the mixture of
rows is looked for that just fits; the best of these is then changed in many small ways. Every figure that decides is
simulated.
"""

import contextlib
from collections.abc import Sequence

import numpy as np

from mindswap.planner.solver.column_generation import ColumnGeneration, front_loaded, interleaved
from mindswap.planner.solver.improve import SMALL_SPACE_CELLS, by_row, grouped, hiding_time_ns, improve
from mindswap.planner.solver.search import Progress, Search, Stop
from mindswap.planner.stage_problem import KEEP, Score, Space

# Simulations: so many operators altogether, but no more simulations than this.
MAX_OPERATORS = 2_500_000
MAX_EVALUATIONS = 3000
# Time on the link per micro-batch that is tried, as parts of the time of forward: from the first one down, else up, as
# long as it gets better. Nearly all of forward: beyond that copies fall behind, and little shows what would do.
FIRST_LOAD = 0.9
MORE_LOADS = (1.0, 1.2, 1.4, 1.6, 2.4, 4.0)
LESS_PARTS = (0.9, 0.7, 0.5, 0.25, 0.0)
# Loads that were no better, after which no further ones of that direction are tried.
MOST_WORSE = 2
# Where a first load fits nothing, this part of it is tried before rows of that kind are given up.
FALLBACK_PART = 0.7
NUM_CORRECTIONS = 4
# Distances with which the least memory is looked for.
CLOSE_DISTANCES = (1, 4, 8, 16, 32)
# Parts of all that can leave: where more has to, room for copies on their way is what lacks; where more than the second
# has to, the search begins with choices of which all leaves.
TIGHT_PART, VERY_TIGHT_PART = 0.6, 0.8
# What longer distances must gain, in thousandths.
LEAST_GAIN_PERMILLE = 1
# Distances, in thousandths, with which a choice is tried that does not fit.
LATER_PERMILLE = (850, 700, 600, 500, 350)
# A correction that changes no more than this part of what is to be freed is left out.
SMALL_CORRECTION = 500
# Rows of what comes nearest to a budget into which nothing fitted that are tried in all layers.
MAX_ROWS = 8
# Simulations to come nearer to a budget into which nothing fitted.
MAX_LOST = 80


def solve(space: Space, progress: Progress = lambda: None, starts: Sequence[np.ndarray] = ()) -> Search:
    """The best choice that is found; the same for the same space.

    Args:
        space: what to choose from.
        progress: called after each simulation; may raise `Stop`.
        starts: choices that were good for a space much like this one; if one fits, only they are improved.
    """
    search = Search(space, MAX_EVALUATIONS, progress)
    with contextlib.suppress(Stop):
        _Solver(search).run(starts)
    return search


# A choice with its score and the load of the link.
_Found = tuple[Score, float, np.ndarray]


def _score_of(found: _Found) -> tuple[Score, float]:
    return found[:2]


class _Solver:
    def __init__(self, search: Search):
        self.search = search
        self.space = search.space
        self.figures = search.space.figures
        self.found: list[_Found] = []
        # the nearest of the first loads, if none of them fitted; of all before less loads, if nothing did
        self.squeezed: list[np.ndarray] = []
        self.mixtures: dict[float, ColumnGeneration] = {}  # the last one of each load
        self.looked: dict[bytes, tuple[Score, np.ndarray]] = {}  # with distances, by what has none

    def run(self, given: Sequence[np.ndarray]) -> None:
        shape = (self.figures.num_layers, self.figures.num_items)
        score, timeline = self.search.run(np.zeros(shape, np.int64))
        num_ops = len(timeline.program.ops)
        limit = MAX_OPERATORS // max(num_ops + self.space.fixed_operators, 1)
        limit = min(MAX_EVALUATIONS, max(limit, 40))
        self.search.max_evaluations = limit
        if score.fits:
            return  # nothing is faster than to keep everything
        micro_batches = self.space.layout.num_micro_steps
        self.forward_ns = hiding_time_ns(timeline)
        self.deficit_bytes = -(-score.excess_bytes // self.figures.num_in_flight)
        self.every_bytes = self._every_bytes()
        self.is_tight = self.deficit_bytes > self.every_bytes * TIGHT_PART
        enough_extra_ns = self.space.enough_extra_ns * self.space.num_scored
        self.search.enough_ns = score.step_time_ns + round(enough_extra_ns) if enough_extra_ns > 0 else 0
        if any(self.search.score(choice).fits for choice in given):
            improve(self.search, self.forward_ns)
            return
        # About as many operators as a layer has.
        self.distance = max(1, num_ops // max(1, micro_batches * self.figures.num_layers))
        self.first_bytes = self.deficit_bytes
        self._try_loads()
        self.found.sort(key=_score_of)
        is_lost, nearest = not self._fits, self._nearest
        if is_lost:
            self.search.max_evaluations = min(limit, self.search.num_evaluations + MAX_LOST)
        starts: dict[float, np.ndarray] = {}  # the best with each load
        for _, load, choice in self.found:
            starts.setdefault(load, choice)
        is_small = self.figures.copy_ns.size <= SMALL_SPACE_CELLS
        others = list(starts.values()) if is_small else self.squeezed if is_lost else []
        improve(self.search, self.forward_ns, others, [] if is_small or is_lost else self.squeezed)
        if is_lost:
            self._spread_rows(nearest)
            if self._fits:
                self.search.max_evaluations = limit
                improve(self.search, self.forward_ns)

    @property
    def _fits(self) -> bool:
        return self.search.best_score is not None and self.search.best_score.fits

    @property
    def _nearest(self) -> np.ndarray:
        if self.search.best is None:  # `run` begins with a simulation
            raise AssertionError("a search without a simulation")
        return self.search.best

    def _try_loads(self) -> None:
        """The best with some loads of the link."""
        can_swap = self.figures.freed_bytes[:, :, 0] > 0
        total_ns = int(self.figures.copy_ns[can_swap].sum())
        # Time on the link if all that is to be freed were swapped: no load beyond it is another choice.
        all_ns = self.deficit_bytes * total_ns // max(1, int(self.figures.freed_bytes[can_swap, 0].sum()))
        is_small = self.figures.copy_ns.size <= SMALL_SPACE_CELLS  # there a single cell matters much
        enough_ns = max(0.0, self.space.enough_extra_ns)
        self.mixture = ColumnGeneration(self.space, arrange=interleaved, enough_ns=enough_ns)
        most = total_ns * 1.5 / max(1, self.forward_ns)
        first = min(FIRST_LOAD, all_ns / max(1, self.forward_ns))
        if self.deficit_bytes <= self.every_bytes * VERY_TIGHT_PART:
            self._begin(first)
        if not self._fits and self.is_tight and not self.search.is_exhausted:
            first = self._first_load(most)
            self._begin(first)
        if not self._fits:
            self.squeezed = [self._nearest]
            self._squeeze()
            if self._fits:  # what is over is not what layers hold until backward, but what is back at once
                self.mixture = self.mixture.changed(has_whole=False, rows=())
            else:  # what is on its way is on the device, so less of it may fit
                self.squeezed = [self._nearest]
        less = [first * part for part in LESS_PARTS] if first else []
        more = [load for load in MORE_LOADS if most > load > first >= FIRST_LOAD]
        for loads in (less, more):
            num_worse = 0
            for load in loads:
                before = min(self.found, key=_score_of)
                self._best_with(load)
                num_worse += self._fits and min(self.found, key=_score_of) is before
                if num_worse >= MOST_WORSE and not is_small:
                    break
            if not self._fits or (min(self.found, key=_score_of)[1] < first and not is_small):
                break  # less was better, or nothing does
        best = min(self.found, key=_score_of)[1]
        self.mixture = self.mixtures.get(best, self.mixture)
        self.mixture.arrange = front_loaded
        self._correct(best)

    def _first_load(self, most: float) -> float:
        """The load below a greatest one with which it is fastest that all leaves that can, if that fits with any.

        Where memory is tight, the room may be worth more for copies on their way than what would run again for it.
        """
        self.mixture = self.mixture.changed(unswappable=None, is_apart=False)
        for load in (FIRST_LOAD, *(load for load in MORE_LOADS if load < most)):
            before = min(self.found, key=_score_of, default=None)
            self._look(load, self.every_bytes - self.every_bytes // SMALL_CORRECTION)
            if self.search.is_exhausted or (self._fits and min(self.found, key=_score_of) is before):
                break
        best = min(self.found, key=_score_of)
        return best[1] if best[0].fits else FIRST_LOAD

    def _begin(self, load: float) -> None:
        """The better mixture for a first load: one that swaps nothing that runs again reads, or any.

        A copy for what runs again has to be back earlier than its bytes and times say, so rows without are tried first.
        Of two that are as good the one with more rows goes on.
        """
        tried: list[tuple[tuple[Score, float], int, ColumnGeneration, int]] = []
        first_bytes = self.first_bytes
        for is_apart in (True, False) if self.figures.reads.any() else (False,):
            self.mixture = self.mixture.changed(is_apart=is_apart)
            self.first_bytes, begin = first_bytes, len(self.found)
            for part in (1.0, FALLBACK_PART):
                self._best_with(load * part)
                best = min(self.found[begin:], key=_score_of)
                if best[0].fits or self.search.is_exhausted:
                    break
            tried.append((_score_of(best), -len(tried), self.mixture, self.first_bytes))
            if self.search.is_exhausted:
                break
        *_, self.mixture, self.first_bytes = min(tried, key=lambda one: one[:2])

    def _best_with(self, load: float) -> None:
        """The best with a load.

        Where that does not fit, swaps whose copies are on the device at the peak are left out, if that is better: which
        these are depends on the load, so those of one say nothing of another. Where memory is tight more leaves first,
        for the copies that are on their way, and swaps are left out only if that does not fit either.
        """
        self.mixture = with_all = self.mixture.changed(unswappable=None)
        found = self._look(load, self.first_bytes)
        is_corrected = self.is_tight and not found[0].fits
        fits = self._correct(load) if is_corrected else found[0].fits
        if not fits and not self.search.is_exhausted:
            self.mixture = with_all.with_unswappable(self.space.at_peak(self.search.run(found[2])[1]))
            if self._look(load, self.first_bytes)[0] >= found[0]:
                self.mixture = with_all
        if not is_corrected or self.mixture is not with_all:
            self._correct(load)
        self.mixtures[load] = self.mixture

    def _look(self, load: float, needed_bytes: int) -> _Found:
        """Score of a choice that frees so much beside a load."""
        host_bytes = self.space.host_budget_bytes / self.figures.num_in_flight
        choice = self.mixture.choice(needed_bytes, load * self.forward_ns, host_bytes)
        if choice.tobytes() not in self.looked:
            self.looked[choice.tobytes()] = self._with_distances(choice)
        score, choice = self.looked[choice.tobytes()]
        self.found.append((score, load, choice))
        if self.is_tight and not score.fits:
            self._fetch_later(load, choice)
        return score, load, choice

    def _fetch_later(self, load: float, choice: np.ndarray) -> None:
        """A choice that does not fit with copies that come back later: what waits for them then may cost less than
        what would run again instead, but says nothing of how much is to be freed.
        """
        for permille in LATER_PERMILLE:
            if self.search.is_exhausted:
                return
            later = np.where(choice > KEEP, np.maximum(1, choice * permille // 1000), choice)
            score = self.search.score(later)
            if score.fits:
                self.found.append((score, load, later))
                return

    def _correct(self, load: float) -> bool:
        """The least recompute that fits beside so much swap, by its measured excess; whether any did."""
        in_flight = self.figures.num_in_flight
        needed_bytes, step_bytes = self.first_bytes, max(1, self.deficit_bytes // SMALL_CORRECTION)
        low = 0  # too little to free
        high: int | None = None  # what fits
        before: np.ndarray | None = None
        for number in range(NUM_CORRECTIONS):
            if self.search.is_exhausted or (high is not None and high - low <= step_bytes):
                break
            score, _, choice = self._look(load, needed_bytes)
            if before is not None and np.array_equal(before, np.minimum(choice, 1)):
                break  # there is no more, or no less
            before = np.minimum(choice, 1)
            if score.fits:
                high = needed_bytes if high is None else min(high, needed_bytes)
                spare_bytes = (self.space.budget_bytes - score.peak_bytes) // in_flight
                if spare_bytes <= step_bytes:
                    break
                needed_bytes = max(low + (high - low) // 8, needed_bytes - spare_bytes)
            else:
                low = max(low, needed_bytes)
                # Other rows hold memory at other moments, so what was too little often stays so.
                needed_bytes += -(-score.excess_bytes * (2 + number) // (2 * in_flight)) + step_bytes
                if high is not None:
                    needed_bytes = min(needed_bytes, (low + high) // 2)
        if high is not None:
            self.first_bytes = (self.deficit_bytes + high) // 2
        return high is not None

    def _every_bytes(self) -> int:
        """What layers free if all leaves that can, each item as it frees most; with cells or without, if that is more.

        Not what items free alone: cells free again what is in them, and keep what they hand on.
        """
        swapped, again = self.figures.freed_bytes[:, :, 0], self._most_again()
        is_swap = swapped > self.figures.freed_by(again)
        every = np.where(is_swap, 1, again)
        every[:, 0] = KEEP
        apart = np.where(self.figures.is_cell, KEEP, every)
        worth = self.space.worth
        return sum(max(worth(layer, rows[layer]).freed_bytes for rows in (every, apart)) for layer in range(len(every)))

    def _most_again(self) -> np.ndarray:
        """Each item recomputed in the way that frees most, if it can be."""
        ways = self.figures.freed_bytes[:, :, 1:]
        way = ways.argmax(axis=2) + 1 if ways.shape[2] else np.zeros(ways.shape[:2], np.int64)
        return np.where(ways.max(axis=2, initial=0) > 0, -way, KEEP)

    def _squeeze(self) -> None:
        """The least memory there is: all that can be is recomputed, and what is left is swapped, close to its use."""
        again, can_swap = self._most_again(), self.figures.freed_bytes[:, :, 0] > 0
        whole = np.zeros_like(again)
        whole[:, 0], again[:, 0] = again[:, 0], KEEP
        self.search.score(whole)
        for distance in CLOSE_DISTANCES:
            swapped = np.where(can_swap, distance, KEEP)
            for base in (again, np.zeros_like(again)):
                self.search.score(np.where(base == KEEP, swapped, base))

    def _spread_rows(self, nearest: np.ndarray) -> None:
        """Each row of what came nearest, in all layers that can have it."""
        self.search.max_evaluations = self.search.num_evaluations + MAX_LOST
        layers = np.arange(self.figures.num_layers)[:, None]
        items, last = np.arange(self.figures.num_items), self.figures.freed_bytes.shape[2] - 1
        for row in np.unique(nearest, axis=0)[:MAX_ROWS]:
            can_have = self.figures.freed_bytes[layers, items, np.clip(-row, 0, last)] > 0
            everywhere = np.where(can_have, row, KEEP)
            for distance in CLOSE_DISTANCES:
                self.search.score(np.where(everywhere > KEEP, distance, everywhere))

    def _with_distances(self, choice: np.ndarray) -> tuple[Score, np.ndarray]:
        """A choice with distances of about a layer, or with those that its timeline then asks for.

        From distances that are too short nothing can be learned: what waits for copies leaves them the time. So they
        are doubled as long as that is faster.
        """

        def at(distance: int) -> tuple[Score, np.ndarray, np.ndarray]:
            first = np.where(choice > KEEP, distance, choice)
            score, timeline = self.search.run(first)
            return score, first, self.space.smallest_distances(timeline)

        score, first, needed = at(self.distance)
        if not (choice > KEEP).any():
            return score, first
        while needed.max() >= first.max() and not self.search.is_exhausted:
            longer = at(2 * int(first.max()))
            if longer[0].step_time_ns * 1000 >= score.step_time_ns * (1000 - LEAST_GAIN_PERMILLE):
                break
            score, first, needed = longer
        tried = (first, by_row(first, needed), grouped(first, needed))
        return min(((self.search.score(one), one) for one in tried), key=lambda scored: scored[0])
