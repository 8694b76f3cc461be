"""Other batches and stages of a configuration: bounded, planned and sorted; only the network is that of a test."""

import inspect
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from mindswap.errors import PlanError
from mindswap.features.plan import batch_search as api
from mindswap.features.plan import make_plan
from mindswap.features.plan.batches import BatchOptions, plan_batches
from mindswap.features.plan.batches_report import FileSetup, batch_to_json, format_batches
from mindswap.features.plan.tasks import StepOptions
from mindswap.features.plan.worker_pool import WorkerPool
from mindswap.features.step import load_step
from mindswap.planner.problem import DEFAULT_ALLOW, Allow
from mindswap.planner.strategies import Batch, Strategy
from tests.simulator.steps import captured

NUM_LAYERS = 6
# Batches with the optimizer states on the card, so that each has one candidate.
on_card = partial(BatchOptions, states=False)
ONE_STAGE = f"""\
model:
  model_config: {{type: LlamaConfig, num_layers: {NUM_LAYERS}, seq_length: 16}}
  arch: {{type: LlamaForCausalLM}}
optimizer: {{type: AdamW}}
runner_config: {{batch_size: 2}}
parallel_config: {{data_parallel: 1}}
"""
TWO_STAGES = ONE_STAGE.replace("data_parallel: 1", "data_parallel: 1, pipeline_stage: 2, micro_batch_num: 4")
TWO_STAGES += "use_parallel: True\n"


@pytest.fixture
def planned(monkeypatch, tmp_path):
    """Plans of a configuration whose network is the step of `tests.simulator.steps`; none can be captured else."""

    def plan(text, asked, capture=lambda task, tick: captured(NUM_LAYERS), overrides=(), allow=DEFAULT_ALLOW):
        monkeypatch.setattr(api, "run_capture_task", capture)
        config = tmp_path / "x.yaml"
        config.write_text(text)
        said = []
        options = StepOptions("generic", dict(overrides), allow=allow)
        found = plan_batches(str(config), asked, options, Path(tmp_path), WorkerPool(), said.append)
        return found, said

    return plan


def test_the_fastest_batch_comes_first_and_what_cannot_be_faster_is_not_searched(planned):
    """Batches of 2 samples: two at once, or one after the other, which takes the fixed parts of a step twice."""
    (best, other), said = planned(ONE_STAGE, on_card())
    assert (best.batch, other.batch) == (Batch(2, 1), Batch(1, 2))
    assert best.step_plan is not None and best.layout is None and best.is_on_front and best.tokens_per_s > 0
    assert other.step_plan is None and other.reason.startswith(api.PRUNED) and other.tokens_per_s == 0
    assert sum(line.startswith("compile") for line in said) == 2 and sum(line.startswith("plan") for line in said) == 1


def test_stages_have_their_layers_where_others_are_looked_for(planned):
    asked = on_card(sizes=(2,), counts=(4,), moves_layers=True)
    found, _ = planned(TWO_STAGES, asked)
    assert ((3, 3),) in {one.layout.sizes for one in found if one.layout is not None}
    assert all(one.layout is not None and sum(one.layout.sizes[0]) == NUM_LAYERS for one in found)
    fixed, _ = planned(TWO_STAGES, on_card(sizes=(2,), counts=(4,)))
    assert [one.layout for one in fixed] == [None]


def test_layers_move_from_the_stage_with_more_work_only_where_that_is_wanted(planned):
    """Five of the six layers are in the first stage, so the other one waits."""
    text = TWO_STAGES.replace("seq_length: 16", "seq_length: 16, offset: [2, -2]")
    asked = on_card(sizes=(2,), counts=(4,), moves_layers=True)
    moved, _ = planned(text, asked)
    first = next(one for one in moved if one.layout.sizes == ((5, 1),))
    assert moved[0].tokens_per_s > first.tokens_per_s and moved[0].layout.sizes[0][0] < 5
    (fixed,), _ = planned(text, replace(asked, moves_layers=False))
    assert (fixed.layout, fixed.tokens_per_s) == (None, first.tokens_per_s)


def test_where_no_plan_is_found_no_layers_move(planned):
    asked = on_card(sizes=(2,), counts=(4,), moves_layers=True)
    (failed,), _ = planned(TWO_STAGES, asked, overrides={"memory": "1KiB"})
    assert (failed.step_plan, failed.layout.sizes) == (None, ((3, 3),)) and "alone need 4.0 KiB" in failed.reason


def test_one_stage_has_no_layers_to_move(planned):
    found, said = planned(ONE_STAGE, on_card(sizes=(2,), counts=(1,), moves_layers=True))
    assert [(one.layout, one.step_plan is not None) for one in found] == [(None, True)]
    assert not any("layers" in line for line in said)


def test_a_task_is_loaded_and_planned_as_the_functions_do_it_that_it_calls():
    """Options that nobody gives are the defaults of `load_step` and `make_plan`."""
    loads, plans = (inspect.signature(function).parameters for function in (load_step, make_plan))
    options = StepOptions()
    assert (options.device, options.use_cache, options.expert_skew) == tuple(
        loads[name].default for name in ("device", "use_cache", "expert_skew")
    )
    assert (options.allow, options.is_simple) == (plans["allow"].default, plans["simple"].default)


def test_what_cannot_be_captured_is_behind_the_plans_with_its_reason(planned):
    """The network of one sample does not compile; that of two does."""

    def capture(task, tick):
        return captured(NUM_LAYERS) if "batch_size: 2" in task.text else "it does not compile"

    found, _ = planned(ONE_STAGE, on_card(), capture)
    assert [(one.batch, one.step_plan is not None) for one in found] == [(Batch(2, 1), True), (Batch(1, 2), False)]
    assert found[1].reason


@pytest.mark.parametrize(("memory", "is_on_host"), [("13KiB", True), ("14KiB", False)])
def test_states_are_where_the_fastest_batch_that_fits_has_them(planned, memory, is_on_host):
    """Two of the 14 KiB that the batch needs at least are optimizer states, whose copies take 300 ns."""
    (best, other), said = planned(ONE_STAGE, BatchOptions(sizes=(2,), counts=(1,)), overrides={"memory": memory})
    assert (best.has_states_on_host, other.has_states_on_host, other.step_plan) == (is_on_host, not is_on_host, None)
    assert best.step_plan.step.model.settings.is_state_offloaded is is_on_host
    assert best.step_plan.step.document.value("optimizer", "swap") is (True if is_on_host else None)
    assert sum(line.startswith("compile") for line in said) == 1  # the network is the same
    file_setup = FileSetup(best.strategy, best.batch, None)
    (row,) = [line for line in format_batches([best, other], file_setup).splitlines() if line.startswith("1 x 2")]
    assert ("states on the host" in row, "(your file)" in row) == (is_on_host, not is_on_host)
    assert batch_to_json(best, file_setup)["states_on_host"] is is_on_host


@pytest.mark.parametrize(
    ("text", "allow"),
    [(ONE_STAGE.replace("AdamW", "AdamWeightDecay"), DEFAULT_ALLOW), (ONE_STAGE, Allow(swap=False))],
)
def test_states_have_one_place_where_they_cannot_move(planned, text, allow):
    (best,), _ = planned(text, BatchOptions(sizes=(2,), counts=(1,)), allow=allow)
    assert best.step_plan is not None and not best.has_states_on_host


def test_a_pin_that_is_not_possible_is_refused(planned):
    with pytest.raises(
        PlanError, match=r"--pin optimizer=swap: MindFormers has no swap of optimizer states for AdamWeightDecay"
    ):
        planned(ONE_STAGE.replace("AdamW", "AdamWeightDecay"), BatchOptions(states=True))


def test_what_does_not_fit_on_the_host_does_not_fit_on_the_card():
    """Of more samples: on the card, that follows from the other place, and not the other way round."""
    on_host, on_card_ = (
        api.BatchPlan(Batch(1, 2), Strategy(1, 1, 1), has_states_on_host=is_on_host) for is_on_host in (True, False)
    )
    larger = [replace(plan, batch=Batch(2, 2)) for plan in (on_host, on_card_)]
    assert [api._needs_more(plan, on_host) for plan in larger] == [True, True]
    assert [api._needs_more(plan, on_card_) for plan in larger] == [False, True]
