"""The plans of a model: whatever was made or handed out for any budget is a candidate for every other."""

from collections.abc import Iterable
from itertools import islice

import numpy as np

from mindswap.planner.bound import Facts, least_step_ns
from mindswap.planner.budget_steps import breakpoints_of, budgets_below, fixed_budgets
from mindswap.planner.catalog import Catalog
from mindswap.planner.evaluate import Candidate, Evaluation, evaluate
from mindswap.planner.problem import PlanProblem
from mindswap.planner.solvers.search import Interruptible, Stop
from mindswap.planner.stages import LEAST_REPAIR, StageSolver
from mindswap.policy.model import Policy
from mindswap.simulator.step_model import StepModel

# A plan that is above the bound by no more than this part is not looked further for: searches come no closer. One that
# is over its budget by no more is made again with less.
NEAR_PART = 100
# The same above the bound for a small model: what is open, and what a plan for more memory may lose to one for less.
SMALL_NEAR_PART = 200
# Part of the simulations of a solver that is spent on a fixed budget; mixes with its neighbours come on top.
FULL_PERMILLE = 700
# Part of them that is spent on the least memory.
LEAST_PERMILLE = 400
# Simulations of one plan: no other budget is looked at when a part of them is left, for mixes.
MAX_EVALUATIONS = 3000
MIX_PART = 4
# In a small step single cells are tried, so that each search takes as many simulations as it may: so much less.
SMALL_PART = 3
# Tries to make a mix fit that is over its budget only in the whole step.
NUM_TRIES = 3
# Neighbours on either side of a budget: fixed budgets of which one has to give a large model a plan that fits; the
# fastest plans that fit, and the nearest ones for more memory that they are mixed with.
NUM_NEIGHBOURS = 2
# A small model's step has fewer operators. All fixed budgets are looked at for it: more memory is never slower, by
# `SMALL_NEAR_PART`.
SMALL_STEP = 1000

# A plan of a large model that leaves no more than this part of its budget is not mixed with one for more memory.
FULL_PART = 200


class Curve:
    """Plans of one model under the same rules; each is made once.

    Args:
        problem: all but the budget counts.
        short: the model with few micro-batches.
        facts: for the bound.
        catalog: items of the model.
        keep: the policy that keeps everything, replayed.

    Attributes:
        progress: called after each simulation.
    """

    def __init__(self, problem: PlanProblem, short: StepModel, facts: Facts, catalog: Catalog, keep: Evaluation):
        self.problem = problem
        self.facts = facts
        self.keep = keep
        self.progress = Interruptible()
        self.solver = StageSolver(problem, short, catalog, self._count)
        self.breakpoints = breakpoints_of(
            facts, problem.host_bytes_per_card, problem.allow, keep.step_time_ns, keep.peak_bytes
        )
        self.is_small = len(short.program(Policy()).ops.duration_ns) < SMALL_STEP
        self.made: dict[int, Candidate] = {}  # by fixed budget
        self.handed: list[Candidate] = []
        self.left, self.has_fitting = MAX_EVALUATIONS, False  # simulations of the plan at hand; anything fits
        self.least: Candidate | None = None
        self.nearest: Candidate | None = None

    @property
    def num_evaluations(self) -> int:
        """Simulations made."""
        return self.solver.num_evaluations

    def _count(self) -> None:
        self.left -= 1
        self.progress()
        if self.is_over:
            raise Stop

    def best(self, budget_bytes: int, others: Iterable[Candidate]) -> Candidate:
        """The fastest of the plans that are known, and of others that fit; or what comes nearest.

        Looked at are the fixed budgets up to this one, of a large model the closest, and the breakpoint below only
        where that gives nothing that fits; the breakpoint above; all that was made or handed out for any budget; and
        mixes of these, for this very budget. What is close to the bound needs no further look.
        """
        self.left, self.has_fitting = MAX_EVALUATIONS, False
        best = self._fastest(budget_bytes, [*others, *self.handed, *self.made.values()])
        budgets = budgets_below(self.breakpoints, budget_bytes, every=self.is_small)
        for fixed_bytes in budgets if self.is_small else islice(budgets, NUM_NEIGHBOURS):
            if self.is_over or self._is_close(best, fixed_bytes) or self.left < MAX_EVALUATIONS // MIX_PART:
                break
            found = self._at(fixed_bytes)
            if found.peak_bytes > fixed_bytes + fixed_bytes // NEAR_PART:
                break  # what a little less could not mend: nothing fits into less
            best = self._fastest(budget_bytes, [found, *([best] if best else [])])
            if best is not None and not self.is_small:
                break  # what is for less memory is slower, and is not needed for mixes either
        if best is None and not self.progress.is_stopped:
            best = self._fastest(budget_bytes, [self._least()])
        if best is not None and not self.is_over and not self._is_close(best, budget_bytes):
            best = self._refined(best, budget_bytes)
            if not self.is_small and not self.is_over and not self._is_close(best, budget_bytes):
                best = self._beside_recomputed(best, budget_bytes)
        if best is not None:
            self.handed += [] if self.progress.is_stopped else [best]
            return best
        # The least is there for every budget; what came nearer to this one may not be for another.
        nearest = self.least if self.least is not None and self.least.is_on_host else self.nearest
        assert nearest is not None
        return nearest

    @property
    def is_over(self) -> bool:
        """A plan is to be made of what is there."""
        return self.progress.is_stopped or (self.left < 0 and self.has_fitting)

    def _fastest(self, budget_bytes: int, candidates: Iterable[Candidate]) -> Candidate | None:
        best = min((one for one in candidates if one.fits(budget_bytes)), key=_time_of, default=None)
        self.has_fitting |= best is not None
        return best

    def _is_close(self, best: Candidate | None, budget_bytes: int) -> bool:
        """No plan within a budget can be faster by much."""
        bound_ns = self.bound_ns(budget_bytes)
        part = SMALL_NEAR_PART if self.is_small else NEAR_PART
        return best is not None and bound_ns is not None and best.step_time_ns <= bound_ns + bound_ns // part

    def bound_ns(self, budget_bytes: int) -> int | None:
        """Step time that hardly a policy within a budget beats, none but by chance; None if none can be within it."""
        bound_ns = least_step_ns(self.facts, budget_bytes, self.problem.host_bytes_per_card, self.problem.allow)
        return None if bound_ns is None else max(bound_ns, self.keep.step_time_ns)

    def _at(self, budget_bytes: int) -> Candidate:
        """The plan for a fixed budget."""
        if budget_bytes in self.made:
            return self.made[budget_bytes]
        if budget_bytes == self.breakpoints[-1]:
            found = self._candidate(np.zeros(self.solver.shape, np.int64))
        else:
            found = self._solved(budget_bytes, FULL_PERMILLE)
        if not self.is_over:
            self.made[budget_bytes] = found
        return found

    def _refined(self, best: Candidate, budget_bytes: int) -> Candidate:
        """The best of a plan and of mixes of what fits with what is faster and needs more, for this very budget."""
        spare_bytes = budget_bytes - best.peak_bytes
        is_full = not self.is_small and spare_bytes <= budget_bytes // FULL_PART
        above = next((size for size in self.breakpoints if size > budget_bytes), None)
        more = [] if is_full or above is None else [self._at(above)]
        known = {*self.made.values(), *self.handed, *more, best}
        lean = [one for one in known if one.fits(budget_bytes) and one.choice is not None]
        rich = [one for one in known if one.is_on_host and not one.fits(budget_bytes) and one.choice is not None]
        pairs = [
            (low, high)
            for high in sorted(rich, key=lambda one: one.peak_bytes)[:NUM_NEIGHBOURS]
            for low in sorted(lean, key=_time_of)[:NUM_NEIGHBOURS]
            if high.step_time_ns < best.step_time_ns
        ]
        for low, high in pairs:
            if self.is_over:
                break
            found = self._mixed(low, high, budget_bytes)
            best = min(best, found, key=lambda one: one.rank(budget_bytes))
        return best

    def _beside_recomputed(self, best: Candidate, budget_bytes: int) -> Candidate:
        """The best of a plan and of one for a little more memory, of which a few layers run again as a whole.

        Next to the least memory little is missing in a few layers, and what frees most in them costs least in all.
        """
        catalog = self.solver.rows.catalog
        choice = np.zeros(self.solver.shape, np.int64)
        choice[catalog.freed_bytes[list(catalog.kinds), 0, 1] > 0, 0] = -1
        if not choice.any() or not (lean := self._candidate(choice)).fits(budget_bytes):
            return best
        above = (size for size in fixed_budgets(self.breakpoints) if size > budget_bytes)
        rich = self._at(next(above, self.breakpoints[-1]))
        if rich.choice is None or rich.step_time_ns >= best.step_time_ns or self.is_over:
            return best
        return min(best, self._mixed(lean, rich, budget_bytes), key=lambda one: one.rank(budget_bytes))

    def _solved(self, budget_bytes: int, effort_permille: int) -> Candidate:
        """A plan of the solver; where it is far from the bound, the better of two."""
        effort_permille //= SMALL_PART if self.is_small else 1
        bound_ns = self.bound_ns(budget_bytes)
        extra_ns = None if bound_ns is None else bound_ns - self.keep.step_time_ns
        found = self._tried(budget_bytes, effort_permille, extra_ns, is_exact=True)
        if bound_ns is None or self.is_small or self.is_over or self._is_close(found, budget_bytes):
            return found
        other = self._tried(budget_bytes, effort_permille, extra_ns, is_exact=False)
        return min(found, other, key=lambda candidate: candidate.rank(budget_bytes))

    def _tried(self, budget_bytes: int, effort_permille: int, extra_ns: int | None, is_exact: bool) -> Candidate:
        """A plan of the solver, made once more with less where the whole step is a little over its budget."""
        solver = self.solver
        found = self._candidate(solver.effective(solver.solve(budget_bytes, effort_permille, extra_ns, is_exact)))
        over_bytes = found.peak_bytes - budget_bytes
        is_near = solver.fits_alone and 0 < over_bytes <= budget_bytes // NEAR_PART
        if not is_near or self.is_over:
            return found
        less_bytes = budget_bytes - over_bytes - budget_bytes // LEAST_REPAIR
        again = self._candidate(solver.effective(solver.solve(less_bytes, effort_permille, extra_ns, is_exact)))
        return min(found, again, key=lambda candidate: candidate.rank(budget_bytes))

    def _mixed(self, lean: Candidate, rich: Candidate, budget_bytes: int) -> Candidate:
        """The best mix of the layers of two plans for a budget, or the one that needs less."""
        assert lean.choice is not None and rich.choice is not None
        tried_bytes, best = budget_bytes, lean
        for _ in range(NUM_TRIES):
            found = self._candidate(self.solver.mix(lean.choice, rich.choice, tried_bytes))
            best = min(best, found, key=lambda one: one.rank(budget_bytes))
            if found.fits(budget_bytes) or self.is_over:
                break
            tried_bytes -= max(1, found.peak_bytes - budget_bytes)
        return best

    def _least(self) -> Candidate:
        """The least memory that is found."""
        if self.least is None:
            found = self._solved(0, LEAST_PERMILLE)
            if self.progress.is_stopped:
                return found
            self.least = found
        return self.least

    def _candidate(self, choice: np.ndarray) -> Candidate:
        policy = self.problem.with_switches(self.solver.rows.policy(choice))
        found = Candidate.of(self.problem, policy, evaluate(self.problem, policy), choice)
        if self.nearest is None or _need(found) < _need(self.nearest):
            self.nearest = found
        return found


def _time_of(candidate: Candidate) -> int:
    return candidate.step_time_ns


def _need(candidate: Candidate) -> tuple[bool, int, int]:
    return not candidate.is_on_host, candidate.peak_bytes, candidate.step_time_ns
