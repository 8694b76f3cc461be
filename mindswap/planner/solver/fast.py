"""The default solver: so much of the link for swap, the least recompute beside it, then improvement.

Layers are alike, so a good choice has few different rows (`column_generation`). For each amount of swap the mixture of
rows is looked for that just fits; the best of these is then changed in many small ways. Every figure that decides is
simulated.
"""

import contextlib
from collections.abc import Sequence

import numpy as np

from mindswap.planner.solver.column_generation import MasterProblem, front_loaded, interleaved
from mindswap.planner.solver.improve import SMALL_PROBLEM_DECISIONS, by_row, hiding_time_ns, improve, piecewise
from mindswap.planner.solver.search import Progress, Search, Stop
from mindswap.planner.stage_problem import KEEP, Score, StageProblem

# Simulations: so many operators altogether, but no more simulations than this.
MAX_OPERATORS = 2_500_000
MAX_EVALUATIONS = 3000
# Time on the link per micro-batch that is tried, as parts of the time of forward: from the first one down, else up, as
# long as it gets better. Nearly all of forward: beyond that copies fall behind, and little shows what would do.
FIRST_UTILIZATION = 0.9
HIGHER_UTILIZATIONS = (1.0, 1.2, 1.4, 1.6, 2.4, 4.0)
LOWER_FRACTIONS = (0.9, 0.7, 0.5, 0.25, 0.0)
# Loads that were no better, after which no further ones of that direction are tried.
MAX_WORSE = 2
# Where a first load fits nothing, this part of it is tried before rows of that kind are given up.
FALLBACK_FRACTION = 0.7
NUM_CORRECTIONS = 4
# Distances with which the least memory is looked for.
CLOSE_DISTANCES = (1, 4, 8, 16, 32)
# Parts of all that can leave: where more has to, room for copies on their way is what lacks; where more than the second
# has to, the search begins with choices of which all leaves.
NEAR_MINIMUM_FRACTION, AT_MINIMUM_FRACTION = 0.6, 0.8
# What longer distances must gain, in thousandths.
MIN_GAIN_PERMILLE = 1
# Distances, in thousandths, with which a choice is tried that does not fit.
SHORTER_DISTANCES_PERMILLE = (850, 700, 600, 500, 350)
# A correction that changes no more than this part of what is to be freed is left out.
SMALL_CORRECTION = 500
# Rows of what comes nearest to a budget into which nothing fitted that are tried in all layers.
MAX_ROWS = 8
# Simulations to come nearer to a budget into which nothing fitted.
MAX_INFEASIBLE_EVALUATIONS = 80


def solve(stage_problem: StageProblem, progress: Progress = lambda: None, starts: Sequence[np.ndarray] = ()) -> Search:
    """The best choice that is found; the same for the same space.

    Args:
        stage_problem: what to choose from.
        progress: called after each simulation; may raise `Stop`.
        starts: choices that were good for a space much like this one; if one fits, only they are improved.
    """
    search = Search(stage_problem, MAX_EVALUATIONS, progress)
    with contextlib.suppress(Stop):
        _Solver(search).run(starts)
    return search


# A choice with its score and the load of the link.
_ScoredAssignment = tuple[Score, float, np.ndarray]


def _score_of(found: _ScoredAssignment) -> tuple[Score, float]:
    return found[:2]


class _Solver:
    def __init__(self, search: Search):
        self.search = search
        self.stage_problem = search.stage_problem
        self.costs = search.stage_problem.costs
        self.found: list[_ScoredAssignment] = []
        # the nearest of the first loads, if none of them fitted; of all before less loads, if nothing did
        self.infeasible_starts: list[np.ndarray] = []
        self.masters: dict[float, MasterProblem] = {}  # the last one of each load
        self.scored: dict[bytes, tuple[Score, np.ndarray]] = {}  # with distances, by what has none

    def run(self, initial_assignments: Sequence[np.ndarray]) -> None:
        shape = (self.costs.num_layers, self.costs.num_groups)
        score, timeline = self.search.run(np.zeros(shape, np.int64))
        num_ops = len(timeline.program.ops)
        limit = MAX_OPERATORS // max(num_ops + self.stage_problem.fixed_operators, 1)
        limit = min(MAX_EVALUATIONS, max(limit, 40))
        self.search.max_evaluations = limit
        if score.fits:
            return  # nothing is faster than to keep everything
        micro_batches = self.stage_problem.layout.num_micro_steps
        self.forward_ns = hiding_time_ns(timeline)
        self.deficit_bytes = -(-score.excess_bytes // self.costs.num_in_flight)
        self.max_freed_bytes = self._max_freed_bytes()
        self.is_near_minimum = self.deficit_bytes > self.max_freed_bytes * NEAR_MINIMUM_FRACTION
        tolerated_extra_ns = self.stage_problem.tolerated_extra_ns * self.stage_problem.num_scored
        self.search.enough_ns = score.step_time_ns + round(tolerated_extra_ns) if tolerated_extra_ns > 0 else 0
        if any(self.search.score(assignment).fits for assignment in initial_assignments):
            improve(self.search, self.forward_ns)
            return
        # About as many operators as a layer has.
        self.distance = max(1, num_ops // max(1, micro_batches * self.costs.num_layers))
        self.initial_bytes = self.deficit_bytes
        self._search_utilizations()
        self.found.sort(key=_score_of)
        is_infeasible, nearest = not self._fits, self._nearest
        if is_infeasible:
            self.search.max_evaluations = min(limit, self.search.num_evaluations + MAX_INFEASIBLE_EVALUATIONS)
        best_per_utilization: dict[float, np.ndarray] = {}  # the best with each load
        for _, link_utilization, assignment in self.found:
            best_per_utilization.setdefault(link_utilization, assignment)
        is_small = self.costs.copy_ns.size <= SMALL_PROBLEM_DECISIONS
        others = list(best_per_utilization.values()) if is_small else self.infeasible_starts if is_infeasible else []
        improve(self.search, self.forward_ns, others, [] if is_small or is_infeasible else self.infeasible_starts)
        if is_infeasible:
            self._try_uniform(nearest)
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

    def _search_utilizations(self) -> None:
        """The best with some loads of the link."""
        can_swap = self.costs.freed_bytes[:, :, 0] > 0
        total_ns = int(self.costs.copy_ns[can_swap].sum())
        # Time on the link if all that is to be freed were swapped: no load beyond it is another choice.
        all_ns = self.deficit_bytes * total_ns // max(1, int(self.costs.freed_bytes[can_swap, 0].sum()))
        is_small = self.costs.copy_ns.size <= SMALL_PROBLEM_DECISIONS  # there a single cell matters much
        enough_ns = max(0.0, self.stage_problem.tolerated_extra_ns)
        self.master = MasterProblem(self.stage_problem, arrange=interleaved, enough_ns=enough_ns)
        max_utilization = total_ns * 1.5 / max(1, self.forward_ns)
        first = min(FIRST_UTILIZATION, all_ns / max(1, self.forward_ns))
        if self.deficit_bytes <= self.max_freed_bytes * AT_MINIMUM_FRACTION:
            self._search_first(first)
        if not self._fits and self.is_near_minimum and not self.search.is_exhausted:
            first = self._find_first_utilization(max_utilization)
            self._search_first(first)
        if not self._fits:
            self.infeasible_starts = [self._nearest]
            self._minimize_memory()
            if self._fits:  # what is over is not what layers hold until backward, but what is back at once
                self.master = self.master.changed(allows_full_recompute=False, columns=())
            else:  # what is on its way is on the device, so less of it may fit
                self.infeasible_starts = [self._nearest]
        lower = [first * fraction for fraction in LOWER_FRACTIONS] if first else []
        higher = [
            link_utilization
            for link_utilization in HIGHER_UTILIZATIONS
            if max_utilization > link_utilization > first >= FIRST_UTILIZATION
        ]
        for utilizations in (lower, higher):
            num_worse = 0
            for link_utilization in utilizations:
                before = min(self.found, key=_score_of)
                self._search_at(link_utilization)
                num_worse += self._fits and min(self.found, key=_score_of) is before
                if num_worse >= MAX_WORSE and not is_small:
                    break
            if not self._fits or (min(self.found, key=_score_of)[1] < first and not is_small):
                break  # less was better, or nothing does
        best = min(self.found, key=_score_of)[1]
        self.master = self.masters.get(best, self.master)
        self.master.arrange = front_loaded
        self._correct_deficit(best)

    def _find_first_utilization(self, max_utilization: float) -> float:
        """The load below a greatest one with which it is fastest that all leaves that can, if that fits with any.

        Where memory is tight, the room may be worth more for copies on their way than what would run again for it.
        """
        self.master = self.master.changed(unswappable=None, is_uncoupled=False)
        for link_utilization in (
            FIRST_UTILIZATION,
            *(link_utilization for link_utilization in HIGHER_UTILIZATIONS if link_utilization < max_utilization),
        ):
            before = min(self.found, key=_score_of, default=None)
            self._evaluate_at(link_utilization, self.max_freed_bytes - self.max_freed_bytes // SMALL_CORRECTION)
            if self.search.is_exhausted or (self._fits and min(self.found, key=_score_of) is before):
                break
        best = min(self.found, key=_score_of)
        return best[1] if best[0].fits else FIRST_UTILIZATION

    def _search_first(self, link_utilization: float) -> None:
        """The better mixture for a first load: one that swaps nothing that runs again reads, or any.

        A copy for what runs again has to be back earlier than its bytes and times say, so rows without are tried first.
        Of two that are as good the one with more rows goes on.
        """
        tried: list[tuple[tuple[Score, float], int, MasterProblem, int]] = []
        initial_bytes = self.initial_bytes
        for is_uncoupled in (True, False) if self.costs.reads.any() else (False,):
            self.master = self.master.changed(is_uncoupled=is_uncoupled)
            self.initial_bytes, begin = initial_bytes, len(self.found)
            for fraction in (1.0, FALLBACK_FRACTION):
                self._search_at(link_utilization * fraction)
                best = min(self.found[begin:], key=_score_of)
                if best[0].fits or self.search.is_exhausted:
                    break
            tried.append((_score_of(best), -len(tried), self.master, self.initial_bytes))
            if self.search.is_exhausted:
                break
        *_, self.master, self.initial_bytes = min(tried, key=lambda one: one[:2])

    def _search_at(self, link_utilization: float) -> None:
        """The best with a load.

        Where that does not fit, swaps whose copies are on the device at the peak are left out, if that is better: which
        these are depends on the load, so those of one say nothing of another. Where memory is tight more leaves first,
        for the copies that are on their way, and swaps are left out only if that does not fit either.
        """
        self.master = unrestricted = self.master.changed(unswappable=None)
        found = self._evaluate_at(link_utilization, self.initial_bytes)
        is_corrected = self.is_near_minimum and not found[0].fits
        fits = self._correct_deficit(link_utilization) if is_corrected else found[0].fits
        if not fits and not self.search.is_exhausted:
            self.master = unrestricted.with_unswappable(
                self.stage_problem.is_on_device_at_peak(self.search.run(found[2])[1])
            )
            if self._evaluate_at(link_utilization, self.initial_bytes)[0] >= found[0]:
                self.master = unrestricted
        if not is_corrected or self.master is not unrestricted:
            self._correct_deficit(link_utilization)
        self.masters[link_utilization] = self.master

    def _evaluate_at(self, link_utilization: float, needed_bytes: int) -> _ScoredAssignment:
        """Score of a choice that frees so much beside a load."""
        host_bytes = self.stage_problem.host_budget_bytes / self.costs.num_in_flight
        assignment = self.master.solve(needed_bytes, link_utilization * self.forward_ns, host_bytes)
        if assignment.tobytes() not in self.scored:
            self.scored[assignment.tobytes()] = self._set_distances(assignment)
        score, assignment = self.scored[assignment.tobytes()]
        self.found.append((score, link_utilization, assignment))
        if self.is_near_minimum and not score.fits:
            self._try_shorter_distances(link_utilization, assignment)
        return score, link_utilization, assignment

    def _try_shorter_distances(self, link_utilization: float, assignment: np.ndarray) -> None:
        """A choice that does not fit with copies that come back later: what waits for them then may cost less than
        what would run again instead, but says nothing of how much is to be freed.
        """
        for permille in SHORTER_DISTANCES_PERMILLE:
            if self.search.is_exhausted:
                return
            later = np.where(assignment > KEEP, np.maximum(1, assignment * permille // 1000), assignment)
            score = self.search.score(later)
            if score.fits:
                self.found.append((score, link_utilization, later))
                return

    def _correct_deficit(self, link_utilization: float) -> bool:
        """The least recompute that fits beside so much swap, by its measured excess; whether any did."""
        in_flight = self.costs.num_in_flight
        needed_bytes, step_bytes = self.initial_bytes, max(1, self.deficit_bytes // SMALL_CORRECTION)
        low = 0  # too little to free
        high: int | None = None  # what fits
        before: np.ndarray | None = None
        for number in range(NUM_CORRECTIONS):
            if self.search.is_exhausted or (high is not None and high - low <= step_bytes):
                break
            score, _, assignment = self._evaluate_at(link_utilization, needed_bytes)
            if before is not None and np.array_equal(before, np.minimum(assignment, 1)):
                break  # there is no more, or no less
            before = np.minimum(assignment, 1)
            if score.fits:
                high = needed_bytes if high is None else min(high, needed_bytes)
                spare_bytes = (self.stage_problem.budget_bytes - score.peak_bytes) // in_flight
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
            self.initial_bytes = (self.deficit_bytes + high) // 2
        return high is not None

    def _max_freed_bytes(self) -> int:
        """What layers free if all leaves that can, each item as it frees most; with cells or without, if that is more.

        Not what items free alone: cells free again what is in them, and keep what they hand on.
        """
        swapped, recomputed = self.costs.freed_bytes[:, :, 0], self._max_recompute()
        is_swap = swapped > self.costs.freed_bytes_of(recomputed)
        all_moved = np.where(is_swap, 1, recomputed)
        all_moved[:, 0] = KEEP
        apart = np.where(self.costs.is_cell, KEEP, all_moved)
        assignment_cost = self.stage_problem.assignment_cost
        return sum(
            max(assignment_cost(layer, rows[layer]).freed_bytes for rows in (all_moved, apart))
            for layer in range(len(all_moved))
        )

    def _max_recompute(self) -> np.ndarray:
        """Each item recomputed in the way that frees most, if it can be."""
        path_indices = self.costs.freed_bytes[:, :, 1:]
        path_index = (
            path_indices.argmax(axis=2) + 1 if path_indices.shape[2] else np.zeros(path_indices.shape[:2], np.int64)
        )
        return np.where(path_indices.max(axis=2, initial=0) > 0, -path_index, KEEP)

    def _minimize_memory(self) -> None:
        """The least memory there is: all that can be is recomputed, and what is left is swapped, close to its use."""
        recomputed, can_swap = self._max_recompute(), self.costs.freed_bytes[:, :, 0] > 0
        whole = np.zeros_like(recomputed)
        whole[:, 0], recomputed[:, 0] = recomputed[:, 0], KEEP
        self.search.score(whole)
        for distance in CLOSE_DISTANCES:
            swapped = np.where(can_swap, distance, KEEP)
            for base in (recomputed, np.zeros_like(recomputed)):
                self.search.score(np.where(base == KEEP, swapped, base))

    def _try_uniform(self, nearest: np.ndarray) -> None:
        """Each row of what came nearest, in all layers that can have it."""
        self.search.max_evaluations = self.search.num_evaluations + MAX_INFEASIBLE_EVALUATIONS
        layers = np.arange(self.costs.num_layers)[:, None]
        groups, last = np.arange(self.costs.num_groups), self.costs.freed_bytes.shape[2] - 1
        for row in np.unique(nearest, axis=0)[:MAX_ROWS]:
            can_have = self.costs.freed_bytes[layers, groups, np.clip(-row, 0, last)] > 0
            everywhere = np.where(can_have, row, KEEP)
            for distance in CLOSE_DISTANCES:
                self.search.score(np.where(everywhere > KEEP, distance, everywhere))

    def _set_distances(self, assignment: np.ndarray) -> tuple[Score, np.ndarray]:
        """A choice with distances of about a layer, or with those that its timeline then asks for.

        From distances that are too short nothing can be learned: what waits for copies leaves them the time. So they
        are doubled as long as that is faster.
        """

        def at(distance: int) -> tuple[Score, np.ndarray, np.ndarray]:
            first = np.where(assignment > KEEP, distance, assignment)
            score, timeline = self.search.run(first)
            return score, first, self.stage_problem.min_distances(timeline)

        score, first, min_distances = at(self.distance)
        if not (assignment > KEEP).any():
            return score, first
        while min_distances.max() >= first.max() and not self.search.is_exhausted:
            longer = at(2 * int(first.max()))
            if longer[0].step_time_ns * 1000 >= score.step_time_ns * (1000 - MIN_GAIN_PERMILLE):
                break
            score, first, min_distances = longer
        tried = (first, by_row(first, min_distances), piecewise(first, min_distances))
        return min(((self.search.score(one), one) for one in tried), key=lambda scored: scored[0])
