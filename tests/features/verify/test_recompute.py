"""`mindswap verify` with swap off: MindFormers' own recompute in the graph, against recompute_config."""

import json
import os
from pathlib import Path

import pytest
import yaml

from mindswap.cli import main
from mindswap.features import verify
from tests import forked
from tests.schema import answer_of

ROOT = Path(__file__).resolve().parents[3]
CPU_CASE = ROOT / "configs" / "llama2_7b" / "cpu" / "case4_swap_and_recompute.yaml"


def write(folder, recompute, num_layers=8, stages=2, chunks=2, **sections):
    """The small Llama with its layers on stages and chunks, and swap off."""
    config = yaml.safe_load(CPU_CASE.read_text())
    config["model"]["model_config"] |= {"num_layers": num_layers, "pp_interleave_num": chunks}
    config["parallel_config"] |= {"data_parallel": 2, "pipeline_stage": stages, "micro_batch_num": 2}
    pipeline = {"pipeline_interleave": True, "pipeline_scheduler": "1f1b"}
    config["parallel"] |= {"parallel_mode": 1, "pipeline_config": pipeline}
    config |= {"swap_config": {"swap": False}, "recompute_config": recompute, **sections}
    path = folder / "x.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


def run(path, *options):
    command = ["-m", "mindswap", "verify", str(path), *options]
    environ = os.environ | {"MINDSWAP_CACHE": str(path.parent / "cache")}
    return forked.run(command, cwd=ROOT, env=environ, timeout=1800)


# Nothing is compiled here.


@pytest.fixture
def answers(tmp_path, monkeypatch, capsys):
    """Exit code of `verify` with an answer put in by hand, and how often it was asked for."""
    calls = []
    monkeypatch.setenv("MINDSWAP_CACHE", str(tmp_path / "cache"))

    def answer(*arguments):
        calls.append(arguments)
        return verify.Verification(False, "the graph", {"ok": False, "layers": [{"layer": 0}]})

    monkeypatch.setattr(verify, "_answer_recompute", answer)

    def ask(text, *options):
        path = tmp_path / "x.yaml"
        path.write_text(text)
        return main(["verify", str(path), *options]), capsys.readouterr().out, len(calls)

    return ask


TEXT = "model: {model_config: {num_layers: 4}}\nrecompute_config: {recompute: %s}\n"


def test_asking_twice_compiles_once(answers):
    assert answers(TEXT % "True") == (1, "the graph\n", 1)
    assert answers(TEXT % "True") == (1, "the graph\n", 1)
    code, out, calls = answers(TEXT % "True", "--json")
    assert (code, answer_of(out)["ok"], answer_of(out)["layers"], calls) == (1, False, [{"layer": 0}], 1)
    assert answers(TEXT % "[1]")[2] == 2
    assert answers(TEXT % "[1]", "--no-cache")[2] == 3


def test_where_nothing_is_recomputed_nothing_is_compiled(answers):
    assert answers(TEXT % "False") == (0, "swap is off: nothing to verify in the graph\n", 0)
    _, out, calls = answers(TEXT % "[0]", "--json")
    assert (answer_of(out)["ok"], answer_of(out)["layers"], calls) == (True, [], 0)


def test_what_stops_mindformers_stops_verify(answers, capsys):
    assert answers(TEXT % "[1, 1]") == (1, "", 0)
    assert answers("recompute_config: {recompute: True}") == (1, "", 0)


# For real.


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    # 2 chunks on 2 stages, 2 layers each: 0-1 and 2-3, then 4-5 and 6-7.
    recompute = {"recompute": [1, 0], "select_recompute": {"feed_forward": [[1, 1], [2, 0]]}}
    return run(write(tmp_path_factory.mktemp("verify"), recompute), "--json")


@pytest.mark.mindspore
def test_the_layers_that_mindformers_recomputes_are_those_of_the_counts(report):
    data = answer_of(report.stdout)
    assert (report.returncode, data["ok"]) == (0, True), report.stdout
    # Whole: 1 of stage 0. feed_forward: 1 of each stage in chunk 0, 2 of stage 0 in chunk 1; layer 0 is whole.
    assert [layer["is_whole"] for layer in data["layers"]] == [True] + [False] * 7
    in_part = [layer["layer"] for layer in data["layers"] if layer["num_recomputed"] and not layer["is_whole"]]
    assert in_part == [2, 4, 5]


@pytest.mark.mindspore
def test_the_bytes_are_those_of_the_operators(report):
    """A layer keeps 833 KiB, its input of (2, 64, 64) in float32 32 KiB: see test_verify.

    feed_forward keeps four times 96 KiB of 833 (w1, silu, w3, and their product).
    """
    layers = json.loads(report.stdout)["layers"]
    assert {layer["kept_before_bytes"] for layer in layers} == {833 * 1024}
    kept = [layer["kept_bytes"] // 1024 for layer in layers]
    part = 833 - 4 * 96
    assert kept == [32, 833, part, 833, part, part, 833, 833]


@pytest.mark.mindspore
def test_a_default_without_effect_is_not_as_asked(tmp_path):
    """In the legacy Llama, backward keeps the Reshape behind silu and mul, so nothing of them runs again."""
    result = run(write(tmp_path, {"select_recompute": True}, num_layers=2, stages=1, chunks=1))
    assert result.returncode == 1, result.stderr
    assert "without effect: 'feed_forward.mul': backward recomputes none of these operators" in result.stdout
    assert "does NOT follow recompute_config" in result.stdout


@pytest.mark.mindspore
def test_one_rank_shows_the_layers_of_its_stage(tmp_path):
    """2 ranks to a stage: rank 0 has layers 0 and 1, of which nothing is asked, rank 2 has layers 2 and 3."""
    swap = {"swap": True, "layer_swap": [{"backward_prefetch": 3, "layers": [3]}]}
    path = write(tmp_path, {"recompute": False}, num_layers=4, chunks=1, swap_config=swap)
    for rank, expected in ("0", [(0, False), (1, False)]), ("2", [(2, False), (3, True)]):
        result = run(path, "--rank", rank, "--json")
        assert result.returncode == 0, result.stderr
        layers = json.loads(result.stdout)["layers"]
        assert [(layer["layer"], layer["num_pairs"] > 0) for layer in layers] == expected


ACROSS = (
    r"self_attention\.(split_qkv|reshape_concat|reshape)",
    r"self_attention\.linear_qkv\.(matmul|reshape)",
    r"self_attention\.k_layernorm\.cast",
)


@pytest.mark.mindspore
@pytest.mark.parametrize(("whole", "compiles"), [([0], False), ([], True)])
def test_a_newer_model_is_told_what_does_not_compile_together(whole, compiles, tmp_path):
    """Whole layers beside operators that read what another cell with weights gives, in two more layers."""
    config = yaml.safe_load((ROOT / "tests" / "data" / "qwen3_small.yaml").read_text())
    config["recompute_config"] = {"recompute": whole, "select_recompute": {key: [1, 2] for key in ACROSS}}
    config["swap_config"] = {"swap": True, "op_swap": []}
    config["model"]["model_config"]["compute_dtype"] = "bfloat16"
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    done = run(path, "--brief")
    assert ("multiple U Monad" in done.stderr) != compiles
    assert ("either whole layers and cells, or operators" in done.stderr) != compiles
