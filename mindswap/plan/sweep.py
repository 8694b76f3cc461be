"""Plans for many budgets: the curve of step time against memory."""

from dataclasses import replace

from mindswap.plan.planner import Planner
from mindswap.plan.problem import Problem
from mindswap.plan.result import Plan
from mindswap.plan.solvers.search import Progress

__all__ = ["sweep_budgets"]

NUM_BUDGETS = 12


def sweep_budgets(
    planner: Planner, problem: Problem, progress: Progress = lambda: None, num_budgets: int = NUM_BUDGETS
) -> list[Plan]:
    """Plans from the least memory to that of keeping everything; each is better than the others in time or memory.

    Args:
        planner: of the model.
        problem: all but the budget counts.
        progress: called after each simulation; may raise `Stop`, and the plans so far are given.
        num_budgets: how many to try, evenly spread.
    """
    least = planner.plan(replace(problem, budget_bytes=0), progress=progress)
    low = least.smallest_budget_bytes
    high = max(one.peak_bytes for one in least.compared if one.name == "keep all")
    plans = []
    for step in range(num_budgets):
        budget = low + (high - low) * step // (num_budgets - 1)
        plan = planner.plan(replace(problem, budget_bytes=budget), progress=progress)
        if plan.fits:
            plans.append(plan)
        if plan.is_interrupted:
            break
    front: list[Plan] = []
    for plan in sorted(plans, key=lambda plan: (plan.peak_bytes, plan.step_time_ns)):
        if not front or plan.step_time_ns < front[-1].step_time_ns:
            front.append(plan)
    return front or [least]
