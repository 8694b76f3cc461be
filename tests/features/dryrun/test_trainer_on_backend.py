"""Dry runs with the trainer of MindFormers 2.1.0 on MindSpore's Ascend backend, without a card."""

import json
from collections import Counter
from importlib.metadata import PackageNotFoundError, files, version
from pathlib import Path

import pytest
import yaml

from mindswap import cli
from mindswap.features.step import load_step
from mindswap.pynative.trace import load_trace


def has_mindformers_2x() -> bool:
    try:
        return version("mindformers").startswith("2.")
    except PackageNotFoundError:
        return False


pytestmark = [
    pytest.mark.mindspore,
    pytest.mark.mindformers2,
    pytest.mark.skipif(not has_mindformers_2x(), reason="make test-2x runs it where MindFormers 2.x is"),
]

SMALL = Path(__file__).parents[3] / "docs/qwen3_2x.yaml"
MIB = 1 << 20
# Measured with a script of its own around the same trainer, on 2026-11-29 (issue 51).
OFF, RECOMPUTED, SWAPPED = 9110, 6133, 6656


def answer(capsys, *words: str) -> dict:
    assert cli.main(["dryrun", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def changed(recompute: dict, folder: Path) -> str:
    """The file with a section `recompute` in place of its swap."""
    data = yaml.safe_load(SMALL.read_text("utf-8")) | {"recompute": recompute}
    del data["swap"]
    file = folder / "small.yaml"
    file.write_text(yaml.safe_dump(data), encoding="utf-8")
    return str(file)


def test_off_and_swap_need_what_the_trainer_needed_alone(capsys):
    swapped = answer(capsys, str(SMALL), "--against", "none")
    off, (stage,) = swapped["against"], swapped["stages"]
    assert swapped["used_peak_bytes"] / MIB == pytest.approx(SWAPPED, rel=0.005)
    assert off["used_peak_bytes"] / MIB == pytest.approx(OFF, rel=0.005)
    (run,) = stage["runs"]
    assert run["copies_out"] == run["copies_back"] == 7 * 24
    assert run["copied_bytes"] / MIB == pytest.approx(2902, rel=0.005)
    assert run["set_lines"] == [f"Set layer swap at layer {index}" for index in range(7)]


def test_the_own_executor_swaps_from_the_first_pass_with_the_schedule_of_a_dry_run(tmp_path, capsys):
    """All 8 layers, the last one too; a proof of concept that left the last one had 6406 MiB (issue 51)."""
    data = yaml.safe_load(SMALL.read_text("utf-8")) | {"mindswap": {"swap_engine": "mindswap"}}
    data["swap"]["layer_swap"] = [{"layers": ["0-5"]}, {"layers": ["6-7"], "prefetch": 2}]
    file = tmp_path / "own.yaml"
    file.write_text(yaml.safe_dump(data), encoding="utf-8")
    swapped = answer(capsys, str(file))
    assert swapped["used_peak_bytes"] / MIB < 6450
    (run,) = swapped["stages"][0]["runs"]
    assert run["copies_out"] == run["copies_back"] > 150
    assert run["copied_bytes"] / MIB == pytest.approx(3100, rel=0.05)
    assert any("swapped 3 passes, all as predicted" in note for note in swapped["notes"])


def test_each_pipeline_stage_runs_with_its_micro_batches_in_flight(tmp_path, capsys):
    """Off the stages need 1117 and 1709 MiB (2026-11-30); the swap is that of the 4 layers, 2 in a stage."""
    cases = yaml.safe_load((SMALL.parents[1] / "benchmarks/dryrun/trainer_set.yaml").read_text("utf-8"))
    data = cases["base"] | {"mindswap": {"swap_engine": "mindswap"}}
    data["model"] |= cases["models"]["deepseek3"] | {"num_hidden_layers": 4}
    data["parallelism"]["pipeline_parallel"] = 2
    data["training"]["global_batch_size"] = 4
    data["swap"] = {"enable": True, "default_prefetch": 1, "layer_swap": [{"layers": ["0-3"]}]}
    file = tmp_path / "stages.yaml"
    file.write_text(yaml.safe_dump(data), encoding="utf-8")
    swapped = answer(capsys, str(file))
    stages = swapped["stages"]
    assert [stage["stage"] for stage in stages] == [0, 1]
    assert [stage["layer_indices"] for stage in stages] == [[0, 1], [2, 3]]
    peaks = [stage["used_peak_bytes"] / MIB for stage in stages]
    assert peaks == [pytest.approx(823, rel=0.03), pytest.approx(1371, rel=0.03)]
    assert swapped["used_peak_bytes"] / MIB == pytest.approx(peaks[1], abs=1)
    # What the swap leaves of two passes in flight, and of one with the loss.
    assert [stage["kept_bytes"] / MIB for stage in stages] == [pytest.approx(47, abs=2), pytest.approx(411, abs=8)]
    assert all(stage["phase_peaks"]["forward"] > stage["before_bytes"] for stage in stages)
    assert any("stage 1, the one with the highest peak" in note for note in swapped["notes"])
    for section, of_stages in (({}, peaks), ({"swap": {"enable": False}}, (1117, 1709))):  # off: 2026-11-30
        file.write_text(yaml.safe_dump(data | section), encoding="utf-8")
        simulated = [peak / MIB for peak in load_step(str(file)).simulate().simulated.peaks_bytes]
        assert simulated == [pytest.approx(size, rel=0.03) for size in of_stages]
    assert any("swapped 9 passes, all as predicted" in note for note in swapped["notes"])
    assert any("3 of 4 micro-batches ran" in note for note in swapped["notes"])
    assert not any("left out" in note for note in swapped["notes"])


def test_full_recompute_needs_what_the_trainer_needed_alone(tmp_path, capsys):
    recomputed = answer(capsys, changed({"mode": "full", "full_recompute_layer": ["0-7"]}, tmp_path))
    assert len(recomputed["stages"][0]["runs"][0]["set_lines"]) == 8
    assert recomputed["used_peak_bytes"] / MIB == pytest.approx(RECOMPUTED, rel=0.005)


def test_layers_are_on_a_straight_line(capsys):
    extrapolated = answer(capsys, str(SMALL), "--layers", "4,6", "--cards", "1")
    assert extrapolated["stages"][0]["is_exact"] is False
    assert extrapolated["used_peak_bytes"] / MIB == pytest.approx(SWAPPED, rel=0.005)


# With experts, layers for multi-token prediction, and Muon; one whose sequence is no multiple of its experts.
@pytest.mark.parametrize(
    "name", ["deepseek3/pretrain_deepseek3_1b_8p_pynative.yaml", "deepseek4/pretrain_deepseek4_pro.yaml"]
)
def test_files_that_mindformers_ships(name, capsys):
    (file,) = (path.locate() for path in files("mindformers") or () if str(path) == f"configs/{name}")
    cli.main(["dryrun", str(file), "--layers", "2", "--cards", "8", "--json"])  # whether it fits is not the question
    data = json.loads(capsys.readouterr().out)
    (stage,), rank = data["stages"], data["computed_rank"]
    parts = rank["weight_bytes"] + rank["state_bytes"] + rank["gradient_bytes"] + rank["gathered_bytes"]
    assert 8 * rank["weight_bytes"] == pytest.approx(stage["parts"]["weights"], rel=1e-3)
    assert parts < rank["max_peak_bytes"] < 0.9 * data["used_peak_bytes"]
    assert len(stage["added_by_layer"]) == 3 and min(stage["phase_peaks"].values()) > stage["before_bytes"]


def test_what_the_stand_in_does_not_do_is_refused_by_name(tmp_path, capsys):
    section = {"mode": "full", "full_recompute_layer": ["0-1"], "exclude_op": {"mlp": ["0-1"]}}
    assert cli.main(["dryrun", changed(section, tmp_path), "--layers", "2"]) == 1
    error = capsys.readouterr().err
    assert "recompute.exclude_op" in error and "stand-in for HyperParallel" in error


def test_a_trace_has_the_operators_of_ascend_and_plans_the_file(tmp_path, capsys):
    output = tmp_path / "step.json"
    assert cli.main(["trace", str(SMALL), "-o", str(output), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["device"], made["num_layers"]) == ("Ascend", 8)
    step = load_trace(output.read_text("utf-8"), str(output))
    layer = [operator for operator in step.trace.operators if operator.layer_index == 1 and operator.is_forward]
    names = Counter(operator.name for operator in layer)
    assert names["FlashAttentionScore"] == 1 and names["MatMulExt"] == names["RmsNorm"] == 4
    assert {"self_attention.core_attention.flash_attention", "mlp.linear_fc1.MatMulExt"} <= {
        ".".join(operator.path) for operator in layer
    }
    # Weights of a layer in bfloat16, of which autograd saves transposed views, stay on the device.
    weights = [storage.size_bytes for storage in step.trace.storages if storage.protection == "weight"]
    assert sum(weights) / 8 == pytest.approx(26 * MIB, rel=0.001)
    assert not any(value.copy_of for operator in step.trace.operators for value in operator.inputs)
    planned = tmp_path / "planned.yaml"
    words = ["plan", str(SMALL), "--trace", str(output), "--memory", "6.1GiB", "-o", str(planned)]
    assert cli.main([*words, "--no-verify"]) == 0  # tests/features/plan/test_trainer_plan.py dry runs one
    assert yaml.safe_load(planned.read_text("utf-8"))["recompute"]["mode"] in ("full", "select")
