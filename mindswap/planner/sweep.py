"""Plans for many budgets: step time over memory, and the lower bound of it."""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from mindswap.planner.planning import Planner
from mindswap.planner.problem import Plan, PlanProblem
from mindswap.planner.session import PlanSession
from mindswap.policy.coverage import KEEP_ALL

# Number of plans, most of them where the step time changes most with memory; a few more at the peaks of baselines.
NUM_BUDGETS = 12
NUM_BOUNDS = 48


def sweep_budgets(session: PlanSession, max_bytes: int | None = None) -> list[Plan]:
    """Return the Pareto-optimal plans from minimum memory to the memory of keeping everything.

    The budgets are one question and are solved together, so a plan for more memory is never slower than one for less.

    Args:
        session: new session of the problem; if its progress function raises `Stop`, the plans so far are returned.
        max_bytes: highest budget; None for that of keeping everything.
    """
    min_memory_plan = session.plan(0)
    plans: list[Plan] = []
    for budget in _budgets(plans, min_memory_plan, max_bytes):
        plan = session.plan(budget)
        if plan.fits:
            plans.append(plan)
        if plan.is_interrupted:
            break
    front: list[Plan] = []
    for plan in sorted(plans, key=lambda plan: (plan.peak_bytes, plan.step_time_ns)):
        if not front or plan.step_time_ns < front[-1].step_time_ns:
            front.append(plan)
    return front or [min_memory_plan]


def bound_curve(planner: Planner, problem: PlanProblem, plans: list[Plan]) -> list[tuple[int, int]]:
    """Compute lower bounds for budgets from the minimum of any policy to the memory of keeping everything.

    Args:
        planner: planner of the model.
        problem: problem; its budget is ignored.
        plans: at least one plan for the same problem.

    Returns:
        (budget in bytes, lower bound of the step time in ns), by increasing budget.
    """
    low, high = plans[0].least_budget_bytes, _keep_bytes(plans[0])
    points = []
    for step in range(NUM_BOUNDS):
        budget = low + (high - low) * step**2 // (NUM_BOUNDS - 1) ** 2  # denser at the low end, where it is steepest
        bound_ns = planner.bound_ns(replace(problem, budget_bytes=budget))
        if bound_ns is not None:
            points.append((budget, bound_ns))
    return points


def _budgets(plans: list[Plan], min_memory_plan: Plan, max_bytes: int | None) -> Iterator[int]:
    """Yield both ends, then the middle of the largest gap; the caller appends each plan to `plans`."""
    yield min_memory_plan.smallest_budget_bytes
    keep_bytes = _keep_bytes(min_memory_plan)
    high_bytes = keep_bytes if max_bytes is None else min(max_bytes, keep_bytes)
    if high_bytes <= min_memory_plan.smallest_budget_bytes:
        return
    yield high_bytes
    tried: set[int] = set()
    for _ in range(NUM_BUDGETS - 2):
        gaps = [gap for gap in _gaps(plans) if gap[1] not in tried]
        if not gaps:
            break
        _, middle = max(gaps)
        tried.add(middle)
        yield middle
    for policy in min_memory_plan.compared:
        is_new = all(plan.peak_bytes > policy.peak_bytes or plan.step_time_ns > policy.step_time_ns for plan in plans)
        if is_new and policy.peak_bytes <= high_bytes:
            yield policy.peak_bytes


def _gaps(plans: list[Plan]) -> Iterator[tuple[float, int]]:
    """Yield, for neighbouring plans, the size of the gap (memory times log ratio of step times) and its middle."""
    for before, after in pairwise(sorted(plans, key=lambda plan: plan.budget_bytes)):
        low, high = before.budget_bytes, after.peak_bytes
        if high - low > 1 and after.step_time_ns < before.step_time_ns:
            yield (high - low) * math.log(before.step_time_ns / after.step_time_ns), (low + high) // 2


def _keep_bytes(plan: Plan) -> int:
    return next(policy.peak_bytes for policy in plan.compared if policy.baseline == KEEP_ALL)
