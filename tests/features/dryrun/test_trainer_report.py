"""Reports of dry runs of MindFormers 2.x, and what the command refuses, without MindSpore."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from mindswap import cli
from mindswap.config.source import load_document
from mindswap.features.dryrun.trainer import extrapolate, find_left_out, left_out_notes
from mindswap.features.dryrun.trainer_report import TrainerDryRun, format_trainer_dry_run, trainer_dry_run_to_json
from mindswap.features.dryrun.trainer_run import read_step
from mindswap.features.dryrun.trainer_step import StepCopies, TrainerStep
from tests.schema import load, misfits

SMALL = str(Path(__file__).parents[3] / "docs/qwen3_2x.yaml")
MIB = 1 << 20
STEP = TrainerStep(
    num_layers=4,
    phase_peaks={"forward": 700 * MIB, "backward": 900 * MIB, "optimizer": 800 * MIB},
    before_bytes=300 * MIB,
    kept_bytes=400 * MIB,
    gradient_bytes=50 * MIB,
    weight_bytes=100 * MIB,
    state_bytes=200 * MIB,
    trained_bytes=100 * MIB,
    reserved_bytes=1024 * MIB,
    added_by_layer=(10 * MIB, 20 * MIB, 20 * MIB, 20 * MIB),
    copies=StepCopies(0, 0, 0, 0, 0),
    uses_stand_in=True,
)
REPORT = TrainerDryRun("small", 4, STEP, (4,), False, 1000 * MIB, 0, ("a note",))


def test_the_peak_of_the_step_and_that_of_the_passes():
    assert (STEP.used_peak_bytes, STEP.pass_peak_bytes, STEP.peak_phase) == (900 * MIB, 900 * MIB, "backward")
    step = replace(STEP, phase_peaks={**STEP.phase_peaks, "optimizer": 950 * MIB})
    assert (step.used_peak_bytes, step.pass_peak_bytes, step.peak_phase) == (950 * MIB, 900 * MIB, "optimizer")


def test_the_text_has_both_dry_runs_side_by_side():
    other = replace(REPORT, title="off", step=replace(STEP, copies=StepCopies(30 * MIB, 30 * MIB, 3, 3, 20 * MIB)))
    text = format_trainer_dry_run(REPORT, other)
    rows = [line.split() for line in text.splitlines()]
    assert ["peak", "of", "the", "step", "900", "MiB", "900", "MiB"] in rows
    assert ["swapped", "out", "0", "MiB", "30", "MiB"] in rows
    assert "forward of a layer adds: layer 0 10 MiB, layers 1-3 20 MiB each" in text
    assert "needs 900.0 MiB without workspace: fits in" in text
    assert text.count("note: a note") == 1


def test_each_pipeline_stage_has_a_row_and_an_entry_of_its_own():
    """Stage 1 needs most, and has the layers 2 and 3 of the model."""
    first = replace(
        STEP, phase_peaks={"forward": 500 * MIB, "backward": 600 * MIB, "optimizer": 1}, layer_indices=(0, 1)
    )
    last = replace(
        STEP,
        stage=1,
        layer_indices=(2, 3),
        added_by_layer=(20 * MIB, 30 * MIB),
        added_by_cell=({"mlp": 8 * MIB}, {"mlp": 2 * MIB}),
        copies=StepCopies(0, 0, 0, 0, 0),
    )
    report = replace(REPORT, step=last, stages=(first, last))
    text = format_trainer_dry_run(report)
    rows = [re.split(r" {2,}", line) for line in text.splitlines()]
    assert ["one rank", "small, stage 1"] in rows
    assert ["small, stage 0", "0-1", "600 MiB", "300 MiB", "400 MiB", "50 MiB", "0 MiB", "0 MiB"] in rows
    assert ["small, stage 1", "2-3", "900 MiB", "300 MiB", "400 MiB", "50 MiB", "0 MiB", "0 MiB"] in rows
    assert "forward of a layer adds: layer 2 20 MiB, layer 3 30 MiB" in text
    assert ["", "layer 2: mlp 8 MiB"] in rows
    stages = trainer_dry_run_to_json(report)["stages"]
    assert [(stage["stage"], stage["num_layers"], stage["used_peak_bytes"] // MIB) for stage in stages] == [
        (0, 2, 600),
        (1, 2, 900),
    ]


def test_what_cells_add_is_grouped_by_equal_layers():
    mlp, norm = {"mlp": 8 * MIB, "norm": 100}, {"mlp": 2 * MIB, "attention": 3 * MIB}
    text = format_trainer_dry_run(replace(REPORT, step=replace(STEP, added_by_cell=(norm, mlp, mlp))))
    lines = text.splitlines()
    start = lines.index("forward adds, by cell:")
    assert lines[start + 1 : start + 3] == ["  layer 0: attention 3 MiB, mlp 2 MiB", "  layers 1-2: mlp 8 MiB"]


def test_without_swap_there_are_no_rows_on_it():
    assert "swapped" not in format_trainer_dry_run(REPORT)


def test_copies_that_hyper_parallel_made_are_not_known():
    text = format_trainer_dry_run(replace(REPORT, step=replace(STEP, copies=None)))
    assert ["swapped", "out", "-"] in [line.split() for line in text.splitlines()]


def test_the_json_has_the_keys_of_graph_mode():
    data = trainer_dry_run_to_json(REPORT)
    schema = load("dryrun.json")
    assert misfits(json.loads(json.dumps(data)), schema["$defs"]["run"], schema) == []
    (stage,) = data["stages"]
    assert sum(stage["parts"].values()) == data["used_peak_bytes"] == 900 * MIB
    assert data["fits"] and not trainer_dry_run_to_json(replace(REPORT, budget_bytes=899 * MIB))["fits"]


def test_two_depths_are_extrapolated_phase_by_phase():
    low = replace(STEP, num_layers=2, phase_peaks={"forward": 500 * MIB, "backward": 600 * MIB, "optimizer": 700 * MIB})
    step = extrapolate(low, STEP, 8)
    assert step.phase_peaks == {"forward": 1100 * MIB, "backward": 1500 * MIB, "optimizer": 1000 * MIB}
    assert (step.num_layers, step.weight_bytes, step.added_by_layer) == (8, 100 * MIB, ())
    report = TrainerDryRun("small", 8, step, (2, 4), False)
    assert report.basis == "extrapolated to 8 layers from depths 2 and 4; the error is unknown"


def test_the_lines_of_the_log_on_swap_and_recompute(tmp_path):
    log = tmp_path / "log.txt"
    log.write_text("x - INFO - Set layer swap at layer 0\nSet select recompute at layer 1: mlp\nSet full things\n")
    names = ("before_bytes", "kept_bytes", "gradient_bytes", "weight_bytes", "state_bytes", "trained_bytes")
    result = {name: 1 for name in names} | {
        "reserved_bytes": 2, "uses_stand_in": False, "peaks": {"forward": 1}, "added_by_layer": [1], "moved": None,
        "added_by_cell": [{"mlp": 1}], "wrappers": [], "layer_copies": [], "layer_indices": [2, 3], "expert_bytes": 5,
        "expert_weight_bytes": 2, "unit_bytes": [[2, 3]], "backward_profile": [[9, 0], [8, 1]],
    }  # fmt: skip
    step = read_step(2, result, log, 1.5)
    assert step.set_lines == ("Set layer swap at layer 0", "Set select recompute at layer 1: mlp")
    assert step.copies is None and step.wall_s == 1.5
    assert (step.layer_indices, step.expert_bytes) == ((2, 3), 5)
    assert (step.expert_weight_bytes, step.unit_bytes) == (2, ((2, 3),))
    assert step.backward_profile == ((9, 0), (8, 1))


def test_parallelism_that_one_process_does_not_have():
    document = load_document(SMALL)
    assert find_left_out(document, None) == {}
    assert find_left_out(document, 8) == {"data_parallel_shard": -1}


def test_what_one_process_does_not_have_is_named_with_its_size():
    """Weights 100, states 200, gradients 50 MiB; activations 400 MiB."""
    left_out = {"tensor_parallel": 2, "expert_parallel": 8, "context_parallel": 4, "cpu_offload": True}
    notes = list(left_out_notes(left_out, replace(STEP, expert_bytes=30 * MIB)))
    assert notes[0] == (
        "tensor_parallel: 2 is left out: its ranks divide those of linear layers, of 350.0 MiB of weights, float32 "
        "weights, states and gradients, and most of 400.0 MiB of activations"
    )
    assert notes[1] == ("expert_parallel: 8 is left out: its ranks divide 30.0 MiB of weights and states of experts")
    assert notes[2] == "context_parallel: 4 is left out: its ranks divide 400.0 MiB of activations"
    assert "200.0 MiB" in notes[3] and len(notes) == 5
    assert list(left_out_notes({}, STEP)) == []


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--ranks", "0"], "--ranks: of MindFormers 1.9 only"),
        (["--html", "x.html", "--plot", "x.png"], "--plot, --html: of MindFormers 1.9 only"),
        (["--layers", "2,4,6"], "--layers 2,4,6: one depth, or two"),
        (["--layers", "9"], "--layers 9: the model has 8"),
        (["--against", "configs/llama2_7b/case4_swap_and_recompute.yaml"], "not a configuration of MindFormers 2.x"),
    ],
)
def test_what_is_refused_before_anything_runs(words, text, capsys):
    assert cli.main(["dryrun", SMALL, *words]) == 1
    assert text in capsys.readouterr().err


def test_a_python_without_mindformers_2x(monkeypatch, capsys):
    monkeypatch.delenv("MINDSWAP_ANY_VERSION", raising=False)
    monkeypatch.setattr(
        "mindswap.features.dryrun.trainer_run.installed_version",
        {"mindformers": "1.9.0", "mindspore": "2.9.0"}.__getitem__,
    )
    assert cli.main(["dryrun", SMALL]) == 1
    text = capsys.readouterr().err
    assert f"{SMALL}:2:1: error: a configuration of MindFormers 2.x (PyNative), whose trainer" in text
    assert "mindformers 1.9.0, mindspore 2.9.0 [form-2x]" in text
    assert "allowed: mindformers 2.1.0 with mindspore 2.10.0" in text and "make .venv-2x/.installed" in text


def test_cards_are_of_mindformers_2x(capsys):
    assert cli.main(["dryrun", "configs/llama2_7b/case4_swap_and_recompute.yaml", "--cards", "8"]) == 1
    assert "--cards: of MindFormers 2.x only" in capsys.readouterr().err
