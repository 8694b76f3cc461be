"""`mindswap simulate` and `mindswap compare` on the small Llama; wrong input without MindSpore."""

import json
from pathlib import Path

import pytest
import yaml

from mindswap import cli
from mindswap.features.compare import other_models
from tests import forked
from tests.adapters.edits import edited
from tests.builders import document
from tests.schema import answer_of

ROOT = Path(__file__).resolve().parents[3]
CASE = ROOT / "configs" / "llama2_7b" / "cpu" / "case1_default_swap.yaml"


@pytest.fixture
def write(tmp_path):
    def write_file(edits, name="x.yaml"):
        path = tmp_path / name
        path.write_text(yaml.safe_dump(edited(yaml.safe_load(CASE.read_text()), edits)))
        return str(path)

    return write_file


@pytest.fixture
def run(capsys):
    def run_command(*arguments):
        code = cli.main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert "a bug" not in captured.err and "Traceback" not in captured.err, captured.err
        return code, captured.out, captured.err

    return run_command


# -- wrong input: found before anything is built ---------------------------------------------------


@pytest.mark.parametrize("command", ["simulate", "compare"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--device", "atlas_900"), "atlas_900"),
        (("--d2h", "20Gb/s"), "GB/s"),
        (("--memory", "0GiB"), "memory"),
        (("--memory", "0"), "memory"),
        (("--compute-fraction", "1.5"), "compute"),
    ],
)
def test_wrong_options_are_one_message(run, command, options, words):
    code, out, err = run(command, CASE, *options)
    assert (code, out) == (1, "")
    assert words in err and len(err.strip().splitlines()) <= 3


@pytest.mark.parametrize(
    ("command", "option"), [("simulate", "--trace"), ("simulate", "--html"), ("compare", "--plot")]
)
def test_an_output_folder_that_is_missing(run, command, option):
    code, out, err = run(command, CASE, option, "nowhere/step.x")
    assert (code, out) == (1, "") and "nowhere" in err


@pytest.mark.parametrize("command", ["simulate", "compare"])
@pytest.mark.parametrize(
    ("edits", "words"),
    [
        ({"mindswap.d2h": "fast"}, "mindswap.d2h"),
        ({"mindswap.memory": "54"}, "mindswap.memory"),
        ({"mindswap.device": "atlas_900"}, "mindswap.device"),
        ({"mindswap.d2hh": "20GB/s"}, "mindswap.d2hh"),
        ({"swap_config.default_prefetch": 0}, "bad-prefetch"),
    ],
)
def test_wrong_configurations_are_shown_as_problems(run, write, command, edits, words):
    code, out, err = run(command, write(edits))
    assert (code, out) == (1, "")
    assert words in err and "x.yaml:" in err


def test_a_missing_configuration_and_an_unknown_baseline(run):
    code, _, err = run("simulate", "nowhere.yaml")
    assert code == 1 and "nowhere.yaml" in err
    code, _, err = run("compare", CASE, "recompute-all")
    assert code == 1 and "recompute-all" in err
    code, _, err = run("compare", "none", CASE)
    assert code == 1 and "name a configuration before it" in err


def test_check_judges_the_figures_of_the_device(run, write):
    code, out, _ = run("check", "--table", write({"mindswap.d2h": "fast", "mindswap.memory": "54GiB"}))
    assert code == 1 and "mindswap.d2h: 'fast' cannot be used here" in out and out.count("[wrong-type]") == 1
    # Also with swap off; a key that is unknown is said once.
    path = write({"mindswap.h2d": 7, "mindswap.memry": "54GiB", "swap_config.swap": False})
    code, out, _ = run("check", "--table", path)
    assert code == 1 and "mindswap.h2d" in out and out.count("mindswap.memry") == 1


@pytest.mark.parametrize("command", ["simulate", "compare"])
def test_help_ends_with_examples(run, command):
    code, out, _ = run(command, "--help")
    assert code == 0 and f"\nexamples:\n  mindswap {command} " in out
    assert "--d2h 20GB/s" in out


# -- end to end ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """One capture, kept in a cache of its own, for all that the commands write."""
    folder = tmp_path_factory.mktemp("simulate")
    import os

    environment = {**os.environ, "MINDSWAP_CACHE": str(folder / "cache")}

    def mindswap(*arguments):
        command = ["-m", "mindswap", *map(str, arguments)]
        return forked.run(command, check=True, cwd=folder, env=environment).stdout

    return {
        "folder": folder,
        "text": mindswap("simulate", CASE, "--trace", "step.json", "--html", "report.html"),
        "json": answer_of(mindswap("simulate", "--json", CASE)),
        "slow": answer_of(mindswap("simulate", "--json", CASE, "--d2h", "1MB/s", "--h2d", "1MB/s")),
        "compare": mindswap("compare", CASE, "none", "full-recompute", "select-recompute", "--plot", "compare.png"),
        "compare json": answer_of(mindswap("compare", "--json", CASE, "none", "full-recompute"))["configurations"],
    }


@pytest.mark.mindspore
def test_text_and_files(outputs):
    text, folder = outputs["text"], outputs["folder"]
    assert text.startswith("simulated step of case1_default_swap on Atlas 800T A2")
    assert "every figure above is simulated" in text
    assert "step time" in text and "peak memory" in text
    assert json.loads((folder / "step.json").read_text())["traceEvents"]
    assert (folder / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert "simulated" in (folder / "report.html").read_text("utf-8").lower()


@pytest.mark.mindspore
def test_json_agrees_with_itself(outputs):
    data = outputs["json"]
    assert data["simulated"] is True
    # 2 samples of 64 tokens on each of 8 cards.
    assert data["tokens_per_s"] == pytest.approx(2 * 64 * 1e9 / data["step_time_ns"])
    assert outputs["slow"]["step_time_ns"] > data["step_time_ns"]


@pytest.mark.mindspore
def test_compare(outputs):
    rows = {row["name"]: row for row in outputs["compare json"]}
    assert list(rows) == ["case1_default_swap", "none", "full-recompute"]
    assert all(row["simulated"] for row in rows.values())
    assert rows["full-recompute"]["peak_bytes"] < rows["none"]["peak_bytes"]
    assert rows["full-recompute"]["step_time_ns"] > rows["none"]["step_time_ns"]
    assert rows["case1_default_swap"]["step_time_ns"] == outputs["json"]["step_time_ns"]
    assert outputs["compare"].startswith("simulated on Atlas 800T A2")
    table = outputs["compare"].split("\n\n")[1].splitlines()[2:]
    assert [line.split()[0] for line in table] == [
        "case1_default_swap", "none", "full-recompute", "select-recompute",
    ]  # fmt: skip


# Compare.


LLAMA = document("model: {arch: {type: LlamaForCausalLM}, model_config: {num_layers: 32, hidden_size: 4096}}")
SHORT = document("model: {arch: {type: LlamaForCausalLM}, model_config: {num_layers: 28, hidden_size: 4096}}")
QWEN = document("model: {model_config: {model_type: qwen3, num_hidden_layers: 32}}")


def test_another_model_than_the_first_is_named():
    assert other_models([("a", LLAMA), ("b", SHORT)]) == [
        "b is another model than a (layers: 28, not 32): their step times are of different work"
    ]


def test_legacy_and_newer_configurations_are_compared_by_what_both_state():
    (note,) = other_models([("a", LLAMA), ("b", QWEN)])
    assert note.startswith("b is another model than a (model: 'qwen3', not 'LlamaForCausalLM'):")


def test_the_same_model_under_two_policies_is_not():
    assert other_models([("a", LLAMA), ("b", LLAMA)]) == []
    assert other_models([("a", LLAMA)]) == []
