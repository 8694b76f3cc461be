"""A plan has no entry that `check` warns about, if it is as fast and fits without it."""

from dataclasses import replace

import pytest

from mindswap.config.render import document_from_data
from mindswap.errors import PlanError
from mindswap.features.plan import StepPlanner, WrittenPolicies, compact, planned_text
from mindswap.features.plan.tidy import num_new_warnings, pinned_decisions, without_warnings
from mindswap.features.simulate import LoadedStep
from mindswap.planner.evaluate import evaluate
from mindswap.planner.pins import Pin, PinTreatment, pinned_policy
from mindswap.planner.problem import Allow, Plan, PlanProblem
from mindswap.policy.model import ALL_LAYERS, Layers, LayerSwap, OpRecompute, OpSwap, Policy
from mindswap.rules.checker import check_document
from tests.planner.test_checked_plans import recorded_step

CASTS = r"feed_forward\.w[123]\.cast"  # of weights that the parallel optimizer gathers after the cast
CAST_PATHS = {("feed_forward", name) for name in ("w1", "w2", "w3")}
HEAVY = OpSwap(r"attention\.flash_attention", Layers(range(4)), 30)


@pytest.fixture(scope="module")
def planner():
    """Qwen2-0.5B with the parallel optimizer over eight ranks, weights in float32."""
    return StepPlanner(recorded_step("qwen2_0_5b"))


def plan_of(planner: StepPlanner, **settings) -> tuple[object, Plan]:
    """Return a problem that keeps everything, and a plan with other entries in it."""
    kept = planner.plan(planner.step.device.memory_bytes)
    problem = kept.problem
    policy = problem.with_switches(Policy(True, **settings))
    evaluation = evaluate(problem, policy)
    plan = replace(
        kept.plan,
        policy=policy,
        fits=True,
        step_time_ns=evaluation.step_time_ns,
        stage_peak_bytes=evaluation.stage_peak_bytes,
    )
    return problem, compact(planner.step, plan)


def tidied_plan(step: LoadedStep, problem: PlanProblem, plan: Plan) -> Plan:
    return without_warnings(WrittenPolicies(step, problem, problem.budget_bytes), plan)


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        ({"select_recompute": (OpRecompute(CASTS, Layers(0, 1)),)}, {}),  # gathered-weight
        (  # recompute-wins: the swap of two layers, then that of all that the entry names
            {"op_swap": (HEAVY,), "select_recompute": (OpRecompute("attention", Layers(0, 1)),)},
            {"op_swap": (replace(HEAVY, layers=Layers(2, 3)),)},
        ),
        ({"op_swap": (HEAVY,), "layer_recompute": Layers(range(6))}, {"op_swap": ()}),
        ({"layer_swap": (LayerSwap(Layers(0, 5), 30),), "layer_recompute": Layers(5)}, {}),
    ],
)
def test_what_check_warns_about_is_left_out_and_the_figures_stay(planner, settings, left):
    problem, plan = plan_of(planner, **settings)
    assert num_new_warnings(planner.step, plan.policy, set()) > 0
    tidied = tidied_plan(planner.step, problem, plan)
    assert num_new_warnings(planner.step, tidied.policy, set()) == 0
    assert evaluate(problem, tidied.policy).step_time_ns <= plan.step_time_ns
    # Without any entry the file is written without swap, which is compiled otherwise.
    evaluation = WrittenPolicies(planner.step, problem, problem.budget_bytes).evaluate(tidied.policy)
    assert (evaluation.step_time_ns, evaluation.stage_peak_bytes) == (tidied.step_time_ns, tidied.stage_peak_bytes)
    for name, entries in left.items():
        assert getattr(tidied.policy, name) == entries


def test_a_plan_without_warnings_is_not_touched(planner):
    """Not evaluated again either: it is the same object."""
    problem, plan = plan_of(planner, op_swap=(HEAVY,))
    assert num_new_warnings(planner.step, plan.policy, set()) == 0
    assert tidied_plan(planner.step, problem, plan) is plan


def test_a_plan_that_does_not_fit_is_not_touched(planner):
    problem, plan = plan_of(planner, select_recompute=(OpRecompute(CASTS, ALL_LAYERS),))
    assert tidied_plan(planner.step, problem, replace(plan, fits=False)).policy == plan.policy


def test_pins_stay_and_the_rest_is_tidied(planner):
    """Also a pin that `check` warns about, and the layers of a pinned swap that a recompute entry has."""
    step = planner.step
    pins = [Pin(CASTS, PinTreatment.RECOMPUTE), Pin(HEAVY.pattern, PinTreatment.SWAP, HEAVY.prefetch)]
    fixed = pinned_policy(pins, step.model, Allow())
    problem, plan = plan_of(
        planner, op_swap=(HEAVY,), select_recompute=(OpRecompute("attention", Layers(0, 1)), *fixed.select_recompute)
    )
    pinned = replace(problem, model=step.model.with_fixed_policy(fixed))
    plan = compact(step, replace(plan, policy=plan.policy.combined_with(fixed)))
    loose = OpSwap(r"attention\.wo\.matmul", Layers(0, 1), 7)  # recomputed in both of its layers
    with_loose = replace(plan, policy=replace(plan.policy, op_swap=(*plan.policy.op_swap, loose)))
    tidied = tidied_plan(step, pinned, with_loose)
    assert loose not in tidied.policy.op_swap
    trees = step.model.captured.trees
    layer_trees = [trees[layer_class] for layer_class in step.model.captured.sample.layer_map]
    decisions = pinned_decisions(tidied.policy, fixed, layer_trees)
    assert decisions == pinned_decisions(plan.policy, fixed, layer_trees)
    assert {path[:2] for _, path in decisions} == {("attention", "flash_attention"), *CAST_PATHS}
    assert len(decisions) == 4 * len(layer_trees) and pinned_decisions(plan.policy, None, layer_trees) == {}


def test_warnings_of_the_policy_of_the_file_count(planner):
    """It is replaced by the plan, whose own entries must cause none of them."""
    data = planner.step.document.data()
    section = {"swap_config": {"swap": True, "op_swap": []}, "recompute_config": {"select_recompute": {CASTS: True}}}
    document = document_from_data({**data, **section}, planner.step.document.file)
    step = replace(planner.step, document=document)
    assert any(found.rule == "gathered-weight" for found in check_document(document).problems)
    problem, plan = plan_of(planner, select_recompute=(OpRecompute(CASTS, Layers(0, 1)),))
    assert not tidied_plan(step, problem, plan).policy.select_recompute


def test_a_plan_that_only_recomputes_says_why_swap_is_on(planner):
    _, plan = plan_of(planner, layer_recompute=Layers(0, 3))
    text = planned_text(planner.step, plan, "planned.yaml")
    assert "nothing is swapped; with swap: False MindFormers takes no lists of layers" in text
    _, plan = plan_of(planner, op_swap=(HEAVY,))
    assert "nothing is swapped" not in planned_text(planner.step, plan, "planned.yaml")


def test_a_simple_plan_takes_no_pins(planner):
    with pytest.raises(PlanError, match="simple: its entries are whole cells, without pins"):
        StepPlanner(planner.step, pins=[Pin("attention", PinTreatment.KEEP)]).plan(simple=True)
