"""The search of one pipeline stage: for each link utilization the least recompute that fits, then local search.

Most layers of a model are equal, so a good assignment uses few different layer assignments. For several utilizations of
the host link, the master problem (`column_generation`) finds the assignment with the least recompute time that frees
enough memory. Local search (`improve`) starts from the best of these. Assignments are compared by simulation only.
"""

import contextlib
from collections.abc import Sequence

import numpy as np

from mindswap.planner.solver.column_generation import MasterProblem
from mindswap.planner.solver.distances import Scored, set_distances
from mindswap.planner.solver.improve import improve
from mindswap.planner.solver.search import Progress, Search, Stop
from mindswap.planner.stage_problem import KEEP, Score, StageProblem
from mindswap.simulator.memory import profile_memory
from mindswap.simulator.program import OpKind
from mindswap.simulator.timeline import StallCause, Timeline

# Limit of simulated operators of one search. Number of simulations that are made in any case, and that local search has
# to come closer to the budget if nothing fits.
MAX_OPERATORS = 2_500_000
MIN_EVALUATIONS = 40
# Link utilizations: copy time per micro-batch as a fraction of forward time. The search starts just below 1, because
# above it copies are exposed; it then goes down, or up if lower ones are not better, as long as the score improves.
FIRST_UTILIZATION = 0.9
HIGHER_UTILIZATIONS = (1.0, 1.2, 1.4, 1.6, 2.4, 4.0)
LOWER_FRACTIONS = (0.9, 0.7, 0.5, 0.25, 0.0)
# Number of utilizations without improvement after which a direction is abandoned.
MAX_WORSE = 2
# Corrections of the bytes to free at each utilization.
NUM_CORRECTIONS = 4
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
    search = StageSearch(stage_problem, MIN_EVALUATIONS, progress)
    with contextlib.suppress(Stop):
        search.solve(starts)
    return search


def forward_time_ns(timeline: Timeline) -> int:
    """Return the forward time of all micro-batches on all stages, with exposed communication, which copies overlap."""
    return int(_busy_ns(timeline)[timeline.program.ops.kind == OpKind.FORWARD].sum())


def hiding_time_ns(timeline: Timeline) -> int:
    """Return the forward time of a micro-batch in which offloads can hide: before the memory peak.

    A large head moves the peak to the head: then the forward time after the peak does not count.
    """
    ops, peak_ns = timeline.program.ops, profile_memory(timeline, 0).peak_ns
    before_peak = np.flatnonzero((ops.kind < OpKind.COLLECTIVE) & (timeline.op_start_ns <= peak_ns))
    is_after_peak = (ops.kind == OpKind.FORWARD) & (np.arange(len(ops)) >= before_peak[-1])
    is_after_peak &= (ops.micro_batch == ops.micro_batch[before_peak[-1]]) & (
        ops.kind[before_peak[-1]] == OpKind.FORWARD
    )
    return forward_time_ns(timeline) // (1 + int(ops.micro_batch.max())) - int(_busy_ns(timeline)[is_after_peak].sum())


def _busy_ns(timeline: Timeline) -> np.ndarray:
    """Return the time of each operator with exposed communication: int64, shape (num_ops,)."""
    waits = timeline.stall_cause == StallCause.COMMUNICATION
    return timeline.program.ops.duration_ns + np.where(waits, timeline.stall_ns, 0)


class StageSearch(Search):
    """The search of one pipeline stage."""

    def solve(self, initial_assignments: Sequence[np.ndarray]) -> None:
        """Search from some assignments if one of them fits, otherwise from those of the master problem."""
        problem, costs = self.stage_problem, self.stage_problem.costs
        score, timeline = self.run(np.zeros(costs.copy_ns.shape, np.int64))
        ops = timeline.program.ops
        limit = max(MIN_EVALUATIONS, MAX_OPERATORS // (len(ops) + problem.fixed_operators))
        self.max_evaluations = limit
        if score.fits:
            return  # keeping everything is fastest
        self.forward_ns = hiding_time_ns(timeline)
        tolerated_extra_ns = problem.tolerated_extra_ns * problem.num_scored
        self.enough_ns = score.step_time_ns + round(tolerated_extra_ns) if tolerated_extra_ns > 0 else 0
        if any(self.score(assignment).fits for assignment in initial_assignments):
            improve(self, self.forward_ns)
            return
        self.deficit_bytes = self.initial_bytes = -(-score.excess_bytes // costs.num_in_flight)
        # Approximate number of operators of a layer.
        self.distance = max(1, len(ops) // max(1, problem.layout.num_micro_steps * costs.num_layers))
        self.master = MasterProblem(problem, costs, max(0.0, problem.tolerated_extra_ns))
        self._with_distances: dict[bytes, Scored] = {}  # assignment without distances -> with distances
        starts = self._search_utilizations()
        if not self.fits:
            self.max_evaluations = min(limit, self.num_evaluations + MIN_EVALUATIONS)
            improve(self, self.forward_ns, [self.best, *starts])
            self.max_evaluations, starts = limit, []
        if self.fits:
            improve(self, self.forward_ns, starts)

    def _search_utilizations(self) -> list[np.ndarray]:
        """Search the first utilization, then lower and higher ones; return the best of the first if it did not fit."""
        costs, infeasible_starts = self.stage_problem.costs, []
        can_swap = costs.freed_bytes[:, :, 0] > 0
        total_ns = int(costs.copy_ns[can_swap].sum())
        # Copy time if all of the deficit is swapped: higher utilizations give the same assignment.
        all_ns = self.deficit_bytes * total_ns // max(1, int(costs.freed_bytes[can_swap, 0].sum()))
        first = min(FIRST_UTILIZATION, all_ns / max(1, self.forward_ns))
        best = self._search_at(first)
        if not self.fits and not self.is_exhausted:
            best = min(best, self._search_at(first * LOWER_FRACTIONS[1]))
        if not self.fits:
            infeasible_starts = [self.best]
            self._minimize_memory()
            if self.fits:  # full recompute of a layer has all of its tensors at once, which is the excess
                self.master = self.master.without_full_recompute()
        lower = [first * fraction for fraction in LOWER_FRACTIONS] if first else []
        max_utilization = total_ns * 1.5 / max(1, self.forward_ns) if first >= FIRST_UTILIZATION else 0
        higher = [each for each in HIGHER_UTILIZATIONS if each < max_utilization]
        for utilizations in (lower, higher):
            before, num_worse = best, 0
            for utilization in utilizations:
                score = self._search_at(utilization)
                num_worse += self.fits and score >= best
                best = min(best, score)
                if num_worse >= MAX_WORSE:
                    break
            if not self.fits or best < before:
                break  # lower utilizations are better, or nothing fits
        return infeasible_starts

    def _simulated(self, assignment: np.ndarray) -> Scored:
        """Return an assignment with distances; each is simulated once."""
        key = assignment.tobytes()
        if key not in self._with_distances:
            self._with_distances[key] = set_distances(self, assignment, self.distance)
        return self._with_distances[key]

    def _minimize_memory(self) -> None:
        """Try the assignments of least memory: recompute all that can be, swap the rest with a small distance."""
        freed_bytes = self.stage_problem.costs.freed_bytes
        path_index = np.where(freed_bytes[:, :, 1:].any(axis=2), freed_bytes[:, :, 1:].argmax(axis=2) + 1, 0)
        full_recompute, recomputed = np.zeros_like(path_index), -path_index
        full_recompute[:, 0], recomputed[:, 0] = recomputed[:, 0], KEEP
        close = min(CLOSE_DISTANCE, max(1, self.distance // CLOSE_DISTANCE))  # in a layer of few operators less
        swapped = np.where(freed_bytes[:, :, 0] > 0, close, KEEP)
        for assignment in (full_recompute, np.where(recomputed == KEEP, swapped, recomputed), swapped):
            self.score(assignment)

    def _search_at(self, utilization: float) -> Score:
        """Search at one utilization: adjust the bytes to free by the simulated excess or slack; return the best score.

        If the first one does not fit, swaps whose tensors are on the device at the peak anyway are excluded, if that is
        better. Which these are depends on the utilization, so they are not carried over to the next one.
        """
        problem, master, needed_bytes = self.stage_problem, self.master, self.initial_bytes
        in_flight = problem.costs.num_in_flight
        limits = utilization * self.forward_ns, problem.host_budget_bytes / in_flight
        score, assignment = self._simulated(master.solve(needed_bytes, *limits))
        if not score.fits and not self.is_exhausted:
            in_flight_bytes = problem.memory_at_peaks(self.timeline(assignment)).in_flight_bytes
            restricted = master.without_swaps(in_flight_bytes.max(axis=0) > 0)
            restricted_score, _ = self._simulated(restricted.solve(needed_bytes, *limits))
            master, score = (restricted, restricted_score) if restricted_score < score else (master, score)
        best = score
        low, high = 0, 0  # bytes that were not enough, and bytes that were, or 0
        tried = set[bytes]()
        for number in range(NUM_CORRECTIONS):
            if self.is_exhausted or 0 < high <= low + 1:
                break
            assignment = master.solve(needed_bytes, *limits)
            if (key := assignment.tobytes()) in tried:
                break  # more or less cannot be freed
            tried.add(key)
            score, _ = self._simulated(assignment)
            best = min(best, score)
            if score.fits:
                high = min(high or needed_bytes, needed_bytes)
                spare_bytes = (problem.budget_bytes - score.peak_bytes) // in_flight
                if spare_bytes <= 1:
                    break
                needed_bytes = max(low + (high - low) // 8, needed_bytes - spare_bytes)
            else:
                low = max(low, needed_bytes)
                # Other layer assignments move the peak, so the excess alone is usually not enough: exceed it.
                needed_bytes += -(-score.excess_bytes * (2 + number) // (2 * in_flight)) + 1
                if high:
                    needed_bytes = min(needed_bytes, (low + high) // 2)
        if high:
            self.initial_bytes = (self.deficit_bytes + high) // 2
        return best
