"""A plan depends on the question alone: not on what the planner, or the process, has planned before."""

import random
from dataclasses import replace

import pytest

from mindswap.features.plan import StatesPlanner, make_plan
from mindswap.planner import session, stages
from mindswap.planner.evaluate import evaluate
from mindswap.planner.planning import Planner
from mindswap.planner.problem import Allow, Objective, Plan, PlanProblem
from mindswap.planner.session import PlanSession
from mindswap.planner.solver import fast
from mindswap.planner.sweep import sweep_budgets
from mindswap.policy.model import Policy
from tests.planner.models import small_model
from tests.planner.test_budget_search import with_links
from tests.planner.test_checked_plans import recorded_step
from tests.strength import examples

UNLIMITED_BYTES = 2**50
MODELS = {
    "link": small_model(4, device=with_links(10**11)),
    "slow memory": small_model(3, device=with_links(10**11, 333)),
    "pipeline": small_model(4, 2, 3, with_links(2 * 10**11)),
    "4 micro-batches": small_model(3, 1, 4, with_links(10**11)),
}
PERMILLE = (600, 700, 780, 830, 880, 930, 960, 990)
# Of each model: these budgets, one without recompute, and the least memory.
OTHERS = ((930, {"allow": Allow(recompute=False)}), (990, {"objective": Objective.MEMORY}))


@pytest.fixture(autouse=True)
def little_effort(monkeypatch):
    """A quick search is enough: what holds for it holds for any."""
    monkeypatch.setattr(fast, "MIN_EVALUATIONS", examples(15, 40))
    monkeypatch.setattr(fast, "MAX_OPERATORS", examples(1, 200_000))
    monkeypatch.setattr(stages, "MAX_OPERATORS", examples(500, 2000))
    monkeypatch.setattr(session, "NUM_HALVINGS", 2)


def questions() -> list[tuple[str, PlanProblem]]:
    """Return 40 questions, ten of each model."""
    asked = []
    for name, model in MODELS.items():
        free = PlanProblem(model, UNLIMITED_BYTES, UNLIMITED_BYTES, 8)
        keep_bytes = evaluate(free, Policy()).peak_bytes
        for permille, options in (*((permille, {}) for permille in PERMILLE), *OTHERS):
            asked.append((name, replace(free, budget_bytes=keep_bytes * permille // 1000, **options)))
    return asked


def facts_of(plan: Plan) -> tuple:
    return plan.policy, plan.step_time_ns, plan.stage_peak_bytes, plan.num_evaluations, plan.lower_bound_ns


@pytest.mark.long
def test_the_same_forty_questions_have_the_same_answers_in_any_order():
    """By one planner for each model and its permissions, as a caller holds it."""
    asked, answers = questions(), []
    assert len(asked) == 40
    shuffled = random.Random(0).sample(range(40), 40)
    for order in (range(40), range(39, -1, -1), shuffled):
        planners = {(name, allow): Planner(MODELS[name], allow) for name, allow in {(n, p.allow) for n, p in asked}}
        plans = {i: planners[asked[i][0], asked[i][1].allow].plan(asked[i][1]) for i in order}
        answers.append([facts_of(plans[i]) for i in range(40)])
    assert answers[0] == answers[1] == answers[2]
    assert len({policy for policy, *_ in answers[0]}) > 10  # they are not all alike


@pytest.mark.long
def test_no_plan_of_a_sweep_is_slower_than_one_for_less_memory():
    """Its budgets are one question, solved together; the next sweep has the same plans."""
    problem = PlanProblem(MODELS["pipeline"], 0, UNLIMITED_BYTES, 8)
    planner = Planner(problem.model)
    first, second = (sweep_budgets(PlanSession(planner, problem)) for _ in range(2))
    assert list(map(facts_of, first)) == list(map(facts_of, second))
    assert len(first) > 3
    assert [plan.peak_bytes for plan in first] == sorted(plan.peak_bytes for plan in first)
    assert [plan.step_time_ns for plan in first] == sorted((plan.step_time_ns for plan in first), reverse=True)


@pytest.mark.long
def test_a_step_that_is_loaded_again_or_planned_by_a_planner_that_is_held_has_the_same_plan():
    """Of a process, too: nothing is remembered outside of what the caller holds."""
    step = recorded_step("qwen3_small")
    most = step.simulate(Policy(is_swap_enabled=True)).peak_bytes
    budgets = [most * percent // 100 for percent in (75, 85)]
    held = StatesPlanner(step)
    plans = [held.plan(budget) for budget in budgets]
    for budget, plan in zip(budgets[::-1], plans[::-1], strict=True):
        for again in (make_plan(step, budget), make_plan(recorded_step("qwen3_small"), budget)):
            assert facts_of(again.plan) == facts_of(plan.plan)
