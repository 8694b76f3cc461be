"""Groups of layers that are recomputed together, in a plan: when they are tried, and when they are the plan."""

from dataclasses import replace
from pathlib import Path

import pytest

from mindswap.config.parse import parse_document
from mindswap.config.pipeline_layout import Pipeline
from mindswap.features.plan import groups
from mindswap.features.plan.groups import SIZES, with_groups
from mindswap.features.plan.report import format_plan
from mindswap.features.plan.states_planner import StatesPlanner, _merge
from mindswap.features.plan.step_plan import StepPlan
from mindswap.features.plan.written_policies import WrittenPolicies
from mindswap.features.simulate import LoadedStep
from mindswap.planner.explain import explain_plan
from mindswap.planner.planning import Planner
from mindswap.planner.problem import Allow, Plan, PlanProblem
from mindswap.policy.model import ALL_LAYERS, Layers, Policy
from mindswap.simulator.cost.cost_table import CostTable
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


def written(problem: PlanProblem, pool_bytes: int | None = None) -> WrittenPolicies:
    """The step on a device that maps pages; on one whose pool leaves fragments if it has so many bytes."""
    if pool_bytes is None:
        return WrittenPolicies(step_of(), problem, problem.budget_bytes)
    costs = CostTable(replace(MODEL.costs.device, fragments_permille=90))
    step = replace(step_of(), model=MODEL.with_costs(costs))
    return WrittenPolicies(step, problem, pool_bytes)


def test_groups_are_the_plan_where_nothing_else_fits():
    problem, plan = planned(FULL_BYTES - 1)
    assert not plan.fits
    grouped = with_groups(written(problem), plan)
    assert grouped.fits and grouped.peak_bytes <= problem.budget_bytes
    assert grouped.lower_bound_ns is None and grouped.least_budget_bytes <= grouped.peak_bytes
    assert sum(size for _, size in grouped.holders) == grouped.peak_bytes
    # Groups begin anew on each stage.
    assert grouped.policy.layer_recompute == ALL_LAYERS
    assert not {7, 15} & set(grouped.policy.output_recompute.resolve(16))
    rows = {row.name: row for row in grouped.compared if "groups of" in row.name}
    assert list(rows) == [f"full recompute, groups of {size}" for size in (2, 3, 4, 6, 8)]
    assert grouped.step_time_ns == min(row.step_time_ns for row in rows.values() if row.fits)
    assert explain_plan(MODEL, grouped)[0].startswith("Every layer is recomputed, and only layers ")


def test_the_smallest_groups_are_named_where_nothing_fits():
    problem, plan = planned(20 * 1024)
    grouped = with_groups(written(problem), plan)
    assert not grouped.fits and plan.smallest_budget_bytes == plan.least_budget_bytes == FULL_BYTES
    assert grouped.smallest_budget_bytes == grouped.peak_bytes == min(row.peak_bytes for row in grouped.compared)
    assert grouped.least_budget_bytes <= grouped.peak_bytes < FULL_BYTES
    assert sum(size for _, size in grouped.holders) == grouped.peak_bytes
    assert "no policy can fit" in format_plan(plan, "card", 1.0)
    assert "no policy can fit" not in format_plan(grouped, "card", 1.0)


def test_groups_that_cannot_be_simulated_are_left_out(monkeypatch):
    problem, plan = planned(FULL_BYTES - 1)
    sizes = SIZES[1:]
    refused = Policy(True, layer_recompute=ALL_LAYERS, output_recompute=Layers((15,)))  # read after the layers
    real = groups._group_policies
    monkeypatch.setattr(
        groups, "_group_policies", lambda *step: ((s, p if s in sizes else refused) for s, p in real(*step))
    )
    names = [row.name for row in with_groups(written(problem), plan).compared if "groups of" in row.name]
    assert names == [f"full recompute, groups of {size}" for size in sizes]


def test_a_plan_of_groups_stays_without_a_bound(tmp_path):
    problem, plan = planned(FULL_BYTES - 1)
    grouped = with_groups(written(problem), plan)
    assert _merge(grouped, plan, plan, "on the host").lower_bound_ns is None
    bounded = replace(grouped, lower_bound_ns=1)
    assert _merge(bounded, grouped, plan, "on the host").lower_bound_ns is None
    assert _merge(bounded, plan, plan, "on the host").lower_bound_ns == 1
    path = tmp_path / "x.yaml"
    path.write_text("optimizer: {type: AdamW}")
    step = replace(step_of(), path=path)
    kept = StatesPlanner(step)._bounded_for_both(StepPlan(step, problem, grouped))
    assert kept.plan.lower_bound_ns is None


def test_groups_are_replayed_in_the_pool():
    problem, plan = planned(FULL_BYTES - 1)
    refused = with_groups(written(problem, 1), plan)
    assert not refused.fits and with_groups(written(problem, 2**40), plan).fits


def test_groups_are_not_tried_where_the_plan_is_faster_than_full_recompute():
    problem, plan = planned(2**40)
    assert plan.fits and with_groups(written(problem), plan) is plan


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
    refused = WrittenPolicies(step_of(text), replace(problem, allow=allow), problem.budget_bytes)
    assert with_groups(refused, plan) is plan


def test_a_group_ends_with_its_chunk():
    problem, plan = planned(FULL_BYTES - 1)
    grouped = with_groups(written(replace(problem, budget_bytes=2**40)), replace(plan, step_time_ns=2**60))
    # Groups of two are the fastest.
    assert grouped.policy.output_recompute == Layers(tuple(range(0, 16, 2)))
