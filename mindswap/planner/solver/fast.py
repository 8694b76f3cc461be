"""The default solver: for each link utilization the least recompute that fits, then local search.

Most layers of a model are equal, so a good assignment uses few different layer assignments. For several utilizations of
the host link, the master problem (`column_generation`) finds the assignment with the least recompute time that frees
enough memory. Local search (`improve`) starts from the best of these. Assignments are compared by simulation only.
"""

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mindswap.planner.solver.column_generation import MasterProblem
from mindswap.planner.solver.distances import set_distances
from mindswap.planner.solver.hiding_time import hiding_time_ns
from mindswap.planner.solver.improve import SMALL_PROBLEM_DECISIONS, improve
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
# Corrections of the bytes to free at each utilization.
NUM_CORRECTIONS = 4
# If nothing fits: limit of simulations for the attempt to come closer to the budget.
MAX_INFEASIBLE_EVALUATIONS = 80
# `backward_prefetch` of the swaps in assignments of least memory.
CLOSE_DISTANCE = 8


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
    search = StageSearch(stage_problem, MAX_EVALUATIONS, progress)
    with contextlib.suppress(Stop):
        search.solve(starts)
    return search


class _ScoredAssignment(NamedTuple):
    score: Score
    link_utilization: float
    assignment: np.ndarray


def _score_of(scored: _ScoredAssignment) -> tuple[Score, float]:
    return scored.score, scored.link_utilization


class StageSearch(Search):
    """The search of one pipeline stage."""

    def solve(self, initial_assignments: Sequence[np.ndarray]) -> None:
        """Search from some assignments if one of them fits, otherwise from those of the master problem."""
        self.costs = self.stage_problem.costs
        score, timeline = self.run(np.zeros((self.costs.num_layers, self.costs.num_groups), np.int64))
        num_ops = len(timeline.program.ops)
        limit = MAX_OPERATORS // max(num_ops + self.stage_problem.fixed_operators, 1)
        limit = self.max_evaluations = min(MAX_EVALUATIONS, max(limit, 40))
        if score.fits:
            return  # keeping everything is fastest
        self.forward_ns = hiding_time_ns(timeline)
        tolerated_extra_ns = self.stage_problem.tolerated_extra_ns * self.stage_problem.num_scored
        self.enough_ns = score.step_time_ns + round(tolerated_extra_ns) if tolerated_extra_ns > 0 else 0
        if any(self.score(assignment).fits for assignment in initial_assignments):
            improve(self, self.forward_ns)
            return
        self.initial_bytes = self.deficit_bytes = -(-score.excess_bytes // self.costs.num_in_flight)
        # Approximate number of operators of a layer.
        self.distance = max(1, num_ops // max(1, self.stage_problem.layout.num_micro_steps * self.costs.num_layers))
        self.is_small = self.costs.copy_ns.size <= SMALL_PROBLEM_DECISIONS  # a single decision matters much
        self.scored_assignments: list[_ScoredAssignment] = []
        # assignment without distances -> its score, and the assignment with distances
        self.scored: dict[bytes, tuple[Score, np.ndarray]] = {}
        infeasible_start = self._search_utilizations()
        first = [infeasible_start] if infeasible_start is not None else []
        if not self.fits:
            self.max_evaluations = min(limit, self.num_evaluations + MAX_INFEASIBLE_EVALUATIONS)
            improve(self, self.forward_ns, first)
            self.max_evaluations, first = limit, []
            if not self.fits:
                return
        best_per_utilization: dict[float, np.ndarray] = {}
        for _, link_utilization, assignment in sorted(self.scored_assignments, key=_score_of):
            best_per_utilization.setdefault(link_utilization, assignment)
        starts = list(best_per_utilization.values()) if self.is_small else []
        improve(self, self.forward_ns, starts, first)

    def _search_utilizations(self) -> np.ndarray | None:
        """Search the first utilization, then lower and higher ones; return the best of the first if it did not fit."""
        can_swap = self.costs.freed_bytes[:, :, 0] > 0
        total_ns = int(self.costs.copy_ns[can_swap].sum())
        # Copy time if all of the deficit is swapped: higher utilizations give the same assignment.
        all_ns = self.deficit_bytes * total_ns // max(1, int(self.costs.freed_bytes[can_swap, 0].sum()))
        enough_ns, infeasible_start = max(0.0, self.stage_problem.tolerated_extra_ns), None
        self.master = MasterProblem(self.stage_problem, enough_ns=enough_ns)
        max_utilization = total_ns * 1.5 / max(1, self.forward_ns)
        first = min(FIRST_UTILIZATION, all_ns / max(1, self.forward_ns))
        for fraction in (1.0, FALLBACK_FRACTION):
            if not self.fits and not self.is_exhausted:
                self._search_at(first * fraction)
        if not self.fits:
            infeasible_start = self.nearest
            self._minimize_memory()
            if self.fits:  # full recompute of a layer has all of its tensors at once, which is the excess
                self.master = MasterProblem(self.stage_problem, enough_ns=enough_ns, allows_full_recompute=False)
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
                num_worse += self.fits and min(self.scored_assignments, key=_score_of) is before
                if num_worse >= MAX_WORSE and not self.is_small:
                    break
            best = min(self.scored_assignments, key=_score_of)
            if not self.fits or (best.link_utilization < first and not self.is_small):
                break  # lower utilizations are better, or nothing fits
        return infeasible_start

    def _minimize_memory(self) -> None:
        """Try the assignments of least memory: recompute all that can be, swap the rest with a small distance."""
        freed_bytes = self.costs.freed_bytes
        path_index = np.where(freed_bytes[:, :, 1:].any(axis=2), freed_bytes[:, :, 1:].argmax(axis=2) + 1, 0)
        full_recompute, recomputed = np.zeros_like(path_index), -path_index
        full_recompute[:, 0], recomputed[:, 0] = recomputed[:, 0], KEEP
        swapped = np.where(freed_bytes[:, :, 0] > 0, CLOSE_DISTANCE, KEEP)
        for assignment in (full_recompute, np.where(recomputed == KEEP, swapped, recomputed), swapped):
            self.score(assignment)

    def _search_at(self, link_utilization: float) -> None:
        """Search the best assignment at one utilization.

        If it does not fit, swaps whose tensors are on the device at the peak anyway are dropped, if that is better.
        Which these are depends on the utilization, so nothing is carried over to the next one.
        """
        master = self.master
        scored = self._evaluate_at(master, link_utilization, self.initial_bytes)
        if not scored.score.fits and not self.is_exhausted:
            timeline = self.run(scored.assignment)[1]
            restricted = master.with_unswappable(self.stage_problem.is_on_device_at_peak(timeline))
            if self._evaluate_at(restricted, link_utilization, self.initial_bytes).score < scored.score:
                master = restricted
        self._correct_deficit(master, link_utilization)

    def _evaluate_at(self, master: MasterProblem, link_utilization: float, needed_bytes: int) -> _ScoredAssignment:
        """Solve the master problem for the bytes to free and a utilization, then simulate the assignment."""
        host_bytes = self.stage_problem.host_budget_bytes / self.costs.num_in_flight
        assignment = master.solve(needed_bytes, link_utilization * self.forward_ns, host_bytes)
        if assignment.tobytes() not in self.scored:
            self.scored[assignment.tobytes()] = set_distances(self, assignment, self.distance)
        score, assignment = self.scored[assignment.tobytes()]
        self.scored_assignments.append(_ScoredAssignment(score, link_utilization, assignment))
        return _ScoredAssignment(score, link_utilization, assignment)

    def _correct_deficit(self, master: MasterProblem, link_utilization: float) -> None:
        """Adjust the bytes to free by the simulated excess or slack."""
        in_flight, needed_bytes = self.costs.num_in_flight, self.initial_bytes
        low = 0  # bytes that were not enough
        high: int | None = None  # bytes that were enough
        before: np.ndarray | None = None
        for number in range(NUM_CORRECTIONS):
            if self.is_exhausted or (high is not None and high - low <= 1):
                break
            score, _, assignment = self._evaluate_at(master, link_utilization, needed_bytes)
            if before is not None and np.array_equal(before, np.minimum(assignment, 1)):
                break  # the same assignment: more or less cannot be freed
            before = np.minimum(assignment, 1)
            if score.fits:
                high = needed_bytes if high is None else min(high, needed_bytes)
                spare_bytes = (self.stage_problem.budget_bytes - score.peak_bytes) // in_flight
                if spare_bytes <= 1:
                    break
                needed_bytes = max(low + (high - low) // 8, needed_bytes - spare_bytes)
            else:
                low = max(low, needed_bytes)
                # Other layer assignments move the peak, so the excess alone is usually not enough: exceed it.
                needed_bytes += -(-score.excess_bytes * (2 + number) // (2 * in_flight)) + 1
                if high is not None:
                    needed_bytes = min(needed_bytes, (low + high) // 2)
        if high is not None:
            self.initial_bytes = (self.deficit_bytes + high) // 2
