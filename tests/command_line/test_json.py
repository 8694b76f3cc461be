"""One contract for machines: every `--json` is one object of one outer shape, on success and on error."""

import json
from argparse import ArgumentTypeError

import pytest

from mindswap import cli
from mindswap.command_line.options import MAX_LAYERS, number_from
from mindswap.report.problems import answer_text
from tests.command_line.test_messages import options_of
from tests.schema import FOLDER, answer_of, load, misfits

GOOD = """\
context: {mode: 0, memory_optimize_level: "O0"}
model: {arch: {type: LlamaForCausalLM}, model_config: {type: LlamaConfig, num_layers: 4, use_flash_attention: True}}
swap_config: {swap: True, layer_swap: [{layers: [0, 3], backward_prefetch: 20}]}
"""
OFF = GOOD[: GOOD.index("swap_config")] + "recompute_config: {recompute: [2]}\n"


def with_json():
    """Commands that have the option."""
    return [name for name in cli.COMMANDS if "--json" in options_of(name)]


@pytest.fixture
def ask(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.yaml").write_text(GOOD)
    (tmp_path / "wrong.yaml").write_text(GOOD.replace("20", "0"))
    (tmp_path / "counts.yaml").write_text(OFF)
    (tmp_path / "broken.yaml").write_text("swap_config: [")

    def ask(*words):
        """Exit code and the answer, which fits its schema."""
        code = cli.main([*words, "--json"])
        answer = answer_of(capsys.readouterr().out)
        assert answer["ok"] == (code == 0)
        return code, answer

    return ask


def test_every_command_with_json_has_a_schema():
    assert {path.stem for path in FOLDER.iterdir()} == {"outer", *with_json()}
    for name in with_json():
        assert load(f"{name}.json")["properties"]["schema"] == {"const": f"mindswap.{name}"}


@pytest.mark.parametrize("name", with_json())
def test_wrong_options_are_an_answer(ask, name):
    code, answer = ask(name, "--no-such-option")
    assert (code, answer["schema"], answer["ok"]) == (1, f"mindswap.{name}", False)
    assert answer["error"]
    assert "usage:" not in answer["error"]


def test_an_unknown_command_is_an_answer(ask):
    code, answer = ask("chek")
    assert (code, answer["schema"]) == (1, "mindswap")


@pytest.mark.parametrize("name", ["check", "explain", "verify", "inspect", "simulate", "plan", "compare"])
def test_a_wrong_configuration_is_an_answer(ask, name):
    for file, rule in (("wrong.yaml", "bad-prefetch"), ("broken.yaml", "yaml-syntax")):
        code, answer = ask(name, file)
        assert code == 1
        assert rule in [problem["rule"] for problem in answer["problems"]]
        assert (answer["error"] is None) == (name == "check")  # which is asked for problems


@pytest.mark.parametrize(
    "words",
    [
        ("check", "x.yaml"),
        ("explain", "x.yaml"),
        ("explain", "--paths", "x.yaml"),
        ("convert", "--to", "index", "counts.yaml"),
        ("doctor",),
    ],
)
def test_a_good_answer_fits_too(ask, words):
    code, answer = ask(*words)
    assert answer["error"] is None
    assert code == 0 or words == ("doctor",)  # what it finds is of this machine


def test_a_bug_is_an_answer(ask, monkeypatch):
    monkeypatch.setattr("mindswap.features.check.cli.run", lambda args: 1 / 0)
    code, answer = ask("check", "x.yaml")
    assert (code, answer["error"]) == (3, "division by zero")


def test_a_misfit_is_seen():
    """The judge itself: a missing key, a wrong type, a wrong item, a keyword that it does not know."""
    schema = load("compare.json")
    good = {"schema": "mindswap.compare", "version": 1, "ok": True, "error": None, "problems": [], "configurations": []}
    assert misfits(good, schema) == []
    assert misfits({**good, "error": "x", "ok": False}, schema) == []
    assert misfits({key: value for key, value in good.items() if key != "configurations"}, schema) != []
    assert misfits({**good, "ok": 1}, schema) != []
    assert misfits({**good, "configurations": [{"name": "a"}]}, schema) != []
    assert misfits(json.loads("{}"), {"minLength": 3}) == ["$: keyword minLength"]


def test_data_cannot_say_what_the_outer_shape_says():
    data = {"ok": False, "schema": "x", "version": 9, "error": "x", "problems": [1], "more": 2}
    answer = json.loads(answer_text("check", data, True))
    outer = {"schema": "mindswap.check", "version": 1, "ok": True, "error": None}
    assert answer == {**outer, "problems": [1], "more": 2} and list(answer)[:4] == list(outer)


def test_ranges_of_numbers():
    """Layers are looked at one by one; steps, restarts and workers are only counted."""
    assert number_from(0)("999999") == 999_999 and number_from(1, MAX_LAYERS)("10000") == 10_000
    for parse, text in ((number_from(0), "1000000"), (number_from(3), "2"), (number_from(1, MAX_LAYERS), "10001")):
        with pytest.raises(ArgumentTypeError, match="expected an integer between"):
            parse(text)


def test_an_empty_name_of_a_file_is_none(tmp_path, capsys):
    """As of a variable of the shell that is not set: the terminal, as without the option."""
    (tmp_path / "x.yaml").write_text(OFF.replace("[2]", "True"))
    words = ["convert", str(tmp_path / "x.yaml"), "--to", "2.x"]
    assert cli.main(words) == 0
    expected = capsys.readouterr().out
    assert cli.main([*words, "-o", ""]) == 0
    assert capsys.readouterr().out == expected != ""
