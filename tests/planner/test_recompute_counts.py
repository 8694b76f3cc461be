"""A plan that only recomputes is written as counts with swap off, which recompute the same in the same layers."""

from dataclasses import replace

import pytest
import yaml

from mindswap.config.parse import parse_document
from mindswap.features.plan import StepPlanner, planned_text
from mindswap.planner.evaluate import evaluate
from mindswap.planner.problem import Allow
from mindswap.planner.recompute_counts import counted_sections, in_first_layers, only_recomputes, swaps_nothing
from mindswap.policy.formats.mindformers1.stage_recompute import expand_stage_recompute
from mindswap.policy.model import ALL_LAYERS, Layers, OpRecompute, OpSwap, Policy
from tests.planner.test_checked_plans import ROOT, recorded_step

MUL = r"feed_forward\.mul"
# Stage 0 has layers 0, 1 and 4, 5; stage 1 has 2, 3 and 6, 7.
INTERLEAVED = """
model: {model_config: {num_layers: 8, pp_interleave_num: 2}}
parallel_config: {pipeline_stage: 2}
parallel: {pipeline_config: {pipeline_interleave: True, pipeline_scheduler: '1f1b'}}
recompute_config: {recompute: True, select_recompute_exclude: False}
"""
STAGES = "model: {model_config: {num_layers: 8}}\nparallel_config: {pipeline_stage: 2}"


def document(text: str):
    return parse_document(text, "train.yaml")


def recompute(*layers: int, **entries: Layers) -> Policy:
    return Policy(True, layer_recompute=Layers(layers), select_recompute=tuple(entries.values()))


@pytest.mark.parametrize(
    ("text", "first", "counts"),
    [
        (STAGES, (0, 1, 4), [2, 1]),
        (INTERLEAVED, (0, 2, 4), [[1, 1], [1, 0]]),
        ("model: {model_config: {num_layers: 8}}", (0, 1, 2), [3]),
    ],
)
def test_layers_of_a_stage_become_its_first_ones(text, first, counts):
    policy = replace(recompute(1, 3, 5), select_recompute=(OpRecompute(MUL, ALL_LAYERS),))
    found = in_first_layers(policy, document(text), 8)
    assert found == replace(policy, layer_recompute=Layers(first))
    sections = counted_sections(found, document(text), 8)
    assert sections["swap_config"] == {"swap": False}
    assert sections["recompute_config"]["recompute"] == counts
    assert sections["recompute_config"]["select_recompute"] == {MUL: True}
    # An independent reading: what `check` and `simulate` make of the text.
    written = yaml.safe_load(text) | sections
    expanded = expand_stage_recompute(document(yaml.safe_dump(written)), 8)
    assert not expanded.problems and expanded.policy.layer_recompute == Layers(first)
    assert expanded.policy.select_recompute == (OpRecompute(MUL, Layers(range(8))),)


def test_keys_of_the_file_stay_with_their_defaults():
    found = counted_sections(recompute(0, 1), document(INTERLEAVED), 8)
    assert found["recompute_config"] == {"recompute": [[2, 0], [0, 0]], "select_recompute_exclude": False}


def test_switches_get_the_values_that_act_with_swap_off():
    """With swap off MindFormers passes none of them on, so a plan with the switches of its file is another step."""
    switched = replace(recompute(1, 3), mp_comm_recompute=False, recompute_slice_activation=True)
    assert swaps_nothing(switched) and not only_recomputes(switched)
    assert in_first_layers(switched, document(STAGES), 8) == recompute(0, 1)


def test_layers_that_are_not_the_first_ones_are_no_counts():
    assert counted_sections(recompute(1, 3, 5), document(STAGES), 8) is None


@pytest.mark.parametrize(
    "policy",
    [
        Policy(),
        Policy(True),
        replace(recompute(0), op_swap=(OpSwap("attention", Layers(3), 5),)),
        replace(recompute(0), mp_comm_recompute=False),  # acts with swap on only
        replace(recompute(0), select_recompute_exclude=(OpRecompute(MUL, ALL_LAYERS),)),
        replace(recompute(0), output_recompute=Layers(0)),
    ],
)
def test_other_policies_are_no_counts(policy):
    assert not only_recomputes(policy) and counted_sections(policy, document(STAGES), 8) is None


def test_what_mindformers_counts_otherwise_is_no_counts():
    network = "parallel_config: {pipeline_stage: 1}"  # no model of MindFormers: nothing there would count
    assert counted_sections(recompute(0), document(network), 8) is None
    reverse = INTERLEAVED.replace("'1f1b'", "zero_bubble_v")
    assert in_first_layers(recompute(0), document(reverse), 8) is None
    misplaced = STAGES.replace("num_layers: 8", "num_layers: 8, offset: [1]")
    assert counted_sections(recompute(0), document(misplaced), 8) is None
    llama = "model: {arch: {type: LlamaForCausalLM}, model_config: {num_layers: 8, use_flash_attention: %s}}"
    selected = Policy(True, select_recompute=(OpRecompute(MUL, Layers(0)),))
    assert counted_sections(selected, document(llama % "False"), 8) is None  # the scores would be recomputed as well
    assert counted_sections(selected, document(llama % "True"), 8) is not None


@pytest.mark.parametrize("num_micro_batches", [1, 4])
def test_where_swap_changes_the_step_there_are_no_counts(num_micro_batches):
    """With the parallel optimizer and one micro-batch, weights are cast after the all-gather with swap on only."""
    text = f"""
        model: {{model_config: {{num_layers: 8}}}}
        parallel: {{parallel_mode: 1, enable_parallel_optimizer: True}}
        parallel_config: {{data_parallel: 8}}
        runner_config: {{gradient_accumulation_steps: {num_micro_batches}}}
    """
    assert (counted_sections(recompute(0, 1), document(text), 8) is None) == (num_micro_batches == 1)


@pytest.mark.long
@pytest.mark.parametrize(("name", "budget_gib"), [("llama2_7b", 51), ("gpt_175b_tp2_pp4_vpp2", 57)])
def test_the_written_file_has_the_figures_of_the_plan(tmp_path, name, budget_gib):
    step = recorded_step(name)
    plan = StepPlanner(step, Allow(swap=False)).plan(budget_gib << 30)
    assert plan.fits and plan.plan.gap < 0.1 and only_recomputes(plan.policy)
    text = planned_text(step, plan.plan, "planned.yaml")
    data = yaml.safe_load(text)
    assert data["swap_config"] == {"swap": False} == plan.sections["swap_config"]
    assert data["recompute_config"] == plan.sections["recompute_config"] and "nothing is swapped" not in text
    (tmp_path / "planned.yaml").write_text(text)
    read = recorded_step(name, tmp_path / "planned.yaml")
    evaluation = evaluate(replace(plan.problem, model=read.model), read.policy)
    assert (evaluation.step_time_ns, evaluation.peak_bytes) == (plan.step_time_ns, plan.peak_bytes)


@pytest.mark.long
def test_a_plan_that_swaps_nothing_is_counts_whatever_switches_the_file_has(tmp_path):
    """Most recipes of MindFormers have one: such plans had `swap: True` with an empty `op_swap`."""
    own = (ROOT / "benchmarks" / "models" / "llama2_7b.yaml").read_text("utf-8")
    data = yaml.safe_load(own)
    data["recompute_config"] = {"recompute": True, "mp_comm_recompute": False, "recompute_slice_activation": True}
    (tmp_path / "switched.yaml").write_text(yaml.safe_dump(data))
    step = recorded_step("llama2_7b", tmp_path / "switched.yaml")
    plan = StepPlanner(step, Allow(swap=False)).plan(51 << 30)
    written = yaml.safe_load(planned_text(step, plan.plan, "planned.yaml"))
    assert plan.fits and written["swap_config"] == {"swap": False}
    assert written["recompute_config"]["mp_comm_recompute"] is True
    assert written["recompute_config"]["recompute_slice_activation"] is False
