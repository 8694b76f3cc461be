"""Entries of files of MindFormers 2.x against what the wrappers of a dry run did; sizes in bytes."""

from dataclasses import replace

import yaml

from mindswap.config.render import document_from_data
from mindswap.config.source import load_document
from mindswap.features.dryrun import TrainerDryRun, TrainerStep, WrapperEffect, join_stages
from mindswap.features.dryrun.trainer_step import with_model_layers
from mindswap.features.verify.trainer_effect import compare_entries, find_problems
from mindswap.features.verify.trainer_verify import make_verification
from mindswap.policy.formats.mindformers2.effect import compute_effect
from mindswap.policy.formats.mindformers2.read import read_pynative
from mindswap.policy.formats.mindformers2.tables import load_model

FILE = """\
training: {local_batch_size: 1, global_batch_size: 8}
parallelism: {data_parallel_shard: -1}
model: {model_type: qwen3, num_hidden_layers: 4}
swap:
  enable: True
  default_prefetch: 1
  layer_swap: [{layers: [0]}]
  op_swap:
    - {op_name: 'mlp\\.linear_fc1', layers: ['1-2']}
recompute:
  mode: select
  full_recompute_layer: [3]
  select_module: {mlp: [2]}
"""
SWAP_0 = WrapperEffect("swap", 0, "", out_bytes=100, back_bytes=100, num_out=3, num_back=3, num_runs=1)
SWAP_1 = WrapperEffect("swap", 1, "mlp.linear_fc1", out_bytes=10, back_bytes=10, num_out=1, num_back=1, num_runs=1)
RECOMPUTES = (
    WrapperEffect("recompute", 2, "mlp", num_runs=1, num_recomputed=1),
    WrapperEffect("recompute", 3, "", num_runs=1, num_recomputed=1),
)


def step(*wrappers, own_swap=None, own_targets=None):
    return TrainerStep(
        num_layers=4,
        phase_peaks={"forward": 5, "backward": 6, "optimizer": 4},
        before_bytes=1,
        kept_bytes=2,
        gradient_bytes=1,
        weight_bytes=1,
        state_bytes=0,
        trained_bytes=1,
        reserved_bytes=8,
        added_by_layer=(),
        copies=None,
        uses_stand_in=True,
        wrappers=wrappers,
        own_swap=own_swap,
        own_targets=own_targets or {},
    )


def compared(tmp_path, measured, change=lambda data: None, cards=None):
    file = tmp_path / "small.yaml"
    file.write_text(FILE)
    document = load_document(file)
    data = yaml.safe_load(FILE)
    change(data)
    if data != yaml.safe_load(FILE):
        document = document_from_data(data, str(file))
    effect = compute_effect(read_pynative(document, None), load_model(document, 4))
    entries = compare_entries(effect, measured)
    return effect, entries, find_problems(document, effect, entries, cards)


def test_an_entry_acts_where_its_cells_are_copied_or_recomputed(tmp_path):
    """`mlp.linear_fc1` of layer 2 is below `mlp`, which is recomputed: MindFormers does not find it."""
    effect, entries, problems = compared(tmp_path, step(SWAP_0, SWAP_1, *RECOMPUTES))
    by_option = {entry.target.option: entry for entry in entries}
    assert by_option["layer_swap"].acts and by_option["layer_swap"].out_bytes == 100
    assert by_option["full_recompute_layer"].acts and by_option["select_module"].num_recomputed == 1
    assert by_option["op_swap"].acting_layers == (1,)
    (problem,) = problems
    assert (problem.location.line, problem.rule) == (9, "no-effect")
    assert "has no effect in layer 2: mlp.linear_fc1 is inside 'mlp'" in problem.message
    report = TrainerDryRun("small", 4, step(SWAP_0, SWAP_1, *RECOMPUTES), (4,), has_cann=False)
    result = make_verification(effect, entries, problems, report, None)
    assert not result.is_ok and "does NOT follow the file" in result.text
    assert [entry["ok"] for entry in result.data["entries"]] == [True, False, True, True]


def test_what_is_wrapped_and_does_nothing_has_no_effect(tmp_path):
    idle = WrapperEffect("swap", 1, "mlp.linear_fc1", num_runs=1)
    lost = WrapperEffect("swap", 0, "", out_bytes=100, back_bytes=60, num_out=3, num_back=2, num_runs=1)
    once = WrapperEffect("recompute", 2, "mlp", num_runs=1)
    _, _, problems = compared(tmp_path, step(lost, idle, once, RECOMPUTES[1]))
    messages = [problem.message for problem in problems]
    assert any("layer_swap[0]: has no effect: offloaded tensors are not prefetched" in text for text in messages)
    assert any("in layer 1: its cells save nothing that may move" in text for text in messages)
    assert any("['mlp']: has no effect: its cells do not run once more in backward" in text for text in messages)


def test_in_one_process_neither_section_acts_and_the_swap_of_mindswap_does(tmp_path):
    """There is one process with one card, or where the batch is that of one data parallel rank."""
    measured = step(SWAP_0, SWAP_1, *RECOMPUTES)
    _, _, problems = compared(tmp_path, measured, cards=1)
    assert [(p.location.line, p.message.partition(":")[0]) for p in problems if p.rule == "one-process"] == [
        (4, "swap"),
        (10, "recompute"),
    ]
    _, _, problems = compared(tmp_path, measured, lambda data: data["training"].update(global_batch_size=1))
    assert [problem.rule for problem in problems].count("one-process") == 2
    _, _, problems = compared(tmp_path, measured, lambda data: data["parallelism"].update(tensor_parallel=2))
    assert "one-process" not in [problem.rule for problem in problems]

    def own(data):
        data["mindswap"] = {"swap_engine": "mindswap"}

    moved = {"swap.layer_swap[0]": (0,), "swap.op_swap[0]": (1,)}
    report = {"is_as_predicted": True}
    _, entries, problems = compared(tmp_path, step(*RECOMPUTES, own_swap=report, own_targets=moved), own, cards=1)
    assert [entry.acting_layers for entry in entries] == [(0,), (1,), (3,), (2,)]
    assert sorted(problem.rule for problem in problems) == ["no-effect", "one-process"]


def test_stages_are_compared_with_the_entries_by_the_layers_of_the_model(tmp_path):
    """Each of two stages counts its layers from 0; the file has the layers 0 to 3."""
    wrapped = {"num_runs": 2, "num_recomputed": 2}
    first = replace(step(replace(SWAP_0, layer=0)), layer_indices=(0, 1))
    last = replace(
        step(WrapperEffect("recompute", 0, "mlp", **wrapped), WrapperEffect("recompute", 1, "", **wrapped)),
        stage=1,
        layer_indices=(2, 3),
        phase_peaks={"forward": 5, "backward": 9, "optimizer": 4},
    )
    stages = [with_model_layers(each) for each in (first, last)]
    joined = join_stages(stages)
    assert joined.used_peak_bytes == 9
    _, entries, problems = compared(tmp_path, joined)
    acting = {entry.target.path: entry.acting_layers for entry in entries}
    assert acting == {
        "swap.layer_swap[0]": (0,), "swap.op_swap[0]": (), "recompute.full_recompute_layer": (3,),
        "recompute.select_module['mlp']": (2,),
    }  # fmt: skip
    assert {problem.rule for problem in problems} == {"no-effect"}
    assert all("swap.op_swap[0]" in problem.message for problem in problems)


def test_mindswaps_own_swap_of_all_stages_is_one_report():
    reports = [{"is_as_predicted": True}, {"is_as_predicted": False}]
    stages = [
        step(own_swap=report, own_targets={"swap.layer_swap[0]": layers})
        for report, layers in zip(reports, ((0, 1), (2, 3)), strict=True)
    ]
    joined = join_stages(stages)
    assert joined.own_targets == {"swap.layer_swap[0]": (0, 1, 2, 3)}
    assert joined.own_swap == reports[1]
