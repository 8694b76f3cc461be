"""Search the fastest plan within a budget; plans that one search has made for other budgets are candidates."""

from collections.abc import Iterable
from itertools import product

import numpy as np

from mindswap.planner.evaluate import Candidate, Evaluation, evaluate
from mindswap.planner.layer_assignments import LayerAssignments
from mindswap.planner.lower_bound import BoundInputs, min_step_ns
from mindswap.planner.problem import PlanProblem
from mindswap.planner.solver.search import Interruptible
from mindswap.planner.stages import MIN_REPAIR, StageSolver
from mindswap.policy.model import Policy
from mindswap.simulator.step_model import StepModel

# A plan within 1/200 of the lower bound ends the search: the simulator is no more accurate than that.
ENOUGH_PART = 200
# Number of plans that are combined: the fastest that fit, and the closest ones that need more memory.
NUM_NEIGHBOURS = 2
# Attempts to make a combination fit that exceeds the budget on the whole step only.
NUM_TRIES = 3


class BudgetSearch:
    """Searches plans of one model under equal host memory, permissions and switches, for one question.

    It must not outlive the question: what it has found for one budget changes what it finds for the next.

    Args:
        problem: all but the budget counts.
        short: the model with few micro-batches.
        bound_inputs: for the bound.
        layer_assignments: compiled layers of the model; may be shared, because its results depend on no search.
        start: the policy without decisions, replayed: it keeps everything but what is pinned.
        progress: called after each simulation.
    """

    def __init__(
        self,
        problem: PlanProblem,
        short: StepModel,
        bound_inputs: BoundInputs,
        layer_assignments: LayerAssignments,
        start: Evaluation,
        progress: Interruptible,
    ):
        self.problem = problem
        self.bound_inputs = bound_inputs
        self.start = start
        self.progress = progress
        self.solver = StageSolver(problem, short, layer_assignments, progress)
        first = Candidate.of(problem, problem.with_switches(Policy()), start, np.zeros(self.solver.shape, np.int64))
        self.evaluated = [first]
        self.min_memory: Candidate | None = None
        self.nearest: Candidate | None = None

    @property
    def num_evaluations(self) -> int:
        """Number of simulations."""
        return self.solver.num_evaluations

    def best(self, budget_bytes: int) -> Candidate:
        """Return the fastest plan found within a budget, or the closest one if none fits.

        Candidates are, in this order, the plans made so far, a new plan for the budget, and combinations of these. The
        search ends once one is close to the bound.
        """
        enough_ns = self._enough_ns(budget_bytes)
        best = self._fastest(budget_bytes, self.evaluated)
        if not self._is_enough(best, enough_ns):
            best = self._fastest(budget_bytes, [self._solve(budget_bytes, enough_ns), *([best] if best else [])])
        if best is None and not self.progress.is_stopped:
            best = self._fastest(budget_bytes, [self._solve_min_memory()])
        if best is not None:
            return best if self._is_enough(best, enough_ns) else self._mixed(best, budget_bytes)
        # The plan of least memory is the same for every budget; another plan that came closer may depend on the order.
        nearest = self.min_memory if self.min_memory is not None and self.min_memory.is_on_host else self.nearest
        if nearest is None:
            raise AssertionError("no plan was made")
        return nearest

    def bound_ns(self, budget_bytes: int) -> int | None:
        """Return the lower bound of the step time, at least that of the start; None if no policy fits."""
        bound_ns = min_step_ns(self.bound_inputs, budget_bytes, self.problem.host_bytes_per_card, self.problem.allow)
        return None if bound_ns is None else max(bound_ns, self.start.step_time_ns)

    def _enough_ns(self, budget_bytes: int) -> int:
        """Return the step time at which the search may end; 0 without a bound."""
        bound_ns = self.bound_ns(budget_bytes) or 0
        return bound_ns + bound_ns // ENOUGH_PART

    def _is_enough(self, best: Candidate | None, enough_ns: int) -> bool:
        is_close = best is not None and best.step_time_ns <= enough_ns
        return self.progress.is_stopped or is_close

    def _fastest(self, budget_bytes: int, candidates: Iterable[Candidate]) -> Candidate | None:
        return min((plan for plan in candidates if plan.fits(budget_bytes)), key=_time_of, default=None)

    def _solve(self, budget_bytes: int, enough_ns: int = 0) -> Candidate:
        """Solve for a budget; solve once more for a smaller one if the whole step slightly exceeds it."""
        solver, extra_ns = self.solver, enough_ns - self.start.step_time_ns
        candidate = self._replay(solver.effective(solver.solve(budget_bytes, extra_ns)))
        excess_bytes = candidate.peak_bytes - budget_bytes
        if excess_bytes <= 0 or not solver.fits_alone or self.progress.is_stopped:
            return candidate
        less_bytes = budget_bytes - excess_bytes - budget_bytes // MIN_REPAIR
        repaired = self._replay(solver.effective(solver.solve(less_bytes, extra_ns)))
        return min(candidate, repaired, key=lambda candidate: candidate.rank(budget_bytes))

    def _solve_min_memory(self) -> Candidate:
        """Return the plan with the least memory found."""
        if self.min_memory is None:
            candidate = self._solve(0)
            if self.progress.is_stopped:
                return candidate
            self.min_memory = candidate
        return self.min_memory

    def _mixed(self, best: Candidate, budget_bytes: int) -> Candidate:
        """Combine plans that fit with faster ones that need more memory; return the best."""
        low_memory = [plan for plan in self.evaluated if plan.fits(budget_bytes)]
        high_memory = [plan for plan in self.evaluated if plan.is_on_host and not plan.fits(budget_bytes)]
        nearest = sorted(high_memory, key=lambda plan: plan.peak_bytes)[:NUM_NEIGHBOURS]
        for high, low in product(nearest, sorted(low_memory, key=_time_of)[:NUM_NEIGHBOURS]):
            if high.step_time_ns < best.step_time_ns and not self.progress.is_stopped:
                best = min(best, self._mix(low, high, budget_bytes), key=lambda plan: plan.rank(budget_bytes))
        return best

    def _mix(self, low_memory: Candidate, high_memory: Candidate, budget_bytes: int) -> Candidate:
        """Return the best combination of two plans for a budget, or the one that needs less memory."""
        if low_memory.assignment is None or high_memory.assignment is None:  # all that are known come from one
            raise AssertionError("a plan without its assignment")
        tried_bytes, best = budget_bytes, low_memory
        for _ in range(NUM_TRIES):
            candidate = self._replay(self.solver.mix(low_memory.assignment, high_memory.assignment, tried_bytes))
            best = min(best, candidate, key=lambda plan: plan.rank(budget_bytes))
            if candidate.fits(budget_bytes) or self.progress.is_stopped:
                break
            tried_bytes -= max(1, candidate.peak_bytes - budget_bytes)
        return best

    def _replay(self, assignment: np.ndarray) -> Candidate:
        """Evaluate an assignment on the whole step; keep it as a candidate unless the search was stopped."""
        policy = self.problem.with_switches(self.solver.layer_assignments.policy(assignment))
        candidate = Candidate.of(self.problem, policy, evaluate(self.problem, policy), assignment)
        if not self.progress.is_stopped:
            self.evaluated.append(candidate)
        if self.nearest is None or _memory_rank(candidate) < _memory_rank(self.nearest):
            self.nearest = candidate
        return candidate


def _time_of(candidate: Candidate) -> int:
    return candidate.step_time_ns


def _memory_rank(candidate: Candidate) -> tuple[bool, int, int]:
    return not candidate.is_on_host, candidate.peak_bytes, candidate.step_time_ns
