"""Search the plans of one question: solve each pipeline stage, evaluate the whole step, compare with the baselines."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mindswap.planner.build_plan import Bounds, plan_of
from mindswap.planner.catalog import Catalog
from mindswap.planner.effect import is_coupled
from mindswap.planner.evaluate import Candidate, Evaluation, evaluate, evaluate_short
from mindswap.planner.problem import Compared, Objective, Plan, PlanProblem
from mindswap.planner.solver.search import Interruptible, Progress
from mindswap.planner.stages import MIN_REPAIR, StageSolver
from mindswap.policy.coverage import BASELINES, KEEP_ALL
from mindswap.system.collector import without_collector

if TYPE_CHECKING:
    from mindswap.planner.planning import Planner

# A plan within 1/200 of the lower bound ends the search: the simulator is no more accurate than that.
ENOUGH_PART = 200
# With the objective "memory": accepted slowdown in thousandths, and number of bisections of the budget.
LOSS_PERMILLE = 10
NUM_HALVINGS = 6
# A baseline that is slower than the plan by this many thousandths on short steps is not replayed on the whole step: the
# difference of short and whole steps is smaller.
REPLAY_PERMILLE = 20


class PlanSession:
    """The search for the plans of one question: one budget, or the budgets of a sweep, which are solved together.

    What is found for one budget is a candidate for the budgets after it. So a session ends with its question: whoever
    asks again gets a new one, and the same plan.

    Args:
        planner: planner of the model.
        problem: problem; its budget is ignored.
        progress: called after each simulation; may raise `Stop`, then the best policies so far are the plans.
    """

    def __init__(self, planner: "Planner", problem: PlanProblem, progress: Progress = lambda: None):
        self.planner = planner
        self.problem = problem
        self.progress = Interruptible(progress)
        self._solvers: dict[Catalog, StageSolver] = {}
        with without_collector():
            self._baselines, models = planner.baselines(problem), planner.free_short_models
            # Of the baselines on short steps; of keeping everything, and of nothing but the pins, on the whole step.
            self._evaluations = {name: evaluate_short(problem, each, models) for name, each in self._baselines.items()}
            keep_all = self._baselines[KEEP_ALL]
            self._keep = self._start = evaluate(replace(problem, model=planner.free_model), keep_all)
            if planner.free_model is not planner.model:
                self._start = evaluate(problem, keep_all)
        start = np.zeros((planner.model.captured.num_layers, planner.catalog.copy_ns.shape[1]), np.int64)
        self._candidates = [Candidate.of(problem, keep_all, self._start, start)]
        self._min_memory: dict[Catalog, Candidate] = {}

    def plan(self, budget_bytes: int) -> Plan:
        """Search the best policy within a budget of device memory."""
        find = self._minimize_memory if self.problem.objective is Objective.MEMORY else self._fastest
        with without_collector():
            return find(replace(self.problem, budget_bytes=budget_bytes))

    def _fastest(self, problem: PlanProblem) -> Plan:
        planner = self.planner
        policies = self._baselines
        evaluations = {name: evaluation.within(problem) for name, evaluation in self._evaluations.items()}
        num_before = self._num_evaluations
        best = self._search(problem.budget_bytes)
        replayed = [
            Candidate.of(problem, form, evaluate(problem, form))
            for name, evaluation in evaluations.items()
            if _may_replace(best, evaluation, problem.budget_bytes)
            and (form := planner.eligible_form(problem.allow, policies[name])) is not None
        ]
        # Of equally fast candidates the first: what was searched swaps and recomputes no more than needed.
        policy = min((best, *replayed), key=lambda candidate: candidate.rank(problem.budget_bytes)[:2]).policy
        return plan_of(
            problem,
            Bounds.of(planner.bound_inputs, problem),
            self._keep.step_time_ns,
            policy,
            evaluate(problem, policy),
            compared=tuple(
                Compared(
                    BASELINES[name].title,
                    evaluation.step_time_ns,
                    evaluation.peak_bytes,
                    evaluation.fits,
                    name,
                    policies[name],
                )
                for name, evaluation in evaluations.items()
            ),
            num_evaluations=self._num_evaluations - num_before,
            is_coupled=is_coupled(planner.model, planner.catalog.uses, policy),
            is_interrupted=self.progress.is_stopped,
        )

    @property
    def _num_evaluations(self) -> int:
        """Number of simulations."""
        return sum(solver.num_evaluations for solver in self._solvers.values())

    def _search(self, budget_bytes: int) -> Candidate:
        """Return the fastest candidate within a budget, or the closest one if none fits.

        If MindSpore cannot compile it, the two restricted catalogs are searched, and candidates like it are left out.
        """
        catalog = self.planner.catalog
        best = self._best(catalog, self._candidates, budget_bytes)
        if not catalog.combines_incompatible(best.assignment):
            return best
        found = []
        for restricted in self.planner.split_incompatible:
            compilable = [each for each in self._candidates if not catalog.combines_incompatible(each.assignment)]
            found.append(self._best(restricted, compilable, budget_bytes))
        return min(found, key=lambda candidate: candidate.rank(budget_bytes))

    def _best(self, catalog: Catalog, candidates: Iterable[Candidate], budget_bytes: int) -> Candidate:
        """Return the best of some candidates and of what is found with a catalog, unless one is close to the bound."""
        bound_ns = self.planner.bound_ns(replace(self.problem, budget_bytes=budget_bytes))
        enough_ns = 0 if bound_ns is None else max(bound_ns, self._start.step_time_ns)
        enough_ns += enough_ns // ENOUGH_PART
        best = min(candidates, key=lambda candidate: candidate.rank(budget_bytes))
        if best.fits(budget_bytes) and (best.step_time_ns <= enough_ns or self.progress.is_stopped):
            return best
        solved = self._solve(catalog, budget_bytes, enough_ns)
        best = min(best, solved, key=lambda candidate: candidate.rank(budget_bytes))
        if best.fits(budget_bytes) or self.progress.is_stopped:
            return best
        # The plan of least memory is the same for every budget; another one that came closer may depend on the order.
        if catalog not in self._min_memory:
            least = self._solve(catalog, 0)
            if self.progress.is_stopped:
                return min(best, least, key=lambda candidate: candidate.rank(budget_bytes))
            self._min_memory[catalog] = least
        least = self._min_memory[catalog]
        return least if least.is_on_host else min(best, least, key=lambda candidate: candidate.rank(budget_bytes))

    def _solve(self, catalog: Catalog, budget_bytes: int, enough_ns: int = 0) -> Candidate:
        """Solve for a budget; solve once more for a smaller one if the whole step slightly exceeds it."""
        if catalog not in self._solvers:
            layer_assignments = self.planner.layer_assignments(self.problem.allow, catalog)
            short = self.planner.short_models[0]
            self._solvers[catalog] = StageSolver(self.problem, short, layer_assignments, self.progress)
        solver, extra_ns = self._solvers[catalog], enough_ns - self._start.step_time_ns
        candidate = self._replay(solver, solver.solve(budget_bytes, extra_ns))
        excess_bytes = candidate.peak_bytes - budget_bytes
        if excess_bytes <= 0 or not solver.fits_alone or self.progress.is_stopped:
            return candidate
        less_bytes = budget_bytes - excess_bytes - budget_bytes // MIN_REPAIR
        repaired = self._replay(solver, solver.solve(less_bytes, extra_ns))
        return min(candidate, repaired, key=lambda candidate: candidate.rank(budget_bytes))

    def _replay(self, solver: StageSolver, assignment: np.ndarray) -> Candidate:
        """Evaluate an assignment on the whole step; keep it as a candidate unless the search was stopped."""
        assignment = solver.effective(assignment)
        policy = self.problem.with_switches(solver.layer_assignments.policy(assignment))
        candidate = Candidate.of(self.problem, policy, evaluate(self.problem, policy), assignment)
        if not self.progress.is_stopped:
            self._candidates.append(candidate)
        return candidate

    def _minimize_memory(self, problem: PlanProblem) -> Plan:
        """Bisect the budget between static memory and a plan's peak while the slowdown is within `LOSS_PERMILLE`."""
        best = self._fastest(problem)
        limit_ns = best.unconstrained_ns * (1000 + LOSS_PERMILLE) // 1000
        low, high = max(best.stage_static_bytes), min(best.peak_bytes, problem.budget_bytes)
        if not best.fits or best.step_time_ns > limit_ns:
            return best
        for _ in range(NUM_HALVINGS):
            if self.progress.is_stopped:
                break
            middle = (low + high) // 2
            plan = self._fastest(replace(problem, budget_bytes=middle))
            if plan.fits and plan.step_time_ns <= limit_ns:
                best = replace(
                    plan, budget_bytes=problem.budget_bytes, lower_bound_ns=best.lower_bound_ns, compared=best.compared
                )
                high = plan.peak_bytes
            else:
                low = middle
        return replace(best, is_interrupted=self.progress.is_stopped)


def _may_replace(best: Candidate, baseline: Evaluation, budget_bytes: int) -> bool:
    """Return whether a baseline, simulated on a short step, may be better than the best candidate on the full step.

    It may be faster within the budget or, if the candidate does not fit, closer to the budget: an interrupted search
    may end with a candidate that needs more memory than full recompute.
    """
    if best.fits(budget_bytes):
        return baseline.fits and baseline.step_time_ns < best.step_time_ns * (1000 + REPLAY_PERMILLE) // 1000
    return baseline.fits or baseline.peak_bytes < best.peak_bytes
