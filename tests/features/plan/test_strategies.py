"""Strategies in a configuration, and captures that several of them share."""

from dataclasses import replace
from pathlib import Path

import pytest

from mindswap.config.parse import parse_document
from mindswap.config.pipeline_layout import Layout, Pipeline
from mindswap.errors import PlanError
from mindswap.features.plan.strategies import (
    balanced_offset,
    capture_key,
    file_strategy,
    strategy_space,
    with_batch,
    with_layout,
    with_strategy,
)
from mindswap.features.plan.tasks import StepOptions, StepTask, load_task, run_capture_task
from mindswap.features.step import load_step, settings_of
from mindswap.planner.strategies import Batch, Strategy
from mindswap.policy.model import Policy

CASE = Path(__file__).resolve().parents[3] / "configs" / "llama2_7b" / "case3_op_swap.yaml"
TEXT = """\
parallel:  # how
  parallel_mode: 1
  dataset_strategy: [[4, 1], [4, 1]]  # by input
parallel_config:
  data_parallel: 4  # ranks
  pipeline_stage: 2
  micro_batch_num: 2
runner_config: {batch_size: 1, gradient_accumulation_steps: 3}
model:
  model_config: {num_layers: 5, offset: [1, 0], num_heads: 4, n_kv_heads: 2, num_experts: 8}
"""


def read(text):
    return parse_document(text.encode(), "x.yaml")


def test_a_strategy_is_written_with_all_that_hangs_on_it_and_comments_stay():
    document = read(TEXT)
    assert file_strategy(document) == Strategy(4, 1, 2)
    assert with_strategy(TEXT, document, Strategy(4, 1, 2)) == TEXT
    other = Strategy(2, 4, 1, 2, True)
    text = with_batch(with_strategy(TEXT, document, other), document, Batch(2, 2))
    found = read(text)
    assert file_strategy(found) == other
    assert text.startswith("parallel:  # how\n") and "# by input" in text and "data_parallel: 2  # ranks" in text
    assert found.data()["parallel"]["dataset_strategy"] == [[2, 1], [2, 1]]
    assert found.value("model", "model_config", "offset") == 0
    assert found.data()["runner_config"] == {"batch_size": 2, "gradient_accumulation_steps": 2}


def test_counts_of_recomputed_layers_by_stage_stay_with_their_stages():
    text = TEXT + "recompute_config:\n  recompute: [2, 1]  # by stage\n  mp_comm_recompute: True\n"
    same, other = (
        read(with_strategy(text, read(text), Strategy(*shape))).data()["recompute_config"]
        for shape in ((2, 2, 2), (8, 1, 1))
    )
    assert same == {"recompute": [2, 1], "mp_comm_recompute": True}
    assert other == {"recompute": False, "mp_comm_recompute": True}
    moved = with_layout(text, read(text), Layout(((4, 1),), 5))
    assert read(moved).data()["recompute_config"] == other


def test_more_stages_take_micro_batches_in_place_of_accumulation():
    text = "parallel_config: {data_parallel: 4}\nrunner_config: {batch_size: 1, gradient_accumulation_steps: 3}\n"
    found = read(with_batch(with_strategy(text, read(text), Strategy(2, 1, 2)), read(text), Batch(1, 6)))
    assert found.data()["runner_config"]["gradient_accumulation_steps"] == 1
    assert found.value("parallel_config", "micro_batch_num") == 6


@pytest.mark.parametrize(
    ("num_layers", "stages", "chunks", "sizes"),
    [
        (8, 4, 1, ((2, 2, 2, 2),)),
        (61, 16, 1, ((3, 3, *[4] * 13, 3),)),
        (11, 2, 2, ((3, 3), (3, 2))),  # the last one has the head
        (7, 2, 3, ((1, 1), (1, 1), (2, 1))),
    ],
)
def test_layers_are_spread_as_evenly_as_they_go(num_layers, stages, chunks, sizes):
    offset = balanced_offset(num_layers, stages, chunks)
    assert Pipeline(stages, chunks, offset).layout(num_layers).sizes == sizes


def test_what_strategies_keep_to_is_read():
    space = strategy_space(read(TEXT), Batch(1, 2), None, None, 8)
    assert (space.num_samples, space.num_layers, space.divisible, space.num_experts) == (8, 5, (4, 2), 8)
    with pytest.raises(PlanError, match="parallel_mode takes no strategies"):
        strategy_space(read(TEXT.replace("parallel_mode: 1", "parallel_mode: 0")), Batch(1, 2), None, None, 8)


def test_what_is_cut_is_captured_for_its_samples():
    def key(data, tensor, stages, has_sequence=False):
        text = f"parallel_config: {{data_parallel: {data}, model_parallel: {tensor}, pipeline_stage: {stages}}}\n"
        text += "runner_config: {batch_size: 2}\n"
        return capture_key(settings_of(read(text)), has_sequence)

    assert key(8, 1, 1) == key(4, 1, 2) == key(2, 1, 1)
    assert key(2, 2, 1) == key(2, 2, 2)
    assert len({key(8, 1, 1), key(2, 2, 1), key(1, 2, 1), key(2, 2, 1, True), key(2, 4, 1)}) == 5


@pytest.mark.mindspore
def test_a_shared_capture_gives_the_step_that_an_own_capture_gives(tmp_path):
    text = CASE.read_text()
    for old, new in (("hidden_size: 4096", "hidden_size: 128"), ("seq_length: 4096", "seq_length: 128")):
        assert old in text
        text = text.replace(old, new)
    steps = []
    for strategy, batch in ((Strategy(8, 1, 1), Batch(1, 1)), (Strategy(4, 1, 2), Batch(1, 2))):
        path = tmp_path / f"stages_{strategy.stages}.yaml"
        path.write_text(with_batch(with_strategy(text, read(text), strategy), read(text), batch))
        steps.append(load_step(path))
    first, own = (step.model for step in steps)
    settings = settings_of(steps[1].document)
    assert capture_key(first.settings, False) == capture_key(settings, False)
    shared = first.with_settings(settings)
    ours, theirs = shared.simulate(Policy()), own.simulate(Policy())
    assert ours.step_time_ns == theirs.step_time_ns
    assert list(ours.activation_bytes) == list(theirs.activation_bytes)
    assert [one.total_bytes for one in shared.static] == [one.total_bytes for one in own.static]
    assert first.simulate(Policy()).step_time_ns != ours.step_time_ns
    # So does the capture that a task hands to another one: it is not gathered twice, say.
    tasks = [StepTask("small.yaml", Path(step.document.file).read_text(), StepOptions()) for step in steps]
    captured = run_capture_task(tasks[0], lambda: None)
    handed = load_task(replace(tasks[1], captured=captured), tmp_path / "handed").model.simulate(Policy())
    assert handed.step_time_ns == theirs.step_time_ns
    assert list(handed.activation_bytes) == list(theirs.activation_bytes)
