"""Search plans for a step: one budget, or a range of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mindswap.config.step_settings import LAYERS_NOT_INLINED, MAX_INLINED_MICRO_BATCHES
from mindswap.errors import PlanError, SimulationError
from mindswap.features.plan.budget import find_budget, make_problem, usable_budget
from mindswap.features.plan.groups import with_groups
from mindswap.features.plan.pynative import is_model_2x, require_known_swap
from mindswap.features.plan.step_plan import StepPlan
from mindswap.features.plan.tidy import without_warnings
from mindswap.features.plan.within_pool import plan_within_pool
from mindswap.features.plan.written import compact
from mindswap.features.simulate import LoadedStep
from mindswap.planner.build_plan import with_policy
from mindswap.planner.evaluate import evaluate
from mindswap.planner.layer_plan import plan_layers
from mindswap.planner.pins import Pin, pinned_policy
from mindswap.planner.planning import Planner
from mindswap.planner.problem import DEFAULT_ALLOW, YOURS, Allow, Compared, Objective, Plan, PlanProblem
from mindswap.planner.recompute_counts import counted_sections, in_first_layers, swaps_nothing
from mindswap.planner.session import PlanSession
from mindswap.planner.solver.search import Progress
from mindswap.planner.staged_plan import plan_staged
from mindswap.planner.sweep import bound_curve, sweep_budgets
from mindswap.planner.traced_plan import plan_traced
from mindswap.simulator.cost.hardware import with_fragments
from mindswap.simulator.layer_swap_2x import LayerSwapModel2x
from mindswap.simulator.staged_step import StagedStepModel
from mindswap.simulator.step_model_2x import StepModel2x

# A plan that only recomputes may be so many thousandths slower as counts of layers; plans that are tried for that.
COUNTS_PERMILLE, MAX_COUNTED = 5, 3


class StepPlanner:
    """Makes plans for one step. They share its compiled layers, and no results: each is the plan of `make_plan`.

    Args:
        step: the step to plan.
        allow: means that plans may use: swap, recompute or both.
        pins: decisions of the user for all layers.

    Raises:
        PlanError: swap alone is allowed and cannot be compiled, mindswap's own swap is to be planned from a trace of
            MindFormers 1.9, or a pin has no effect or contradicts another one.

    Example:
        >>> planner = StepPlanner(mindswap.load_step("llama2_7b.yaml"))
        >>> plans = [planner.plan(memory) for memory in ("48GiB", "52GiB")]
    """

    def __init__(self, step: LoadedStep, allow: Allow = DEFAULT_ALLOW, pins: Sequence[Pin] = ()):
        require_known_swap(step, allow)
        self.file_step, self.allow = step, restrict_to_compilable(step, allow)
        self.step = step.as_compiled_with_swap()
        if pins:
            fixed = pinned_policy(pins, self.step.model, self.allow, step.nameable_trees)
            self.step = replace(self.step, model=self.step.model.with_fixed_policy(fixed))
            self.allow = replace(self.allow, pinned=tuple(pin.pattern for pin in pins))
        self._planner: Planner | None = None

    @property
    def planner(self) -> Planner:
        """Planner of the model, made when it is first needed; steps of MindFormers 2.x have none."""
        if self._planner is None:
            self._planner = Planner(self.step.model, self.allow, self.step.nameable_trees)
        return self._planner

    def plan(
        self,
        memory: str | int | None = None,
        objective: Objective = Objective.TIME,
        progress: Progress = lambda: None,
        *,
        simple: bool = False,
    ) -> StepPlan:
        """Search a plan within a memory budget. Arguments, result and errors as of `make_plan`."""
        if simple and self.allow.pinned:
            raise PlanError("simple: its entries are whole cells, without pins\n    fix:     leave one of the two out")
        step = self.step
        problem = make_problem(step, memory, self.allow, objective)
        budget_bytes, source = find_budget(step, memory)
        search = self._search_of(problem, progress, simple)
        plan, device = search(problem), step.device
        if device.leaves_fragments and not is_model_2x(step.model):
            problem, plan, device = plan_within_pool(step, problem, plan, budget_bytes, search)
        if device.leaves_fragments:
            fragments = f"fragments of the pool, which maps no pages: {device.fragments_permille / 10:g} % of the peak"
            source = f"{source}; {fragments}" if source else fragments
        if not is_model_2x(step.model):
            plan = compact(step, without_warnings(step, problem, plan))
            pool_bytes = budget_bytes if step.device.leaves_fragments else None
            plan = with_groups(step, problem, self._in_first_layers(problem, plan, search), pool_bytes)
        plan = replace(
            plan,
            compared=(*evaluate_file_policy(problem, self.file_step), *plan.compared),
            budget_bytes=budget_bytes,
            smallest_budget_bytes=with_fragments(device, plan.smallest_budget_bytes),
            least_budget_bytes=with_fragments(device, plan.least_budget_bytes),
        )
        return StepPlan(step, problem, plan, source, usable_budget(step, memory).without_fragments(device))

    def _in_first_layers(
        self, problem: PlanProblem, plan: Plan, search: Callable[[PlanProblem], Plan], budget_bytes: int = 0
    ) -> Plan:
        """Return a plan that only recomputes in the first layers of each stage, if that fits and is as fast.

        The peak may be higher by a tensor of a layer; then a plan for so much less memory is tried.
        """
        step, model = self.step, self.step.model
        first = None
        if plan.fits and step.path is not None and swaps_nothing(plan.policy):
            first = in_first_layers(plan.policy, step.document, model.captured.num_layers)
        if first is None or counted_sections(first, step.document, model.captured.num_layers) is None:
            return plan
        tried, limit_ns = plan, plan.step_time_ns * (1000 + COUNTS_PERMILLE) // 1000
        for _ in range(MAX_COUNTED):
            first = in_first_layers(tried.policy, step.document, model.captured.num_layers)
            evaluation = evaluate(problem, first) if first is not None and swaps_nothing(tried.policy) else None
            if first is None or evaluation is None or evaluation.step_time_ns > limit_ns:
                break
            if evaluation.fits:
                return with_policy(plan, first, evaluation)
            excess_bytes = evaluation.peak_bytes - problem.budget_bytes
            budget_bytes = (budget_bytes or problem.budget_bytes) - excess_bytes
            tried = compact(step, search(replace(problem, budget_bytes=budget_bytes)))
        return plan

    def _search_of(self, problem: PlanProblem, progress: Progress, simple: bool) -> Callable[[PlanProblem], Plan]:
        """Return the search of one question: a function of the problem, of which the budget may change."""
        if isinstance(self.step.model, LayerSwapModel2x):
            return lambda changed: plan_layers(changed, progress)
        if isinstance(self.step.model, StagedStepModel):
            stages = self.step.model.stages
            return lambda changed: plan_staged(changed, stages, progress)
        if isinstance(self.step.model, StepModel2x):
            return lambda changed: plan_traced(changed, progress)
        session = PlanSession(self.planner, problem, progress)

        def search(changed: PlanProblem) -> Plan:
            plan = compact(self.step, session.plan(changed.budget_bytes))
            return compact(self.step, self.planner.plan_simple(changed, plan, progress)) if simple else plan

        return search

    def sweep(
        self, objective: Objective = Objective.TIME, progress: Progress = lambda: None, max_bytes: int | None = None
    ) -> "Sweep":
        """Plan for a range of budgets, which are solved together. Arguments as for `plan`.

        Args:
            objective: quantity to minimize.
            progress: called after each simulation.
            max_bytes: highest budget; None, or more than keeping everything needs, for that of keeping everything.
        """
        problem = make_problem(self.step, None, self.allow, objective)
        plans = sweep_budgets(PlanSession(self.planner, problem, progress), max_bytes)
        return Sweep(self.planner, problem, tuple(compact(self.step, plan) for plan in plans))

    def bound_ns(self, memory: str | int | None = None) -> int | None:
        """Return a lower bound in ns on the step time of all policies that fit; None if none can fit.

        It counts no fragments: a plan may leave fewer than are assumed before it is replayed.
        """
        problem = make_problem(self.step, memory, self.allow)
        return self.planner.bound_ns(replace(problem, budget_bytes=find_budget(self.step, memory)[0]))


def restrict_to_compilable(step: LoadedStep, allow: Allow) -> Allow:
    """Return the allowed means without swap if MindSpore cannot compile swap, because it does not inline the layers.

    Raises:
        PlanError: only swap is allowed.
    """
    if not allow.swap or is_model_2x(step.model) or step.model.settings.inlines_layers:
        return allow
    if not allow.recompute:
        raise PlanError(
            f"--allow swap: {LAYERS_NOT_INLINED}\n    allowed: micro_batch_num up to {MAX_INLINED_MICRO_BATCHES}\n"
            "    fix:     --allow recompute, or fewer micro-batches of more samples"
        )
    return replace(allow, swap=False)


@dataclass(frozen=True, eq=False)
class Sweep:
    """Plans for a range of budgets, from keeping all activations down to the least possible memory."""

    planner: Planner
    problem: PlanProblem
    plans: tuple[Plan, ...]

    def bound(self) -> list[tuple[int, int]]:
        """Return points of the lower bound: device memory in bytes, and the least possible step time in ns."""
        return list(bound_curve(self.planner, self.problem, list(self.plans)))

    def bound_ns(self, budget_bytes: int) -> int | None:
        """Return a lower bound in ns on the step time of all policies within a budget; None if none can fit."""
        return self.planner.bound_ns(replace(self.problem, budget_bytes=budget_bytes))


def evaluate_file_policy(problem: PlanProblem, step: LoadedStep) -> tuple[Compared, ...]:
    """Simulate the policy of the configuration, for comparison. Empty without one, or if it cannot be simulated."""
    if step.path is None or isinstance(step.model, LayerSwapModel2x):
        return ()
    try:
        evaluation = evaluate(replace(problem, model=step.model), step.policy)
    except SimulationError:  # `simulate` reports the reason; the plan replaces this policy in any case
        return ()
    return (Compared(YOURS, evaluation.step_time_ns, evaluation.peak_bytes, evaluation.fits),)
