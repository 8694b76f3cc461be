"""`mindswap plan`: search a swap and recompute policy for a step, print it and write it into the configuration."""

from mindswap.features.plan.budget import budget_warning, find_budget, make_problem, objective_warning, usable_budget
from mindswap.features.plan.states_planner import StatesPlanner, make_plan
from mindswap.features.plan.step_plan import StepPlan
from mindswap.features.plan.step_planner import (
    StepPlanner,
    Sweep,
    restrict_to_compilable,
)
from mindswap.features.plan.within_pool import PlanInPool, plan_within_pool
from mindswap.features.plan.written import check_plan_writable, compact, planned_text
from mindswap.features.plan.written_policies import WrittenPolicies

__all__ = [
    "PlanInPool", "StatesPlanner", "StepPlan", "StepPlanner", "Sweep", "WrittenPolicies", "budget_warning",
    "check_plan_writable", "compact", "find_budget", "make_plan", "make_problem", "objective_warning",
    "plan_within_pool", "planned_text", "restrict_to_compilable", "usable_budget",
]  # fmt: skip
