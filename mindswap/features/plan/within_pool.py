"""Plans of steps whose memory has fragments or gaps: the budget is reduced by those of the plan itself."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from mindswap.features.plan.written_policies import WrittenPolicies
from mindswap.planner.problem import Plan, PlanProblem
from mindswap.simulator.cost.hardware import Device, with_figures, without_fragments
from mindswap.units import ceil_div

# Plans that are made at most until one fits with its fragments: each takes as long as a plan without them.
MOST_POOL_PLANS = 4


class PlanInPool(NamedTuple):
    """A plan with the memory of its file, and the device with the fragments or gaps that the plan leaves."""

    problem: PlanProblem  # with the budget less these fragments
    plan: Plan
    device: Device


def plan_within_pool(written: WrittenPolicies, plan: Plan, search: Callable[[PlanProblem], Plan]) -> PlanInPool:
    """Plan with other budgets until a plan fits with the fragments or gaps that the file with it has.

    The planner compares peaks without fragments. The first plan assumes the fragments of the device file, each
    following one those of the plan before it; if already the first one fits, one more plan uses what it left free.

    Args:
        written: evaluates policies with fragments and gaps, against the memory that the plan may take with them.
        plan: the first plan of the search.
        search: the planner.

    Returns:
        The fastest plan that fits; the last one if none does.
    """
    problem, device = written.problem, written.step.device
    fitting: list[PlanInPool] = []
    for attempt in range(MOST_POOL_PLANS):
        in_file = written.planned(plan)
        permille = max(ceil_div(in_file.peak_bytes * 1000, plan.peak_bytes) - 1000, 0)
        device = with_figures(written.step.device, {"fragments": permille}, {"fragments": "replay of the plan"})
        budget_bytes = without_fragments(device, written.budget_bytes)
        is_same_budget = budget_bytes == problem.budget_bytes
        problem = replace(problem, budget_bytes=budget_bytes)
        found = PlanInPool(problem, in_file, device)
        if in_file.fits:
            fitting.append(found)
        if (fitting and attempt) or not plan.fits or is_same_budget:
            break
        plan = search(problem)
    return min(fitting, key=lambda each: each.plan.step_time_ns, default=found)
