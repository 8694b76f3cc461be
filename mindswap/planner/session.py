"""Search the plans of one question: solve each pipeline stage, evaluate the whole step, compare with the baselines."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mindswap.planner.budget_search import BudgetSearch
from mindswap.planner.build_plan import plan_of
from mindswap.planner.catalog import Catalog
from mindswap.planner.effect import is_coupled
from mindswap.planner.evaluate import Candidate, Evaluation, evaluate
from mindswap.planner.problem import Compared, Objective, Plan, PlanProblem
from mindswap.planner.solver.search import Interruptible, Progress
from mindswap.policy.coverage import BASELINES
from mindswap.system.collector import without_collector

if TYPE_CHECKING:
    from mindswap.planner.planning import Planner

# With the objective "memory": accepted slowdown in thousandths, and number of bisections of the budget.
LOSS_PERMILLE = 10
NUM_HALVINGS = 6
# A baseline that is slower than the plan by this many thousandths on short steps is not replayed on the whole step: the
# difference of short and whole steps is smaller.
REPLAY_PERMILLE = 20


class PlanSession:
    """The search for the plans of one question: one budget, or the budgets of a sweep, which are solved together.

    A plan for one budget is a candidate for the budgets after it. So a session ends with its question: whoever asks
    again gets a new one, and the same plan.

    Args:
        planner: planner of the model.
        problem: problem; its budget is ignored.
        progress: called after each simulation; may raise `Stop`, then the best policies so far are the plans.
    """

    def __init__(self, planner: "Planner", problem: PlanProblem, progress: Progress = lambda: None):
        self.planner = planner
        self.problem = problem
        self.progress = Interruptible(progress)
        self._searches: dict[Catalog, BudgetSearch] = {}

    def plan(self, budget_bytes: int) -> Plan:
        """Search the best policy within a budget of device memory."""
        find = self._minimize_memory if self.problem.objective is Objective.MEMORY else self._fastest
        with without_collector():
            return find(replace(self.problem, budget_bytes=budget_bytes))

    def _fastest(self, problem: PlanProblem) -> Plan:
        planner = self.planner
        policies, evaluations, keep, start = planner.evaluated_baselines(problem)
        num_before = self._num_evaluations
        best = self._search(problem.budget_bytes, start)
        limit_ns = best.step_time_ns * (1000 + REPLAY_PERMILLE) // 1000
        replayed = [
            Candidate.of(problem, policies[name], evaluate(problem, policies[name]))
            for name, evaluation in evaluations.items()
            if evaluation.fits
            and (not best.fits(problem.budget_bytes) or evaluation.step_time_ns < limit_ns)
            and planner.is_eligible(problem.allow, policies[name])
        ]
        fitting = [evaluation for evaluation in (best, *replayed) if evaluation.fits(problem.budget_bytes)]
        policy = min(fitting, key=lambda evaluation: evaluation.step_time_ns).policy if fitting else best.policy
        return plan_of(
            problem,
            planner.bound_inputs,
            keep.step_time_ns,
            policy,
            evaluate(problem, policy),
            compared=tuple(
                Compared(BASELINES[name].title, evaluation.step_time_ns, evaluation.peak_bytes, evaluation.fits, name)
                for name, evaluation in evaluations.items()
            ),
            num_evaluations=self._num_evaluations - num_before,
            is_coupled=is_coupled(planner.model, planner.catalog.uses, policy),
            is_interrupted=self.progress.is_stopped,
        )

    @property
    def _num_evaluations(self) -> int:
        """Number of simulations."""
        return sum(search.num_evaluations for search in self._searches.values())

    def _search(self, budget_bytes: int, start: Evaluation) -> Candidate:
        """Search the best plan; if MindSpore cannot compile it, search the two restricted catalogs."""
        catalog = self.planner.catalog
        best = self._search_of(catalog, start).best(budget_bytes)
        if best.assignment is None or not catalog.combines_incompatible(best.assignment):
            return best
        restricted: Sequence[Catalog] = self.planner.split_incompatible
        candidates = [self._search_of(catalog, start).best(budget_bytes) for catalog in restricted]
        return min(candidates, key=lambda candidate: candidate.rank(budget_bytes))

    def _search_of(self, catalog: Catalog, start: Evaluation) -> BudgetSearch:
        """Return the search of this session over a catalog."""
        if catalog not in self._searches:
            planner, problem = self.planner, self.problem
            layer_assignments = planner.layer_assignments(problem.allow, catalog)
            self._searches[catalog] = BudgetSearch(
                problem, planner.short_models[0], planner.bound_inputs, layer_assignments, start, self.progress
            )
        return self._searches[catalog]

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
