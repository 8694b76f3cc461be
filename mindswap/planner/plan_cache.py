"""The plans of a model: whatever was made for any budget is a candidate for every other."""

from collections.abc import Iterable
from itertools import product

import numpy as np

from mindswap.planner.catalog import Catalog
from mindswap.planner.evaluate import Candidate, Evaluation, evaluate
from mindswap.planner.lower_bound import BoundInputs, min_step_ns
from mindswap.planner.problem import PlanProblem
from mindswap.planner.solver.search import Interruptible
from mindswap.planner.stages import LEAST_REPAIR, StageSolver
from mindswap.policy.model import Policy
from mindswap.simulator.step_model import StepModel

# What is above the bound by no more than this part is not looked further for: the simulator is no better than that.
ENOUGH_PART = 200
# A plan that is above that by more than this part, above the bound by 3 %, is looked for within neighbouring budgets,
# too. Next to the least memory a search misses a few percent, for one budget and not for the next.
FAR_PART = 40
# These budgets, in thousandths of the one that was asked: with what fits in less, and what to mix it with.
BESIDE_PERMILLE = (995, 1010)
# Neighbours of a budget that are mixed: the fastest plans that fit, and the nearest ones for more memory.
NUM_NEIGHBOURS = 2
# Tries to make a mix fit that is over its budget only in the whole step.
NUM_TRIES = 3


class Curve:
    """Plans of one model under the same rules.

    Args:
        problem: all but the budget counts.
        short: the model with few micro-batches.
        bound_inputs: for the bound.
        catalog: items of the model.
        keep: the policy that keeps everything, replayed.

    Attributes:
        progress: called after each simulation.
    """

    def __init__(
        self, problem: PlanProblem, short: StepModel, bound_inputs: BoundInputs, catalog: Catalog, keep: Evaluation
    ):
        self.problem = problem
        self.bound_inputs = bound_inputs
        self.keep = keep
        self.progress = Interruptible()
        self.solver = StageSolver(problem, short, catalog, lambda: self.progress())
        everything = Candidate.of(problem, problem.with_switches(Policy()), keep, np.zeros(self.solver.shape, np.int64))
        self.known = [everything]
        self.least: Candidate | None = None
        self.nearest: Candidate | None = None

    @property
    def num_evaluations(self) -> int:
        """Simulations made."""
        return self.solver.num_evaluations

    def best(self, budget_bytes: int) -> Candidate:
        """The fastest plan that is found within a budget; or what comes nearest.

        Looked at are the plans known, a new one for this very budget, those for budgets beside it where that is far
        above the bound, and mixes of these; no further where one is close to the bound.
        """
        enough_ns = self._enough_ns(budget_bytes)
        best = self._fastest(budget_bytes, self.known)
        if not self._is_enough(best, enough_ns):
            best = self._fastest(budget_bytes, [self._solved(budget_bytes, enough_ns), *([best] if best else [])])
        if best is None and not self.progress.is_stopped:
            best = self._fastest(budget_bytes, [self._least()])
        if best is not None:
            for permille in BESIDE_PERMILLE:
                if not self._is_enough(best, enough_ns + enough_ns // FAR_PART):
                    beside_bytes = budget_bytes * permille // 1000
                    found = self._solved(beside_bytes, self._enough_ns(beside_bytes))
                    best = min(best, found, *self.known, key=lambda one: one.rank(budget_bytes))
            return best if self._is_enough(best, enough_ns) else self._mixed(best, budget_bytes)
        # The least is there for every budget; what came nearer to this one may not be for another.
        nearest = self.least if self.least is not None and self.least.is_on_host else self.nearest
        if nearest is None:
            raise AssertionError("no plan was made")
        return nearest

    def bound_ns(self, budget_bytes: int) -> int | None:
        """Step time that hardly a policy within a budget beats, none but by chance; None if none can be within it."""
        bound_ns = min_step_ns(self.bound_inputs, budget_bytes, self.problem.host_bytes_per_card, self.problem.allow)
        return None if bound_ns is None else max(bound_ns, self.keep.step_time_ns)

    def _enough_ns(self, budget_bytes: int) -> int:
        """Step time that needs no further look; 0 where no bound is known."""
        bound_ns = self.bound_ns(budget_bytes) or 0
        return bound_ns + bound_ns // ENOUGH_PART

    def _is_enough(self, best: Candidate | None, enough_ns: int) -> bool:
        is_close = best is not None and best.step_time_ns <= enough_ns
        return self.progress.is_stopped or is_close

    def _fastest(self, budget_bytes: int, candidates: Iterable[Candidate]) -> Candidate | None:
        return min((one for one in candidates if one.fits(budget_bytes)), key=_time_of, default=None)

    def _solved(self, budget_bytes: int, enough_ns: int = 0) -> Candidate:
        """A plan of the solver, made once more with less where the whole step is a little over its budget."""
        solver, extra_ns = self.solver, enough_ns - self.keep.step_time_ns
        found = self._candidate(solver.effective(solver.solve(budget_bytes, extra_ns)))
        over_bytes = found.peak_bytes - budget_bytes
        if over_bytes <= 0 or not solver.fits_alone or self.progress.is_stopped:
            return found
        less_bytes = budget_bytes - over_bytes - budget_bytes // LEAST_REPAIR
        again = self._candidate(solver.effective(solver.solve(less_bytes, extra_ns)))
        return min(found, again, key=lambda candidate: candidate.rank(budget_bytes))

    def _least(self) -> Candidate:
        """The least memory that is found."""
        if self.least is None:
            found = self._solved(0)
            if self.progress.is_stopped:
                return found
            self.least = found
        return self.least

    def _mixed(self, best: Candidate, budget_bytes: int) -> Candidate:
        """The best of a plan and of mixes of what fits with what is faster and needs more."""
        lean = [one for one in self.known if one.fits(budget_bytes)]
        rich = [one for one in self.known if one.is_on_host and not one.fits(budget_bytes)]
        nearest = sorted(rich, key=lambda one: one.peak_bytes)[:NUM_NEIGHBOURS]
        for high, low in product(nearest, sorted(lean, key=_time_of)[:NUM_NEIGHBOURS]):
            if high.step_time_ns < best.step_time_ns and not self.progress.is_stopped:
                best = min(best, self._mix(low, high, budget_bytes), key=lambda one: one.rank(budget_bytes))
        return best

    def _mix(self, lean: Candidate, rich: Candidate, budget_bytes: int) -> Candidate:
        """The best mix of the layers of two plans for a budget, or the one that needs less."""
        if lean.choice is None or rich.choice is None:  # all that are known come from one
            raise AssertionError("a plan without its assignment")
        tried_bytes, best = budget_bytes, lean
        for _ in range(NUM_TRIES):
            found = self._candidate(self.solver.mix(lean.choice, rich.choice, tried_bytes))
            best = min(best, found, key=lambda one: one.rank(budget_bytes))
            if found.fits(budget_bytes) or self.progress.is_stopped:
                break
            tried_bytes -= max(1, found.peak_bytes - budget_bytes)
        return best

    def _candidate(self, choice: np.ndarray) -> Candidate:
        """A choice as it is on the whole step; remembered, if the search was not stopped meanwhile."""
        policy = self.problem.with_switches(self.solver.rows.policy(choice))
        found = Candidate.of(self.problem, policy, evaluate(self.problem, policy), choice)
        if not self.progress.is_stopped:
            self.known.append(found)
        if self.nearest is None or _need(found) < _need(self.nearest):
            self.nearest = found
        return found


def _time_of(candidate: Candidate) -> int:
    return candidate.step_time_ns


def _need(candidate: Candidate) -> tuple[bool, int, int]:
    return not candidate.is_on_host, candidate.peak_bytes, candidate.step_time_ns
