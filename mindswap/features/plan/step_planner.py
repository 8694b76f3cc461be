"""Search plans for a step: one budget, or a range of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mindswap.config.step_settings import LAYERS_NOT_INLINED, MAX_INLINED_MICRO_BATCHES
from mindswap.errors import PlanError, SimulationError
from mindswap.features.plan.budget import find_budget, make_problem, usable_budget
from mindswap.features.plan.groups import unrefuted_least_bytes, with_groups
from mindswap.features.plan.pynative import allow_for_stages, is_model_2x, no_swap_note, require_known_swap
from mindswap.features.plan.step_plan import StepPlan
from mindswap.features.plan.tidy import without_warnings
from mindswap.features.plan.within_pool import plan_within_pool
from mindswap.features.plan.written import compact
from mindswap.features.plan.written_policies import WrittenPolicies
from mindswap.features.simulate import LoadedStep
from mindswap.planner.build_plan import with_policy
from mindswap.planner.evaluate import Evaluation
from mindswap.planner.layer_plan import plan_layers
from mindswap.planner.pins import Pin, pinned_policy
from mindswap.planner.planning import Planner
from mindswap.planner.problem import DEFAULT_ALLOW, YOURS, Allow, Compared, Objective, Plan, PlanProblem
from mindswap.planner.recompute_counts import counted_sections, in_first_layers, swaps_nothing
from mindswap.planner.session import PlanSession
from mindswap.planner.simple import MAX_ENTRIES, num_entries
from mindswap.planner.solver.search import Progress
from mindswap.planner.staged_plan import plan_staged
from mindswap.planner.sweep import bound_curve, sweep_budgets
from mindswap.planner.traced_plan import plan_traced
from mindswap.policy.coverage import KEEP_ALL
from mindswap.policy.model import Policy
from mindswap.policy.resolve import with_recompute_only
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

    Attributes:
        allow: means that plans use.
        notes: why they use fewer means than requested.

    Raises:
        PlanError: swap alone is allowed and cannot be compiled, mindswap's own swap is to be planned from a trace of
            MindFormers 1.9, or a pin has no effect or contradicts another one.

    Example:
        >>> planner = StepPlanner(mindswap.load_step("llama2_7b.yaml"))
        >>> plans = [planner.plan(memory) for memory in ("48GiB", "52GiB")]
    """

    def __init__(self, step: LoadedStep, allow: Allow = DEFAULT_ALLOW, pins: Sequence[Pin] = ()):
        require_known_swap(step, allow)
        allowed = allow_for_stages(step.document, allow)
        self.notes = (no_swap_note(step.document),) if allowed != allow else ()
        self.file_step, self.allow = step, restrict_to_compilable(step, allowed)
        self.step = self._free_step = step.as_compiled_with_swap()
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
        less_bytes: Sequence[int] = (),
    ) -> StepPlan:
        """Search a plan within a memory budget. Arguments, result and errors as of `make_plan`.

        Args:
            memory: see `make_plan`.
            objective: see `make_plan`.
            progress: see `make_plan`.
            simple: see `make_plan`.
            less_bytes: what the budget of each pipeline stage of MindFormers 2.x is lowered by; empty for nothing.
        """
        if simple and self.allow.pinned:
            raise PlanError("simple: its entries are whole cells, without pins\n    fix:     leave one of the two out")
        step = self.step
        problem = make_problem(step, memory, self.allow, objective)
        budget_bytes, source = find_budget(step, memory)
        written = WrittenPolicies(step, problem, budget_bytes)
        search = self._search_of(problem, progress, simple, less_bytes)
        plan, device = search(problem), step.device
        if written.differs:
            problem, plan, device = plan_within_pool(written, plan, search)
        if not is_model_2x(step.model):
            plan = compact(step, without_warnings(written, plan))
            plan = with_groups(written, self._in_first_layers(written, problem, plan, search))
        rows = map(self._free(written).compared, plan.compared)
        plan = replace(plan, compared=(*self._file_row(written), *rows))
        if written.differs:
            plan = self._fastest(written, plan, MAX_ENTRIES if simple else None)
        least_bytes = plan.least_budget_bytes
        # Gaps of planned addresses are those of this plan alone, and of steps of 2.x fragments are not simulated.
        if step.device.leaves_fragments and not is_model_2x(step.model):
            least_bytes = with_fragments(device, least_bytes)
            fragments = f"fragments of the pool, which maps no pages: {device.fragments_permille / 10:g} % of the peak"
            source = f"{source}; {fragments}" if source else fragments
        plan = replace(plan, budget_bytes=budget_bytes, least_budget_bytes=least_bytes)
        return StepPlan(step, problem, plan, source, usable_budget(step, memory))

    def _free(self, written: WrittenPolicies) -> WrittenPolicies:
        """Return the same without the pins, which compared policies do not have."""
        step = self._free_step
        return WrittenPolicies(step, replace(written.problem, model=step.model), written.budget_bytes)

    def _kept(self, written: WrittenPolicies) -> Evaluation | None:
        """Evaluate keeping everything as it is written; None if that is what the search evaluates."""
        return self._free(written).evaluate(written.problem.with_switches(Policy())) if written.differs else None

    def _file_row(self, written: WrittenPolicies) -> tuple[Compared, ...]:
        """Evaluate the policy of the configuration, for comparison. Empty without one, or if it cannot be simulated."""
        step = self.file_step
        if step.path is None or isinstance(step.model, LayerSwapModel2x):
            return ()
        problem = replace(written.problem, model=step.model)
        try:
            of_file = WrittenPolicies(step, problem, written.budget_bytes)
            evaluation = of_file.evaluate(step.policy, has_swap=step.policy.is_swap_enabled)
        except SimulationError:  # `simulate` reports the reason; the plan replaces this policy in any case
            return ()
        figures = (evaluation.step_time_ns, evaluation.peak_bytes, evaluation.fits)
        return (Compared(YOURS, *figures, policy=step.policy),)

    def _fastest(self, written: WrittenPolicies, plan: Plan, max_entries: int | None) -> Plan:
        """Return the plan, or a compared policy that is faster as it is written, for example compiled without swap.

        Args:
            written: evaluates policies as they are written.
            plan: the plan of the search.
            max_entries: of the policy; None for any number.
        """
        plan = _with_bounds_of_rows(plan, is_pinned=bool(self.allow.pinned))
        if written.problem.objective is not Objective.TIME or plan.is_interrupted:
            return plan
        rows = [
            row
            for row in plan.compared
            if row.policy is not None and row.fits and self._is_candidate(row.policy)
            and (max_entries is None or num_entries(row.policy) <= max_entries)
        ]  # fmt: skip
        best = min(rows, key=lambda row: row.step_time_ns, default=None)
        if best is None or best.policy is None or (plan.fits and plan.step_time_ns <= best.step_time_ns):
            return plan
        return written.planned(compact(self.step, replace(plan, policy=with_recompute_only(best.policy))))

    def _is_candidate(self, policy: Policy) -> bool:
        """Return whether a compared policy may be the plan, which is written as it was evaluated."""
        enabled = with_recompute_only(policy)
        is_as_evaluated = self.step.is_swap_written(enabled) == self.step.is_swap_written(policy)
        return is_as_evaluated and self.planner.is_eligible(self.allow, enabled)

    def _in_first_layers(
        self,
        written: WrittenPolicies,
        problem: PlanProblem,
        plan: Plan,
        search: Callable[[PlanProblem], Plan],
        budget_bytes: int = 0,
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
            evaluation = written.evaluate(first) if first is not None and swaps_nothing(tried.policy) else None
            if first is None or evaluation is None or evaluation.step_time_ns > limit_ns:
                break
            if evaluation.fits:
                return with_policy(plan, first, evaluation)
            excess_bytes = evaluation.peak_bytes - written.budget_bytes
            budget_bytes = (budget_bytes or problem.budget_bytes) - excess_bytes
            tried = compact(step, search(replace(problem, budget_bytes=budget_bytes)))
        return plan

    def _search_of(
        self, problem: PlanProblem, progress: Progress, simple: bool, less_bytes: Sequence[int]
    ) -> Callable[[PlanProblem], Plan]:
        """Return the search of one question: a function of the problem, of which the budget may change."""
        if isinstance(self.step.model, LayerSwapModel2x):
            return lambda changed: plan_layers(changed, progress)
        if isinstance(self.step.model, StagedStepModel):
            stages = self.step.model.stages
            return lambda changed: plan_staged(changed, stages, progress, less_bytes)
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
        written = WrittenPolicies(self.step, problem, find_budget(self.step)[0])
        kept = self._kept(written)
        rows = [self._free(written).compared(row) for row in plans[0].compared] if kept is not None else ()
        shown = tuple(_of_sweep(written, kept, rows, compact(self.step, plan)) for plan in plans)
        return Sweep(self.planner, problem, shown, kept)

    def bound_ns(self, memory: str | int | None = None) -> int | None:
        """Return a lower bound in ns on the step time of all policies that fit; None if none can fit.

        It counts no fragments: a plan may leave fewer than are assumed before it is replayed.
        """
        problem = make_problem(self.step, memory, self.allow)
        problem = replace(problem, budget_bytes=find_budget(self.step, memory)[0])
        kept = self._kept(WrittenPolicies(self.step, problem, problem.budget_bytes))
        return _bound_with(kept, self.planner.bound_ns(problem), problem.budget_bytes)


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
    kept: Evaluation | None = None  # keeping everything as it is written, if that differs from what is searched

    def bound(self) -> list[tuple[int, int]]:
        """Return points of the lower bound: device memory in bytes, and the least possible step time in ns."""
        points = bound_curve(self.planner, self.problem, list(self.plans))
        return [(budget, _bound_with(self.kept, bound_ns, budget) or bound_ns) for budget, bound_ns in points]

    def bound_ns(self, budget_bytes: int) -> int | None:
        """Return a lower bound in ns on the step time of all policies within a budget; None if none can fit."""
        bound_ns = self.planner.bound_ns(replace(self.problem, budget_bytes=budget_bytes))
        return _bound_with(self.kept, bound_ns, budget_bytes)


def _with_bounds_of_rows(plan: Plan, is_pinned: bool) -> Plan:
    """Return a plan whose bounds hold for the compared policies, too, of which some may be compiled without swap."""
    keep_ns = next(row.step_time_ns for row in plan.compared if row.baseline == KEEP_ALL)
    bound_ns = plan.lower_bound_ns
    if bound_ns is not None and not is_pinned:
        rows = [row for row in plan.compared if row.fits and (row.name == YOURS or row.baseline == KEEP_ALL)]
        bound_ns = min([bound_ns, *(row.step_time_ns for row in rows)])
    least_bytes = unrefuted_least_bytes(plan)
    return replace(plan, unconstrained_ns=keep_ns, lower_bound_ns=bound_ns, least_budget_bytes=least_bytes)


def _bound_with(kept: Evaluation | None, bound_ns: int | None, budget_bytes: int) -> int | None:
    """Return a bound of steps with swap, or the time of keeping everything without if that fits and is faster."""
    is_within = kept is not None and kept.peak_bytes <= budget_bytes
    return min(kept.step_time_ns, bound_ns or kept.step_time_ns) if kept is not None and is_within else bound_ns


def _of_sweep(written: WrittenPolicies, kept: Evaluation | None, rows: Sequence[Compared], plan: Plan) -> Plan:
    """Return a plan of a sweep with the figures of its file; with fragments or gaps it may exceed its own budget.

    Args:
        written: evaluates policies as they are written.
        kept: keeping everything as it is written; None if that is what the search evaluates.
        rows: compared policies as they are written; only whether they fit depends on the plan.
        plan: plan of the sweep.
    """
    if kept is None:
        return plan
    bound_ns = _bound_with(kept, plan.lower_bound_ns, plan.budget_bytes)
    shown = written.planned(plan)
    budget_bytes, compared = plan.budget_bytes, []
    for row, searched in zip(rows, plan.compared, strict=True):
        is_on_host = searched.fits or searched.peak_bytes > budget_bytes
        compared.append(replace(row, fits=row.peak_bytes <= budget_bytes and is_on_host))
    kept_ns = kept.step_time_ns
    return replace(shown, fits=plan.fits, unconstrained_ns=kept_ns, lower_bound_ns=bound_ns, compared=tuple(compared))
