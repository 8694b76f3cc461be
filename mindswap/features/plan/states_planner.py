"""Optimizer states as a choice of a plan: on the device, or in host memory (`optimizer: {swap: True}`).

Both placements are planned, and the faster plan that fits is kept. The second one is planned only if its lower bound
does not rule it out.
"""

from collections.abc import Sequence
from dataclasses import replace

from mindswap.features.plan.pynative import is_model_2x
from mindswap.features.plan.states import (
    OPTIMIZER,
    PLACES,
    OptimizerStates,
    find_obstacle,
    read_states_pin,
    require_place,
    states_on_host,
    with_states,
)
from mindswap.features.plan.states_sweep import StatesSweep, merge_sweeps
from mindswap.features.plan.step_plan import StepPlan
from mindswap.features.plan.step_planner import StepPlanner
from mindswap.features.simulate import LoadedStep
from mindswap.planner.pins import Pin
from mindswap.planner.problem import DEFAULT_ALLOW, Allow, Compared, Objective, Plan
from mindswap.planner.solver.search import Progress
from mindswap.units import format_time


def make_plan(
    step: LoadedStep,
    memory: str | int | None = None,
    allow: Allow = DEFAULT_ALLOW,
    objective: Objective = Objective.TIME,
    progress: Progress = lambda: None,
    *,
    simple: bool = False,
    pins: Sequence[Pin] = (),
) -> StepPlan:
    """Search the policy with the shortest step time, or the least memory, within a memory budget.

    The plan depends on the arguments alone, not on what was planned before. For several plans of one step,
    `StatesPlanner` saves time.

    Args:
        step: the step to plan.
        memory: budget of each card, `"40GiB"` or bytes; default is the usable memory of the device.
        allow: means that the plan may use: swap, recompute or both.
        objective: quantity to minimize.
        progress: called after each simulation; if it raises `Stop`, the best policy so far is the plan.
        simple: limit the plan to 6 entries: full layers, the cells of attention and feed-forward, casts of weights and
            activation functions, with one prefetch distance. No effect for MindFormers 2.x, whose plans are that
            simple anyway.
        pins: decisions of the user for all layers, read by `planner.pins.read_pin`.

    Returns:
        The plan; its `fits` is False if no policy fits the budget.

    Raises:
        PlanError: the memory cannot be parsed, a pin has no effect or contradicts another one, or `simple` with pins.

    Example:
        >>> step = mindswap.load_step("llama2_7b.yaml")
        >>> plan = make_plan(step, "40GiB")
        >>> plan.save("planned.yaml")
    """
    return StatesPlanner(step, allow, pins).plan(memory, objective, progress, simple=simple)


class StatesPlanner:
    """Plans a step with its optimizer states on the device and in host memory, and keeps the faster plan.

    Args:
        step: the step to plan.
        allow: means that plans may use; without swap the states stay where the configuration has them.
        pins: decisions of the user for all layers; the one of the pattern `optimizer` is about the states.

    Attributes:
        notes: why plans use fewer means than requested.
        may_swap: whether plans swap.

    Raises:
        PlanError: as `StepPlanner`, or the pin of the states is not possible.
    """

    def __init__(self, step: LoadedStep, allow: Allow = DEFAULT_ALLOW, pins: Sequence[Pin] = ()):
        self.step, self.allow = step, allow
        self.pinned = read_states_pin(pins)
        self._pins = tuple(pin for pin in pins if pin.pattern != OPTIMIZER)
        self._planners: dict[bool, StepPlanner] = {}
        self._is_in_file = step.model.settings.is_state_offloaded
        self.obstacle = find_obstacle(step, not self._is_in_file)
        if self.pinned is not None:
            require_place(self.pinned, self._is_in_file, self.obstacle)
        first = self._planner(self._is_in_file if self.pinned is None else self.pinned)  # refuses pins without effect
        self.notes, self.may_swap = first.notes, first.allow.swap

    def plan(
        self,
        memory: str | int | None = None,
        objective: Objective = Objective.TIME,
        progress: Progress = lambda: None,
        *,
        simple: bool = False,
        less_bytes: Sequence[int] = (),
    ) -> StepPlan:
        """Search a plan within a memory budget. Arguments, result and errors as of `StepPlanner.plan`."""
        is_first = self._is_in_file if self.pinned is None else self.pinned
        first = self._planner(is_first).plan(memory, objective, progress, simple=simple, less_bytes=less_bytes)
        if reason := self._find_only_place():
            return self._with_states(first, is_first, reason)
        if reason := self._find_reason_to_keep(first, objective):
            return self._with_states(self._bounded_for_both(first), is_first, reason)
        second_planner = self._planner(not is_first)
        bound_ns = second_planner.bound_ns(memory) if first.fits else 0
        if bound_ns is None or bound_ns >= first.step_time_ns:
            # The bound is that of policies that keep the outputs of layers: groups of layers are not bounded.
            what = "no policy that keeps outputs of layers fits"
            if bound_ns is not None:
                what = f"no policy that keeps outputs of layers is faster than {format_time(bound_ns)}"
            return self._with_states(first, is_first, f"{what} with states {PLACES[not is_first]} (lower bound)")
        second = second_planner.plan(memory, objective, progress, simple=simple)
        best, other = sorted((first, second), key=_rank)
        is_on_host = is_first if best is first else not is_first
        merged = replace(best, plan=_merge(best.plan, other.plan, first.plan, PLACES[not is_on_host]))
        than = "no plan found fits" if not other.fits else f"the plan takes {format_time(other.step_time_ns)}"
        return self._with_states(merged, is_on_host, f"with states {PLACES[not is_on_host]} {than}")

    def sweep(self, objective: Objective = Objective.TIME, progress: Progress = lambda: None) -> StatesSweep:
        """Plan for a range of budgets, with the states in both places where they can be. Arguments as for `plan`.

        With the states in the other place, budgets are planned below the least memory in which the first place is as
        fast as any step of the other one can be.
        """
        is_first = self._is_in_file if self.pinned is None else self.pinned
        first = self._planner(is_first).sweep(objective, progress)
        if reason := self._find_only_place():
            return merge_sweeps({is_first: first}, reason)
        if any(plan.is_interrupted for plan in first.plans):
            return merge_sweeps({is_first: first}, "the search was interrupted")
        fastest_ns = self._fastest_elsewhere_ns(first.plans[0])
        high_bytes = [plan.peak_bytes for plan in first.plans if plan.fits and plan.step_time_ns <= fastest_ns]
        second = self._planner(not is_first).sweep(objective, progress, min(high_bytes, default=None))
        return merge_sweeps({is_first: first, not is_first: second})

    def _planner(self, is_on_host: bool) -> StepPlanner:
        """Return the planner of a placement, made when it is first needed."""
        if is_on_host not in self._planners:
            step = self.step if is_on_host == self._is_in_file else with_states(self.step, is_on_host)
            self._planners[is_on_host] = StepPlanner(step, self.allow, self._pins)
        return self._planners[is_on_host]

    def _find_only_place(self) -> str:
        """Return why the states can be in one place only; "" if they can be in both."""
        if self.pinned is not None:
            return f"--pin {OPTIMIZER}={'swap' if self.pinned else 'keep'}"
        if self.obstacle:
            return self.obstacle
        return "" if self.allow.swap else "--allow excludes swap"

    def _find_reason_to_keep(self, first: StepPlan, objective: Objective) -> str:
        """Return why the other placement need not be planned; "" if it must be."""
        if objective is Objective.MEMORY:
            return "as in the file; --objective memory does not move them"
        if first.plan.is_interrupted:
            return "as in the file; the search was interrupted"
        fastest_ns = self._fastest_elsewhere_ns(first.plan)
        if first.fits and first.step_time_ns <= fastest_ns:
            return f"with them {PLACES[not self._is_in_file]}, a step takes {format_time(fastest_ns)} or more"
        return ""

    def _fastest_elsewhere_ns(self, plan: Plan) -> int:
        """Return the step time of keeping all activations, with the states in the other place."""
        copy_ns = states_on_host(self.step.model)[1]
        return plan.unconstrained_ns + (-copy_ns if self._is_in_file else copy_ns)

    def _bounded_for_both(self, plan: StepPlan) -> StepPlan:
        """Return a plan of the file's placement with bounds that hold for both, without a search of the other one.

        With the states elsewhere no step is faster than one that keeps all activations, and none needs less memory
        than without the states. A plan that fits without a bound (of groups of layers) gets none.
        """
        size_bytes = 0 if self._is_in_file else states_on_host(self.step.model)[0]
        bounds_ns = (plan.plan.lower_bound_ns, self._fastest_elsewhere_ns(plan.plan))
        least_bytes = max(0, plan.plan.least_budget_bytes - size_bytes)
        has_bound = not _is_unbounded(plan.plan)
        lower_bound_ns = min(bound_ns for bound_ns in bounds_ns if bound_ns is not None) if has_bound else None
        return replace(plan, plan=replace(plan.plan, lower_bound_ns=lower_bound_ns, least_budget_bytes=least_bytes))

    def _with_states(self, plan: StepPlan, is_on_host: bool, reason: str) -> StepPlan:
        if is_model_2x(self.step.model):  # its plans have no line about it: there is no choice
            return plan
        size_bytes, copy_ns = states_on_host(self.step.model)
        return replace(
            plan,
            states=OptimizerStates(is_on_host, is_on_host != self._is_in_file, size_bytes, copy_ns, reason),
        )


def _rank(plan: StepPlan) -> tuple[bool, int]:
    """Return a sort key, smaller is better: fits, then step time; if nothing fits, the memory that it needs."""
    return not plan.fits, plan.step_time_ns if plan.fits else plan.plan.smallest_budget_bytes


def _is_unbounded(plan: Plan) -> bool:
    """Return whether nothing bounds the step time of a plan; without a bound a plan that does not fit is proven."""
    return plan.fits and plan.lower_bound_ns is None


def _merge(best: Plan, other: Plan, in_file: Plan, other_place: str) -> Plan:
    """Return the better plan, compared with the policies of the file's placement and with the other plan.

    The bounds hold for both placements; there is none if one of the plans fits without.
    """
    is_unbounded = _is_unbounded(best) or _is_unbounded(other)
    bounds = [bound_ns for bound_ns in (best.lower_bound_ns, other.lower_bound_ns) if bound_ns is not None]
    row = Compared(f"plan, states {other_place}", other.step_time_ns, other.peak_bytes, other.fits)
    return replace(
        best,
        unconstrained_ns=in_file.unconstrained_ns,
        lower_bound_ns=None if is_unbounded else min(bounds, default=None),
        least_budget_bytes=min(best.least_budget_bytes, other.least_budget_bytes),
        smallest_budget_bytes=min(best.smallest_budget_bytes, other.smallest_budget_bytes),
        compared=(*in_file.compared, row),
        num_evaluations=best.num_evaluations + other.num_evaluations,
        is_interrupted=best.is_interrupted or other.is_interrupted,
    )
