"""Plans for devices whose memory pool leaves fragments: the budget is reduced by those of the plan itself."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from mindswap.features.simulate import LoadedStep
from mindswap.planner.problem import Plan, PlanProblem
from mindswap.simulator.cost.hardware import Device, with_figures, without_fragments
from mindswap.units import ceil_div

# Plans that are made at most until one fits with its fragments: each takes as long as a plan without them.
MOST_POOL_PLANS = 4


class PlanInPool(NamedTuple):
    """A plan, and the device with the fragments that the allocations of the plan leave in the pool."""

    problem: PlanProblem  # with the budget less these fragments
    plan: Plan
    device: Device


def plan_within_pool(
    step: LoadedStep, problem: PlanProblem, plan: Plan, budget_bytes: int, search: Callable[[PlanProblem], Plan]
) -> PlanInPool:
    """Plan with other budgets until a plan fits with the fragments of its own replay in the memory pool.

    The planner compares peaks without fragments. The first plan assumes the fragments of the device file, each
    following one those of the plan before it; if already the first one fits, one more plan uses what it left free.

    Args:
        step: the step to plan.
        problem: input of the planner.
        plan: its first plan.
        budget_bytes: memory that the plan may take with fragments.
        search: the planner.

    Returns:
        The fastest plan that fits; the last one if none does.
    """
    fitting: list[PlanInPool] = []
    for attempt in range(MOST_POOL_PLANS):
        actual_bytes = max(step.model.actual_peaks_bytes(step.model.simulate(plan.policy)))
        permille = max(ceil_div(actual_bytes * 1000, plan.peak_bytes) - 1000, 0)
        device = with_figures(step.device, {"fragments": permille}, {"fragments": "replay of the plan"})
        # A plan above a budget that assumed more fragments than it leaves fits after all.
        is_fitting = actual_bytes <= budget_bytes and plan.host_bytes <= plan.host_budget_bytes
        problem = replace(problem, budget_bytes=without_fragments(device, budget_bytes))
        found = PlanInPool(problem, replace(plan, fits=is_fitting), device)
        if is_fitting:
            fitting.append(found)
        if (fitting and attempt) or not plan.fits:
            break
        plan = search(problem)
    return min(fitting, key=lambda each: each.plan.step_time_ns, default=found)
