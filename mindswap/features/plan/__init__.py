"""`mindswap plan`: search a swap and recompute policy for a step, print it and write it into the configuration."""

from mindswap.features.plan.budget import budget_warning, find_budget, make_problem, objective_warning, usable_budget
from mindswap.features.plan.states_planner import StatesPlanner, make_plan
from mindswap.features.plan.step_plan import StepPlan
from mindswap.features.plan.step_planner import (
    StepPlanner,
    Sweep,
    evaluate_file_policy,
    restrict_to_compilable,
)
from mindswap.features.plan.within_pool import PlanInPool, plan_within_pool
from mindswap.features.plan.written import check_plan_writable, compact, planned_text

__all__ = [
    "PlanInPool", "StatesPlanner", "StepPlan", "StepPlanner", "Sweep", "budget_warning", "check_plan_writable",
    "compact", "evaluate_file_policy", "find_budget", "make_plan", "make_problem", "objective_warning",
    "plan_within_pool", "planned_text", "restrict_to_compilable", "usable_budget",
]  # fmt: skip
