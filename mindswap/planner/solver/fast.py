"""The default solver: for each link utilization the least recompute that fits, then local search.

Most layers of a model are equal, so a good assignment uses few different layer assignments. For several utilizations of
the host link, the master problem (`column_generation`) finds the assignment with the least recompute time that frees
enough memory. Local search (`improve`) starts from the best of these. Assignments are compared by simulation only.
"""

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mindswap.planner.solver.column_generation import MasterProblem, front_loaded, interleaved
from mindswap.planner.solver.improve import (
    SMALL_PROBLEM_DECISIONS,
    by_layer_assignment,
    hiding_time_ns,
    improve,
    piecewise,
)
from mindswap.planner.solver.search import Progress, Search, Stop
from mindswap.planner.stage_problem import KEEP, Score, StageProblem

# Limits of one search: simulated operators in total, and number of simulations.
MAX_OPERATORS = 2_500_000
MAX_EVALUATIONS = 3000
# Link utilizations: copy time per micro-batch as a fraction of forward time. The search starts just below 1, because
# above it copies are exposed; it then goes down, or up if lower ones are not better, as long as the score improves.
FIRST_UTILIZATION = 0.9
HIGHER_UTILIZATIONS = (1.0, 1.2, 1.4, 1.6, 2.4, 4.0)
LOWER_FRACTIONS = (0.9, 0.7, 0.5, 0.25, 0.0)
# Number of utilizations without improvement after which a direction is abandoned.
MAX_WORSE = 2
# Fraction of the first utilization that is tried if no assignment fits at the first utilization itself.
FALLBACK_FRACTION = 0.7
NUM_CORRECTIONS = 4
# Values of `backward_prefetch` that are tried to minimize memory.
CLOSE_DISTANCES = (1, 4, 8, 16, 32)
# Fractions of the memory that swap and recompute can free. If more than the first must be freed, tensors in flight on
# the link are the bottleneck; if more than the second, the search starts from assignments that free all of it.
NEAR_MINIMUM_FRACTION, AT_MINIMUM_FRACTION = 0.6, 0.8
# Minimum gain of doubled prefetch distances, in thousandths of the step time.
MIN_GAIN_PERMILLE = 1
# Scalings of the prefetch distances, in thousandths, that are tried if an assignment does not fit.
SHORTER_DISTANCES_PERMILLE = (850, 700, 600, 500, 350)
# Corrections below 1/500 of the memory to free are skipped.
SMALL_CORRECTION = 500
# If nothing fits: layer assignments of the nearest assignment that are tried in all layers.
MAX_ROWS = 8
# If nothing fits: limit of simulations for each attempt to come closer to the budget.
MAX_INFEASIBLE_EVALUATIONS = 80


def solve(stage_problem: StageProblem, progress: Progress = lambda: None, starts: Sequence[np.ndarray] = ()) -> Search:
    """Search for the best assignment of one pipeline stage; deterministic.

    Args:
        stage_problem: decisions, their costs and the budgets.
        progress: called after each simulation; may raise `Stop`.
        starts: assignments, int64 of shape (num_layers, num_groups), of a similar stage; if one fits, the search only
            improves these.

    Returns:
        The search with its best assignment and score; the assignment may exceed the budget if none was found that fits.
    """
    search = Search(stage_problem, MAX_EVALUATIONS, progress)
    with contextlib.suppress(Stop):
        _Solver(search).run(starts)
    return search


class _ScoredAssignment(NamedTuple):
    score: Score
    link_utilization: float
    assignment: np.ndarray


class _SimulatedDistances(NamedTuple):
    """Simulation of an assignment with one prefetch distance."""

    score: Score
    assignment: np.ndarray
    min_distances: np.ndarray  # from `StageProblem.min_distances`


def _score_of(scored: _ScoredAssignment) -> tuple[Score, float]:
    return scored.score, scored.link_utilization


class _Solver:
    def __init__(self, search: Search):
        self.search = search
        self.stage_problem = search.stage_problem
        self.costs = search.stage_problem.costs
        self.scored_assignments: list[_ScoredAssignment] = []
        # the best assignments so far, kept as starts of the local search if none of them fits
        self.infeasible_starts: list[np.ndarray] = []
        self.masters: dict[float, MasterProblem] = {}  # the last one of each utilization
        # assignment without distances -> its score, and the assignment with distances
        self.scored: dict[bytes, tuple[Score, np.ndarray]] = {}

    def run(self, initial_assignments: Sequence[np.ndarray]) -> None:
        shape = (self.costs.num_layers, self.costs.num_groups)
        score, timeline = self.search.run(np.zeros(shape, np.int64))
        num_ops = len(timeline.program.ops)
        limit = MAX_OPERATORS // max(num_ops + self.stage_problem.fixed_operators, 1)
        limit = min(MAX_EVALUATIONS, max(limit, 40))
        self.search.max_evaluations = limit
        if score.fits:
            return  # keeping everything is fastest
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
        # Approximate number of operators of a layer.
        self.distance = max(1, num_ops // max(1, micro_batches * self.costs.num_layers))
        self.initial_bytes = self.deficit_bytes
        self._search_utilizations()
        self.scored_assignments.sort(key=_score_of)
        is_infeasible, nearest = not self._fits, self._nearest
        if is_infeasible:
            self.search.max_evaluations = min(limit, self.search.num_evaluations + MAX_INFEASIBLE_EVALUATIONS)
        best_per_utilization: dict[float, np.ndarray] = {}  # best assignment of each utilization
        for _, link_utilization, assignment in self.scored_assignments:
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
        """Search the first utilization, then lower and higher ones."""
        can_swap = self.costs.freed_bytes[:, :, 0] > 0
        total_ns = int(self.costs.copy_ns[can_swap].sum())
        # Copy time if all of the deficit is swapped: higher utilizations give the same assignment.
        all_ns = self.deficit_bytes * total_ns // max(1, int(self.costs.freed_bytes[can_swap, 0].sum()))
        is_small = self.costs.copy_ns.size <= SMALL_PROBLEM_DECISIONS  # a single decision matters much
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
            if self._fits:  # full recompute of a layer has all of its tensors at once, which is the excess
                self.master = self.master.changed(allows_full_recompute=False, columns=())
            else:  # tensors in flight use device memory, so fewer of them may fit
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
                before = min(self.scored_assignments, key=_score_of)
                self._search_at(link_utilization)
                num_worse += self._fits and min(self.scored_assignments, key=_score_of) is before
                if num_worse >= MAX_WORSE and not is_small:
                    break
            if not self._fits or (
                min(self.scored_assignments, key=_score_of).link_utilization < first and not is_small
            ):
                break  # lower utilizations are better, or nothing fits
        best = min(self.scored_assignments, key=_score_of).link_utilization
        self.master = self.masters.get(best, self.master)
        self.master.arrange = front_loaded
        self._correct_deficit(best)

    def _find_first_utilization(self, max_utilization: float) -> float:
        """Return the utilization at which freeing as much as possible is fastest, if that fits at any.

        Close to the minimum memory, memory for tensors in flight may save more time than it costs in recompute.
        """
        self.master = self.master.changed(unswappable=None, is_uncoupled=False)
        for link_utilization in (
            FIRST_UTILIZATION,
            *(link_utilization for link_utilization in HIGHER_UTILIZATIONS if link_utilization < max_utilization),
        ):
            before = min(self.scored_assignments, key=_score_of, default=None)
            self._evaluate_at(link_utilization, self.max_freed_bytes - self.max_freed_bytes // SMALL_CORRECTION)
            if self.search.is_exhausted or (self._fits and min(self.scored_assignments, key=_score_of) is before):
                break
        best = min(self.scored_assignments, key=_score_of)
        return best.link_utilization if best.score.fits else FIRST_UTILIZATION

    def _search_first(self, link_utilization: float) -> None:
        """Search the first utilization without, then with, swaps of tensors that recomputed operators read.

        Such tensors must be prefetched earlier than the cost model assumes, so layer assignments without them are tried
        first. Of two equal results the one with more columns is kept.
        """
        tried: list[tuple[tuple[Score, float], int, MasterProblem, int]] = []
        initial_bytes = self.initial_bytes
        for is_uncoupled in (True, False) if self.costs.reads.any() else (False,):
            self.master = self.master.changed(is_uncoupled=is_uncoupled)
            self.initial_bytes, begin = initial_bytes, len(self.scored_assignments)
            for fraction in (1.0, FALLBACK_FRACTION):
                self._search_at(link_utilization * fraction)
                best = min(self.scored_assignments[begin:], key=_score_of)
                if best.score.fits or self.search.is_exhausted:
                    break
            tried.append((_score_of(best), -len(tried), self.master, self.initial_bytes))
            if self.search.is_exhausted:
                break
        *_, self.master, self.initial_bytes = min(tried, key=lambda candidate: candidate[:2])

    def _search_at(self, link_utilization: float) -> None:
        """Search the best assignment at one utilization.

        If it does not fit, swaps whose tensors are on the device at the peak anyway are dropped, if that is better.
        Which these are depends on the utilization, so nothing is carried over to the next one. Close to the minimum
        memory, tensors in flight are the bottleneck: recompute is added first, and swaps are dropped only if that does
        not fit.
        """
        self.master = unrestricted = self.master.changed(unswappable=None)
        scored = self._evaluate_at(link_utilization, self.initial_bytes)
        is_corrected = self.is_near_minimum and not scored.score.fits
        fits = self._correct_deficit(link_utilization) if is_corrected else scored.score.fits
        if not fits and not self.search.is_exhausted:
            self.master = unrestricted.with_unswappable(
                self.stage_problem.is_on_device_at_peak(self.search.run(scored.assignment)[1])
            )
            if self._evaluate_at(link_utilization, self.initial_bytes).score >= scored.score:
                self.master = unrestricted
        if not is_corrected or self.master is not unrestricted:
            self._correct_deficit(link_utilization)
        self.masters[link_utilization] = self.master

    def _evaluate_at(self, link_utilization: float, needed_bytes: int) -> _ScoredAssignment:
        """Solve the master problem for the bytes to free and a utilization, then simulate the assignment."""
        host_bytes = self.stage_problem.host_budget_bytes / self.costs.num_in_flight
        assignment = self.master.solve(needed_bytes, link_utilization * self.forward_ns, host_bytes)
        if assignment.tobytes() not in self.scored:
            self.scored[assignment.tobytes()] = self._set_distances(assignment)
        score, assignment = self.scored[assignment.tobytes()]
        self.scored_assignments.append(_ScoredAssignment(score, link_utilization, assignment))
        if self.is_near_minimum and not score.fits:
            self._try_shorter_distances(link_utilization, assignment)
        return _ScoredAssignment(score, link_utilization, assignment)

    def _try_shorter_distances(self, link_utilization: float, assignment: np.ndarray) -> None:
        """Try smaller prefetch distances for an assignment that does not fit.

        Waiting for late prefetches may cost less than more recompute. The result does not correct the bytes to free.
        """
        for permille in SHORTER_DISTANCES_PERMILLE:
            if self.search.is_exhausted:
                return
            later = np.where(assignment > KEEP, np.maximum(1, assignment * permille // 1000), assignment)
            score = self.search.score(later)
            if score.fits:
                self.scored_assignments.append(_ScoredAssignment(score, link_utilization, later))
                return

    def _correct_deficit(self, link_utilization: float) -> bool:
        """Adjust the bytes to free by the simulated excess or slack; return whether an assignment fits."""
        in_flight = self.costs.num_in_flight
        needed_bytes, step_bytes = self.initial_bytes, max(1, self.deficit_bytes // SMALL_CORRECTION)
        low = 0  # bytes that were not enough
        high: int | None = None  # bytes that were enough
        before: np.ndarray | None = None
        for number in range(NUM_CORRECTIONS):
            if self.search.is_exhausted or (high is not None and high - low <= step_bytes):
                break
            score, _, assignment = self._evaluate_at(link_utilization, needed_bytes)
            if before is not None and np.array_equal(before, np.minimum(assignment, 1)):
                break  # the same assignment: more or less cannot be freed
            before = np.minimum(assignment, 1)
            if score.fits:
                high = needed_bytes if high is None else min(high, needed_bytes)
                spare_bytes = (self.stage_problem.budget_bytes - score.peak_bytes) // in_flight
                if spare_bytes <= step_bytes:
                    break
                needed_bytes = max(low + (high - low) // 8, needed_bytes - spare_bytes)
            else:
                low = max(low, needed_bytes)
                # Other layer assignments move the peak, so the excess alone is usually not enough: exceed it.
                needed_bytes += -(-score.excess_bytes * (2 + number) // (2 * in_flight)) + step_bytes
                if high is not None:
                    needed_bytes = min(needed_bytes, (low + high) // 2)
        if high is not None:
            self.initial_bytes = (self.deficit_bytes + high) // 2
        return high is not None

    def _max_freed_bytes(self) -> int:
        """Return the bytes that all layers free if each group takes the decision that frees most.

        Computed with and without recomputed cells, of which the larger counts. The sum over groups would be wrong:
        cells free the same tensors as the groups inside them, and keep their boundary tensors.
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
        """Return the assignment in which each group takes the recompute path that frees most, if it has any."""
        path_indices = self.costs.freed_bytes[:, :, 1:]
        path_index = (
            path_indices.argmax(axis=2) + 1 if path_indices.shape[2] else np.zeros(path_indices.shape[:2], np.int64)
        )
        return np.where(path_indices.max(axis=2, initial=0) > 0, -path_index, KEEP)

    def _minimize_memory(self) -> None:
        """Try the assignments of least memory: recompute all that can be, swap the rest with small distances."""
        recomputed, can_swap = self._max_recompute(), self.costs.freed_bytes[:, :, 0] > 0
        full_recompute = np.zeros_like(recomputed)
        full_recompute[:, 0], recomputed[:, 0] = recomputed[:, 0], KEEP
        self.search.score(full_recompute)
        for distance in CLOSE_DISTANCES:
            swapped = np.where(can_swap, distance, KEEP)
            for base in (recomputed, np.zeros_like(recomputed)):
                self.search.score(np.where(base == KEEP, swapped, base))

    def _try_uniform(self, nearest: np.ndarray) -> None:
        """Try each layer assignment of the nearest assignment in all layers where it is possible."""
        self.search.max_evaluations = self.search.num_evaluations + MAX_INFEASIBLE_EVALUATIONS
        layers = np.arange(self.costs.num_layers)[:, None]
        groups, last = np.arange(self.costs.num_groups), self.costs.freed_bytes.shape[2] - 1
        for layer_assignment in np.unique(nearest, axis=0)[:MAX_ROWS]:
            can_have = self.costs.freed_bytes[layers, groups, np.clip(-layer_assignment, 0, last)] > 0
            everywhere = np.where(can_have, layer_assignment, KEEP)
            for distance in CLOSE_DISTANCES:
                self.search.score(np.where(everywhere > KEEP, distance, everywhere))

    def _set_distances(self, assignment: np.ndarray) -> tuple[Score, np.ndarray]:
        """Choose prefetch distances: about a layer, or the minimum that the simulated timeline needs.

        Distances that are too short hide how much is needed, because the waits leave the copies their time. So they
        are doubled as long as the step gets faster.
        """

        def simulate(distance: int) -> _SimulatedDistances:
            first = np.where(assignment > KEEP, distance, assignment)
            score, timeline = self.search.run(first)
            return _SimulatedDistances(score, first, self.stage_problem.min_distances(timeline))

        score, first, min_distances = simulate(self.distance)
        if not (assignment > KEEP).any():
            return score, first
        while min_distances.max() >= first.max() and not self.search.is_exhausted:
            longer = simulate(2 * int(first.max()))
            if longer.score.step_time_ns * 1000 >= score.step_time_ns * (1000 - MIN_GAIN_PERMILLE):
                break
            score, first, min_distances = longer
        tried = (first, by_layer_assignment(first, min_distances), piecewise(first, min_distances))
        return min(((self.search.score(candidate), candidate) for candidate in tried), key=lambda scored: scored[0])
