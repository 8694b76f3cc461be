"""Groups of layers that are recomputed together, in a plan: when they are tried, and when they are the plan."""

from dataclasses import replace
from pathlib import Path

import pytest

from mindswap.config.parse import parse_document
from mindswap.config.pipeline_layout import Pipeline
from mindswap.features.plan.groups import with_groups
from mindswap.features.simulate import LoadedStep
from mindswap.planner.explain import explain_plan
from mindswap.planner.planning import Planner
from mindswap.planner.problem import Allow, Plan, PlanProblem
from mindswap.policy.model import ALL_LAYERS, Layers, Policy
from tests.simulator.steps import model

# 16 layers on two stages: 8 outputs wait on the first stage for each of two micro-batches.
MODEL = model(16, pipeline=Pipeline(num_stages=2), num_micro_batches=4)
RECOMPUTE = Allow(swap=False, recompute=True)
FULL_BYTES = MODEL.simulate(Policy(True, layer_recompute=ALL_LAYERS)).peak_bytes


def step_of(text: str = "optimizer: {type: AdamW}") -> LoadedStep:
    return LoadedStep(parse_document(text, "x.yaml"), Policy(True), MODEL, None, Path("x.yaml"))


def planned(budget_bytes: int) -> tuple[PlanProblem, Plan]:
    problem = PlanProblem(MODEL, budget_bytes, 2**40, 8, RECOMPUTE)
    return problem, Planner(MODEL, RECOMPUTE).plan(problem)


def test_groups_are_the_plan_where_nothing_else_fits():
    problem, plan = planned(FULL_BYTES - 1)
    assert not plan.fits
    grouped = with_groups(step_of(), problem, plan)
    assert grouped.fits and grouped.peak_bytes <= problem.budget_bytes
    assert grouped.lower_bound_ns is None and grouped.least_budget_bytes <= grouped.peak_bytes
    # Groups begin anew on each stage.
    assert grouped.policy.layer_recompute == ALL_LAYERS
    assert not {7, 15} & set(grouped.policy.output_recompute.resolve(16))
    rows = {row.name: row for row in grouped.compared if "groups of" in row.name}
    assert list(rows) == [f"full recompute, groups of {size}" for size in (2, 3, 4, 6, 8)]
    assert grouped.step_time_ns == min(row.step_time_ns for row in rows.values() if row.fits)
    assert explain_plan(MODEL, grouped)[0].startswith("Every layer is recomputed, and only layers ")


def test_groups_are_not_tried_where_the_plan_is_faster_than_full_recompute():
    problem, plan = planned(2**40)
    assert plan.fits and with_groups(step_of(), problem, plan) is plan


@pytest.mark.parametrize(
    ("text", "allow"),
    [
        ("use_legacy: False", RECOMPUTE),  # MindSpore does not compile recompute across these layers
        ("seed: 0", replace(RECOMPUTE, swap=True, recompute=False)),
        ("seed: 0", replace(RECOMPUTE, pinned=("add",))),
    ],
)
def test_where_groups_are_no_means(text: str, allow: Allow):
    problem, plan = planned(FULL_BYTES - 1)
    assert with_groups(step_of(text), replace(problem, allow=allow), plan) is plan


def test_a_group_ends_with_its_chunk():
    problem, plan = planned(FULL_BYTES - 1)
    grouped = with_groups(step_of(), replace(problem, budget_bytes=2**40), replace(plan, step_time_ns=2**60))
    # Groups of two are the fastest.
    assert grouped.policy.output_recompute == Layers(tuple(range(0, 16, 2)))
