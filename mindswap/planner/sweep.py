"""Plans for many budgets: the curve of step time against memory, and where no policy can be."""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from mindswap.planner.planning import Planner
from mindswap.planner.problem import Plan, PlanProblem
from mindswap.planner.solver.search import Progress
from mindswap.policy.coverage import KEEP_ALL

# Plans to make, most where the step time changes most with memory; some more where a common setting would lie below.
NUM_BUDGETS = 12
NUM_BOUNDS = 48


def sweep_budgets(planner: Planner, problem: PlanProblem, progress: Progress = lambda: None) -> list[Plan]:
    """Plans from the least memory to that of keeping everything; each is better than the others in time or memory.

    Args:
        planner: of the model.
        problem: all but the budget counts.
        progress: called after each simulation; may raise `Stop`, and the plans so far are given.
    """
    least = planner.plan(replace(problem, budget_bytes=0), progress=progress)
    plans: list[Plan] = []
    for budget in _budgets(plans, least):
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


def bound_curve(planner: Planner, problem: PlanProblem, plans: list[Plan]) -> list[tuple[int, int]]:
    """Budgets from the least with which any policy could do to that of keeping everything, and the bounds for them.

    Args:
        planner: of the model.
        problem: all but the budget counts.
        plans: at least one, for the same problem.

    Returns:
        (bytes, least step time in ns), least memory first.
    """
    low, high = plans[0].least_budget_bytes, _keep_bytes(plans[0])
    found = []
    for step in range(NUM_BOUNDS):
        budget = low + (high - low) * step**2 // (NUM_BOUNDS - 1) ** 2  # it is steepest at the low end
        bound_ns = planner.bound_ns(replace(problem, budget_bytes=budget))
        if bound_ns is not None:
            found.append((budget, bound_ns))
    return found


def _budgets(plans: list[Plan], least: Plan) -> Iterator[int]:
    """Both ends, then the middle of the gap in which most is open; `plans` grows meanwhile."""
    yield least.smallest_budget_bytes
    yield _keep_bytes(least)
    tried: set[int] = set()
    for _ in range(NUM_BUDGETS - 2):
        gaps = [gap for gap in _gaps(plans) if gap[1] not in tried]
        if not gaps:
            break
        _, middle = max(gaps)
        tried.add(middle)
        yield middle
    for one in least.compared:
        if all(plan.peak_bytes > one.peak_bytes or plan.step_time_ns > one.step_time_ns for plan in plans):
            yield one.peak_bytes


def _gaps(plans: list[Plan]) -> Iterator[tuple[float, int]]:
    """Between plans that are neighbours: what is open at most, memory times ratio of step times; the middle."""
    for before, after in pairwise(sorted(plans, key=lambda plan: plan.budget_bytes)):
        low, high = before.budget_bytes, after.peak_bytes
        if high - low > 1 and after.step_time_ns < before.step_time_ns:
            yield (high - low) * math.log(before.step_time_ns / after.step_time_ns), (low + high) // 2


def _keep_bytes(plan: Plan) -> int:
    return next(one.peak_bytes for one in plan.compared if one.baseline == KEEP_ALL)
