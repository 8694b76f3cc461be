"""The plans of a model: one for each fixed budget, made when it is asked for, and the best of them for a budget."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from mindswap.planner.bound import Facts, least_step_ns
from mindswap.planner.catalog import Catalog
from mindswap.planner.effect import Foresight
from mindswap.planner.evaluate import Evaluation, evaluate
from mindswap.planner.ladder import Rung, knots_of, rungs_below
from mindswap.planner.problem import PlanProblem
from mindswap.planner.solvers.search import Interruptible
from mindswap.planner.stages import StageSolver
from mindswap.policy.model import Policy
from mindswap.simulator.step_model import StepModel

# Swaps of what recomputed operators use have to gain more than this part of the step time.
COUPLING_PERMILLE = 2
# Part of the simulations of a solver that is spent on a fixed budget; mixes with its neighbours come on top.
FULL_PERMILLE = 700
# Part of them that is spent on a plan without them, before one with them is looked for.
PROBE_PERMILLE = 400
# A plan that is so little above the bound is not looked further for: what is open, and what a plan for more memory may
# lose to one for less.
CLOSE_PPM = 5000
# The same for a large model: its searches come this close to their bounds, so one for less memory is not faster.
LARGE_CLOSE_PPM = 15_000
# A plan that is no more above the bound is not mixed with its neighbours.
GOOD_PPM = 10_000
# A plan that is over its budget by no more than this part of it is made again.
NEAR_PART = 100
# Part of the budget that is then taken off beside what it was over.
LEAST_REPAIR = 1000
# Tries to make a mix fit that is over its budget only in the whole step.
NUM_TRIES = 3
# Faster plans for more memory, the nearest first, with which a plan is mixed for the budget that was asked.
NUM_NEIGHBOURS = 2
# Fixed budgets that are looked at for one plan of a large model.
MAX_RUNGS = 2
# All of them are looked at for one whose step has fewer operators: then more memory is never slower, by `CLOSE_PPM`.
SMALL_STEP = 1000


@dataclass(frozen=True, eq=False)
class Candidate:
    """A policy that was replayed."""

    policy: Policy  # in layer indices
    # step_time_ns, peak_bytes, host_bytes: as `Evaluation` has them
    step_time_ns: int
    peak_bytes: int
    host_bytes: int
    is_on_host: bool  # host memory is within its budget
    choice: np.ndarray | None = None  # where it comes from one

    @classmethod
    def of(
        cls, problem: PlanProblem, policy: Policy, judged: Evaluation, choice: np.ndarray | None = None
    ) -> "Candidate":
        """A policy with what it comes to."""
        is_on_host = judged.host_bytes <= problem.host_bytes
        return cls(policy, judged.step_time_ns, judged.peak_bytes, judged.host_bytes, is_on_host, choice)

    def fits(self, budget_bytes: int) -> bool:
        """Whether it is within a budget of device memory, and of the host."""
        return self.is_on_host and self.peak_bytes <= budget_bytes


class Curve:
    """Plans of one model under the same rules; each is made once.

    Args:
        problem: all but the budget counts.
        short: the model with few micro-batches.
        facts: for the bound.
        catalog: items of the model.
        keep: the policy that keeps everything, replayed.
        finish: makes a policy of what a choice asks for.

    Attributes:
        progress: called after each simulation.
    """

    def __init__(
        self,
        problem: PlanProblem,
        short: StepModel,
        facts: Facts,
        catalog: Catalog,
        keep: Evaluation,
        finish: Callable[[Policy], Policy],
    ):
        self.problem = problem
        self.facts = facts
        self.keep = keep
        self.finish = finish
        self.progress = Interruptible()
        foresight = Foresight(problem.model)
        self.strict = StageSolver(problem, short, catalog, self._count, foresight)
        self.coupled = (
            StageSolver(problem, short, catalog.coupled(), self._count, foresight) if problem.allow.coupled else None
        )
        self.knots = knots_of(facts, problem.host_bytes_per_card, problem.allow, keep.step_time_ns, keep.peak_bytes)
        self.is_small = len(short.program(Policy()).ops.duration_ns) < SMALL_STEP
        self.known: dict[tuple[int, int], Candidate] = {}
        self.least: Candidate | None = None
        self.nearest: Candidate | None = None

    @property
    def num_evaluations(self) -> int:
        """Simulations made."""
        return self.strict.num_evaluations + (self.coupled.num_evaluations if self.coupled else 0)

    def _count(self) -> None:
        self.progress()

    def best(self, budget_bytes: int, others: Iterable[Candidate]) -> Candidate:
        """The fastest of the plans for fixed budgets up to this one, and of others that fit; or what comes nearest.

        Fixed budgets whose bound is not below what was found, by `CLOSE_PPM`, need no look; nor does more than
        `MAX_RUNGS` of a large model: the closest one and the knot below, by `LARGE_CLOSE_PPM`.
        """
        best = min((c for c in others if c.fits(budget_bytes)), key=_time_of, default=None)
        rungs = rungs_below(self.knots, budget_bytes, every=self.is_small)
        close_ppm = CLOSE_PPM if self.is_small else LARGE_CLOSE_PPM
        for rung in rungs if self.is_small else islice(rungs, MAX_RUNGS):
            bound_ns = self.bound_ns(rung.budget_bytes)
            is_close = best is not None and bound_ns is not None and best.step_time_ns <= _above(bound_ns, close_ppm)
            if self.progress.is_stopped or is_close:
                break
            found = self._at(rung)
            if _is_far_over(found, rung):
                break  # nothing fits into less
            if found.fits(rung.budget_bytes) and (best is None or found.step_time_ns < best.step_time_ns):
                best = found
        if best is None and not self.progress.is_stopped:
            found = self._least()
            best = found if found.fits(budget_bytes) else None
        if best is not None:
            return (
                best
                if self.progress.is_stopped or self._is_good(best, budget_bytes)
                else self._refined(best, budget_bytes)
            )
        # The least is there for every budget; what came nearer to this one may not be for another.
        nearest = self.least if self.least is not None and self.least.is_on_host else self.nearest
        assert nearest is not None
        return nearest

    def bound_ns(self, budget_bytes: int, is_coupled: bool = True) -> int | None:
        """Step time that no policy within a budget can beat; None if none can be within it."""
        allow = self.problem.allow
        allow = replace(allow, coupled=allow.coupled and is_coupled)
        host_bytes = self.problem.host_bytes_per_card
        return least_step_ns(self.facts, budget_bytes, host_bytes, allow, self.keep.step_time_ns)

    def _at(self, rung: Rung) -> Candidate:
        if (rung.knot, rung.step) not in self.known:
            found = self._planned(rung)
            # A solver looks at one stage after the other; mixes are of the whole step, where stages wait.
            can_mix = rung.step and self.strict.num_stages > 1 and not _is_far_over(found, rung)
            if can_mix and not self._is_good(found, rung.budget_bytes):
                mixed = found if self.progress.is_stopped else self._mix(rung)
                found = min(found, mixed, key=lambda candidate: self._rank(candidate, rung.budget_bytes))
            if self.progress.is_stopped:
                return found
            self.known[rung.knot, rung.step] = found
        return self.known[rung.knot, rung.step]

    def _refined(self, best: Candidate, budget_bytes: int) -> Candidate:
        """The best of a plan and of its mixes with those known that are faster and need more, for this very budget."""
        known = {*self.known.values(), *self._above_knot(budget_bytes)}
        lean = [one for one in known if one.fits(budget_bytes) and one.choice is not None]
        rich = [one for one in known if one.is_on_host and not one.fits(budget_bytes) and one.choice is not None]
        pairs = [
            (min(lean, key=_time_of), one)
            for one in sorted(rich, key=lambda one: one.peak_bytes)[:NUM_NEIGHBOURS]
            if lean and one.step_time_ns < best.step_time_ns
        ]
        for low, high in pairs:
            if self.progress.is_stopped:
                break
            found = self._mixed(low, high, budget_bytes)
            best = min(best, found, key=lambda one: self._rank(one, budget_bytes))
        return best

    def _above_knot(self, budget_bytes: int) -> list[Candidate]:
        """The plan for the knot above a budget."""
        knot = next((place for place, size in enumerate(self.knots) if size > budget_bytes), None)
        return [] if knot is None else [self._at(Rung(self.knots[knot], knot, 0))]

    def _is_good(self, candidate: Candidate, budget_bytes: int) -> bool:
        bound_ns = self.bound_ns(budget_bytes)
        return (
            candidate.fits(budget_bytes)
            and bound_ns is not None
            and candidate.step_time_ns <= _above(bound_ns, GOOD_PPM)
        )

    def _planned(self, rung: Rung) -> Candidate:
        """By coupling rule 2, or a plan that breaks it where that gains much."""
        budget_bytes = rung.budget_bytes
        if rung.knot == len(self.knots) - 1:
            return self._candidate(np.zeros(self.strict.shape, np.int64))
        if self.coupled is None:
            return self._solved(self.strict, budget_bytes, FULL_PERMILLE)
        bound_ns, strict_ns = self.bound_ns(budget_bytes), self.bound_ns(budget_bytes, is_coupled=False)
        found: list[Candidate] = []
        # No search comes all the way down to its bound; where that is no higher, breaking the rule gains little.
        good_ns, is_equal = 0, False
        if bound_ns is not None and strict_ns is not None:
            good_ns = bound_ns * (1000 + COUPLING_PERMILLE) // 1000
            is_equal = 10 * strict_ns <= 9 * bound_ns + good_ns
            good_ns = max(good_ns, _above(bound_ns, GOOD_PPM)) if is_equal else good_ns
        if bound_ns is not None and strict_ns is not None and 2 * strict_ns <= bound_ns + good_ns:
            found.append(self._solved(self.strict, budget_bytes, PROBE_PERMILLE))
            if self.progress.is_stopped or (found[0].fits(budget_bytes) and found[0].step_time_ns <= good_ns):
                return found[0]
        found.append(self._solved(self.coupled, budget_bytes, FULL_PERMILLE))
        ranks = [self._rank(candidate, budget_bytes) for candidate in found]
        # What breaks the rule has to gain more than a little.
        if ranks[0][0] == ranks[-1][0] and ranks[-1][1] * (1000 + COUPLING_PERMILLE) // 1000 >= ranks[0][1]:
            return found[0]
        return min(found, key=lambda candidate: self._rank(candidate, budget_bytes))

    def _solved(self, solver: StageSolver, budget_bytes: int, effort_permille: int) -> Candidate:
        """A plan of one solver, made once more with less where the whole step is a little over its budget."""
        found = self._candidate(solver.rows.effective(solver.solve(budget_bytes, effort_permille)))
        over_bytes = found.peak_bytes - budget_bytes
        is_near = solver.fits_alone and 0 < over_bytes <= budget_bytes // NEAR_PART
        if not is_near or self.progress.is_stopped:
            return found
        less_bytes = budget_bytes - over_bytes - budget_bytes // LEAST_REPAIR
        again = self._candidate(solver.rows.effective(solver.solve(less_bytes, effort_permille)))
        return min(found, again, key=lambda candidate: self._rank(candidate, budget_bytes))

    def _mix(self, rung: Rung) -> Candidate:
        """Some layers of the plan for the knot below, the others of that for the knot above."""
        rich = self._at(Rung(self.knots[rung.knot + 1], rung.knot + 1, 0))
        if self.progress.is_stopped:
            return rich
        lean = self._at(Rung(self.knots[rung.knot], rung.knot, 0))
        if self.progress.is_stopped or rich.fits(rung.budget_bytes):
            return rich if rich.fits(rung.budget_bytes) else lean
        return self._mixed(lean, rich, rung.budget_bytes)

    def _mixed(self, lean: Candidate, rich: Candidate, budget_bytes: int) -> Candidate:
        """The best mix of the layers of two plans for a budget, or the one that needs less."""
        assert lean.choice is not None and rich.choice is not None
        solver, tried_bytes, best = self.coupled or self.strict, budget_bytes, lean
        for _ in range(NUM_TRIES):
            found = self._candidate(solver.mix(lean.choice, rich.choice, tried_bytes))
            best = min(best, found, key=lambda one: self._rank(one, budget_bytes))
            if found.fits(budget_bytes) or self.progress.is_stopped:
                break
            tried_bytes -= max(1, found.peak_bytes - budget_bytes)
        return best

    def _least(self) -> Candidate:
        """The least memory that is found."""
        if self.least is None:
            solver = self.coupled or self.strict
            found = self._solved(solver, 0, PROBE_PERMILLE)
            if self.progress.is_stopped:
                return found
            self.least = found
        return self.least

    def _candidate(self, choice: np.ndarray) -> Candidate:
        policy = self.finish((self.coupled or self.strict).rows.policy(choice))
        found = Candidate.of(self.problem, policy, evaluate(self.problem, policy), choice)
        if self.nearest is None or _need(found) < _need(self.nearest):
            self.nearest = found
        return found

    def _rank(self, candidate: Candidate, budget_bytes: int) -> tuple[bool, int, int]:
        """Less is better: what fits, then what is faster; where nothing fits, what needs less memory."""
        if candidate.fits(budget_bytes):
            return False, candidate.step_time_ns, candidate.peak_bytes
        return True, candidate.peak_bytes, candidate.step_time_ns


def _above(bound_ns: int, ppm: int) -> int:
    return bound_ns + bound_ns * ppm // 1_000_000


def _is_far_over(found: Candidate, rung: Rung) -> bool:
    """Over its budget by more than what planning with a little less could mend."""
    return found.peak_bytes > rung.budget_bytes + rung.budget_bytes // NEAR_PART


def _time_of(candidate: Candidate) -> int:
    return candidate.step_time_ns


def _need(candidate: Candidate) -> tuple[bool, int, int]:
    return not candidate.is_on_host, candidate.peak_bytes, candidate.step_time_ns
