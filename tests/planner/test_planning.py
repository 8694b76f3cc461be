"""Plans for a real small Llama: compiled once, planned for several budgets."""

from pathlib import Path

import pytest

from mindswap.features.step import load_step
from mindswap.planner.evaluate import evaluate
from mindswap.planner.planning import Planner
from mindswap.planner.problem import Allow, Objective, PlanProblem
from mindswap.planner.solver.search import Stop

pytestmark = pytest.mark.mindspore

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "llama2_7b" / "cpu" / "case3_op_swap.yaml"
HOST_BYTES = 2**40


@pytest.fixture(scope="module")
def model():
    return load_step(str(CONFIG), "cpu").model


@pytest.fixture(scope="module")
def planner(model):
    return Planner(model)


def problem(model, budget_bytes: int, **options) -> PlanProblem:
    return PlanProblem(model, budget_bytes, HOST_BYTES, 8, **options)


@pytest.fixture(scope="module")
def free(model, planner):
    """The plan without a limit."""
    return planner.plan(problem(model, 2**40))


def test_without_a_limit_everything_is_kept(free):
    assert free.fits
    assert not (free.policy.op_swap or free.policy.layer_recompute or free.policy.select_recompute)
    assert free.step_time_ns == free.unconstrained_ns == free.lower_bound_ns
    assert free.slowdown == free.gap == 0


def test_an_exact_fit_is_a_fit(model, planner, free):
    plan = planner.plan(problem(model, free.peak_bytes))
    assert plan.policy == free.policy
    assert planner.plan(problem(model, free.peak_bytes - 1)).policy != free.policy


@pytest.mark.parametrize("permille", [950, 900, 850, 800])
def test_no_strategy_that_fits_is_faster(model, planner, free, permille):
    budget = free.peak_bytes * permille // 1000
    plan = planner.plan(problem(model, budget))
    assert plan.fits
    assert plan.peak_bytes <= budget
    assert plan.step_time_ns <= min(one.step_time_ns for one in plan.compared if one.fits)
    assert plan.step_time_ns >= plan.lower_bound_ns
    again = evaluate(problem(model, budget), plan.policy)
    assert (again.step_time_ns, again.stage_peak_bytes) == (plan.step_time_ns, plan.stage_peak_bytes)


def test_what_nothing_fits_names_the_least_that_would(model, planner):
    plan = planner.plan(problem(model, 1))
    assert not plan.fits
    assert plan.smallest_budget_bytes > plan.stage_static_bytes[0]
    assert plan.holders[0] == ("weights, optimizer states, accumulated gradients", plan.stage_static_bytes[0])
    assert planner.plan(problem(model, plan.smallest_budget_bytes)).fits


@pytest.mark.parametrize("is_swap", [True, False])
def test_what_is_not_allowed_is_not_done(model, free, is_swap):
    budget = free.peak_bytes * 4 // 5
    allow = Allow(is_swap, not is_swap)
    plan = Planner(model, allow).plan(problem(model, budget, allow=allow))
    assert plan.fits
    assert bool(plan.policy.op_swap or plan.policy.layer_swap) == is_swap
    assert bool(plan.policy.select_recompute or plan.policy.layer_recompute) != is_swap


def test_an_interrupted_plan_is_replayed_too(model, planner, free):
    def progress() -> None:
        raise Stop

    plan = planner.plan(problem(model, free.peak_bytes * 4 // 5), progress=progress)
    assert plan.is_interrupted
    assert plan.num_evaluations == 1


def test_an_interrupted_plan_that_does_not_fit_needs_no_more_than_a_baseline(model, planner):
    """The search ends with the first candidate, which keeps everything."""

    def progress() -> None:
        raise Stop

    plan = planner.plan(problem(model, 1), progress=progress)
    assert plan.is_interrupted and not plan.fits
    assert plan.smallest_budget_bytes == min(baseline.peak_bytes for baseline in plan.compared)


def test_least_memory_costs_next_to_no_time(model, planner, free):
    plan = planner.plan(problem(model, 2**40, objective=Objective.MEMORY))
    assert plan.peak_bytes < free.peak_bytes
    assert plan.step_time_ns <= free.step_time_ns * 1.01
    assert all(one.fits for one in plan.compared)  # in the budget that was asked for, not in one that was tried
