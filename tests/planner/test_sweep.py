"""Budgets of a sweep, with a planner made by hand: a plan takes its whole budget, and 600 ns less what that is."""

from types import SimpleNamespace

from mindswap.planner.problem import PlanProblem
from mindswap.planner.sweep import bound_curve, sweep_budgets
from mindswap.policy.coverage import KEEP_ALL


def sweep(fits, interrupted_at=None, max_bytes=None):
    """Memory and time of the plans of a sweep from 50 to 100 bytes, and the budgets that were asked."""
    asked = []

    def plan(budget):
        asked.append(budget)
        return SimpleNamespace(
            budget_bytes=budget, peak_bytes=budget, step_time_ns=600 - budget, fits=fits(budget),
            smallest_budget_bytes=50, is_interrupted=budget == interrupted_at,
            compared=[SimpleNamespace(baseline=KEEP_ALL, peak_bytes=100, step_time_ns=500)],
        )  # fmt: skip

    found = sweep_budgets(SimpleNamespace(plan=plan), max_bytes)
    return [(plan.peak_bytes, plan.step_time_ns) for plan in found], asked


def test_what_does_not_fit_is_no_part_of_the_curve():
    """Both ends, then the middle of the one gap: it fits nothing there, and nothing else is open."""
    assert sweep(lambda budget: budget != 75) == ([(50, 550), (100, 500)], [0, 50, 100, 75])


def test_where_nothing_fits_the_plan_for_the_least_memory_is_given():
    assert sweep(lambda budget: False) == ([(0, 600)], [0, 50, 100, 100])


def test_a_highest_budget_ends_the_curve():
    """At 80 in place of 100; where the least memory is above it, that is all. More than everything changes nothing."""
    assert sweep(lambda budget: budget != 65, max_bytes=80) == ([(50, 550), (80, 520)], [0, 50, 80, 65])
    assert sweep(lambda budget: True, max_bytes=40) == ([(50, 550)], [0, 50])
    assert sweep(lambda budget: budget != 75, max_bytes=200) == sweep(lambda budget: budget != 75)


def test_an_interrupted_sweep_has_the_plans_so_far():
    assert sweep(lambda budget: True, interrupted_at=100) == ([(50, 550), (100, 500)], [0, 50, 100])


def test_bounds_from_the_least_memory_to_that_of_keeping_everything():
    """From 50 to 2259 bytes, at squares of 0 to 47; below 60 none is known, and twice the budget is the bound."""

    def bound_ns(problem, *_):
        return 2 * problem.budget_bytes if problem.budget_bytes >= 60 else None

    plan = SimpleNamespace(
        least_budget_bytes=50, unconstrained_ns=7, compared=[SimpleNamespace(baseline=KEEP_ALL, peak_bytes=50 + 47**2)]
    )
    found = bound_curve(SimpleNamespace(bound_ns=bound_ns), PlanProblem(None, 0, 0, 1), [plan])
    budgets = [50 + step**2 for step in range(4, 48)]  # 50, 51, 54 and 59 are below 60
    assert found == [(budget, 2 * budget) for budget in budgets]
