"""Every option of every command runs on a real model, and so do the examples of `--help`.

The options are read from the parsers themselves: one without a case in `option_cases` fails.
"""

import argparse
import ast
import json
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from mindswap import cli
from mindswap.cli import COMMANDS, build_parser
from mindswap.command_line.parser import Parser
from mindswap.features.run import adaptive_options as adaptive
from mindswap.runtime.attempt.state import StateFile
from tests import forked
from tests.adapters.edits import edited
from tests.command_line.option_cases import CASES, DRY_RUN, ELSEWHERE, MODELS, ONE_MODEL, PROOF, ROOT, TRACE, Case
from tests.features.adaptive.test_status_cli import STATE
from tests.features.calibrate.test_cli import COPIES, KERNELS, STEPS
from tests.runtime.text.test_load_tokenizer import make_json
from tests.schema import answer_of
from tests.simulator.cost.profiles import write_profile

ALL_CASES = (*CASES, TRACE, DRY_RUN, PROOF)
OF_2X = "model: {num_hidden_layers: 4}\nrecompute: {mode: full, full_recompute_layer: [0, 2]}\n"
LAUNCH_SCRIPT = "torchrun pretrain_gpt.py \\\n    --recompute-activations\n"


# -- which options there are, and which cases use them ---------------------------------------------


@cache
def parser_of(command: str) -> argparse.ArgumentParser:
    """That of a command; "adaptive" has the options of `mindswap run --adaptive-memory-optimization`."""
    if command == "adaptive":
        parser = Parser(prog="mindswap run")
        adaptive.add_arguments(parser)
        return parser
    subparsers = next(
        action for action in build_parser(command)._actions if isinstance(action, argparse._SubParsersAction)
    )
    return subparsers.choices[command]


def options_of(command: str) -> Iterator[str]:
    """Names of the options; with each value where there is a choice of some."""
    for action in parser_of(command)._actions:
        if action.option_strings and action.dest != "help":
            name = action.option_strings[-1]
            yield from (f"{name}={choice}" for choice in action.choices) if action.choices else (name,)


def options_in(words: list[str]) -> set[str]:
    """The same of those that a command line has."""
    found = set()
    by_word = {word: action for action in parser_of(words[0])._actions for word in action.option_strings}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word in by_word:
            name = by_word[word].option_strings[-1]
            found.add(f"{name}={following}" if by_word[word].choices else name)
    return found


def used_by(case: Case) -> set[str]:
    words = case.words.split()
    return {f"{words[0]} {option}" for option in options_in(words)}


def elsewhere() -> dict[str, str]:
    """Command and option -> the test that runs it."""
    return {
        f"{command} {option}": test
        for key, test in ELSEWHERE.items()
        for command, *options in [key.split()]
        for option in options
    }


EVERY_OPTION = {f"{command} {option}" for command in (*COMMANDS, "adaptive") for option in options_of(command)}


def test_every_option_has_a_case():
    used = set().union(*map(used_by, ALL_CASES))
    assert sorted(EVERY_OPTION - used - elsewhere().keys()) == []


def test_no_option_has_a_case_that_is_not_one():
    assert sorted(elsewhere().keys() - EVERY_OPTION) == []
    assert sorted(elsewhere().keys() & set().union(*map(used_by, ALL_CASES))) == []


@pytest.mark.parametrize("option", sorted(elsewhere()))
def test_what_is_run_elsewhere_is_in_that_test(option):
    path, _, name = elsewhere()[option].partition("::")
    text = (ROOT / path).read_text("utf-8")
    functions = {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}
    assert name in functions
    command, option = option.partition("=")[0].split()
    spellings = next(action.option_strings for action in parser_of(command)._actions if option in action.option_strings)
    assert any(f'"{spelling}"' in text or f"{spelling}=" in text or f"{spelling} " in text for spelling in spellings)


# Commands whose cases are on all models, as far as they are run here.
PAIRED = ("check", "explain", "simulate", "compare", "plan", "convert")


def test_options_meet_every_model():
    """But for those of `ONE_MODEL`, and those that a test elsewhere runs."""
    pairs = {(option, model) for case in CASES for option in used_by(case) for model in case.models}
    wanted = {option for option in EVERY_OPTION - elsewhere().keys() if option.split()[0] in PAIRED}
    alone = {f"{command} {option}" for key in ONE_MODEL for command, *options in [key.split()] for option in options}
    missing = {option for option in wanted for model in MODELS if (option, model) not in pairs}
    assert sorted(missing) == sorted(alone)


# -- the cases -------------------------------------------------------------------------------------


def prepared(folder: Path, name: str) -> dict[str, object]:
    """The files that cases name."""
    model = MODELS[name]
    config, copy, counts, of_2x = (folder / f"{stem}.yaml" for stem in ("config", "copy", "counts", "of_2x"))
    data = edited(yaml.safe_load(model.file.read_text("utf-8")), model.edits)
    config.write_text(yaml.safe_dump(data) if model.edits else model.file.read_text("utf-8"), "utf-8")
    shutil.copy(config, copy)
    counts.write_text(
        yaml.safe_dump(data | {"recompute_config": {"recompute": [2]}, "swap_config": {"swap": False}}), "utf-8"
    )
    of_2x.write_text(OF_2X, "utf-8")
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(data["model"]["model_config"]), "utf-8")
    (folder / "launch.sh").write_text(LAUNCH_SCRIPT, "utf-8")
    (folder / "text.txt").write_text("Some words of a text, again and again. " * 20, "utf-8")
    (folder / "run").mkdir()
    StateFile(folder / "run").save(STATE, "key")
    write_profile(folder / "profile", KERNELS, COPIES, STEPS)
    return vars(model) | {
        "out": folder, "config": config, "copy": copy, "counts": counts, "of_2x": of_2x,
        "folder": folder / "model", "script": folder / "launch.sh", "text": folder / "text.txt",
        "run_dir": folder / "run", "profile": folder / "profile", "tokenizer": folder / "tokenizer.json",
    }  # fmt: skip


@pytest.fixture(autouse=True)
def little_effort(monkeypatch):
    """A quick search will do: that a plan is found is what a case is about, not which."""
    monkeypatch.setattr("mindswap.planner.solver.fast.MAX_OPERATORS", 60_000)
    monkeypatch.setattr("mindswap.planner.session.NUM_HALVINGS", 2)


@pytest.fixture
def run(tmp_path, capsys):
    """Runs a case: it ends with the exit code of the case, has written what it writes, and nothing is a bug."""

    def run_case(case: Case, name: str, trace: Path | None = None, tight: str = "") -> None:
        places = prepared(tmp_path, name) | {"trace": trace, "tight": tight}
        if "{tokenizer}" in case.words:
            make_json(places["tokenizer"])
        words = [word.format(**places) for word in case.words.split()]
        # A skew of experts is part of the cache key: the network is built, and one process builds one family.
        if case.is_apart or ("--expert-skew" in case.words and case.needs_mindspore):
            done = forked.run(["-m", "mindswap", *words])
            code, shown = done.returncode, SimpleNamespace(out=done.stdout, err=done.stderr)
        else:
            code, shown = cli.main(words), capsys.readouterr()
        assert "a bug" not in shown.err and "Traceback" not in shown.err, shown.err
        assert code in case.codes, shown.out + shown.err
        if "--json" in case.words.split():
            assert answer_of(shown.out)["ok"] == (code == 0)
        assert [file for file in case.writes if not (tmp_path / file).exists()] == []

    return run_case


def cases(needs_mindspore: bool) -> list:
    return [
        pytest.param(case, name, id=f"{name} {' '.join(case.words.split()[:4])}")
        for case in CASES
        for name in case.models
        if case.needs_mindspore == needs_mindspore
    ]


@pytest.mark.parametrize(("case", "name"), cases(needs_mindspore=False))
def test_a_case_runs(case, name, run):
    run(case, name)


@pytest.fixture(scope="module")
def budgets(tmp_path_factory) -> dict[str, str]:
    """Of each model, half-way between the memory of keeping all and that of full recompute.

    Its step is in the cache then, from a process of its own: MindFormers builds one family of models in each.
    """
    found = {}
    for name in MODELS:
        config = prepared(tmp_path_factory.mktemp("captured"), name)["config"]
        done = forked.run(["-m", "mindswap", "compare", "--json", config, "none", "full-recompute"])
        _, most, least = (one["peak_bytes"] for one in answer_of(done.stdout)["configurations"])
        found[name] = f"{(least + most) // 2}B"
    return found


@pytest.fixture(scope="module")
def trace(tmp_path_factory) -> Path:
    """The recorded step: a process of its own, as it leaves MindSpore in PyNative mode."""
    folder = tmp_path_factory.mktemp("trace")
    places = prepared(folder, *TRACE.models)
    done = forked.run(["-m", "mindswap", *(word.format(**places) for word in TRACE.words.split())])
    assert done.returncode == 0, done.stderr
    return folder / "step.json"


@pytest.mark.mindspore
@pytest.mark.parametrize(("case", "name"), cases(needs_mindspore=True))
def test_a_case_on_a_captured_step_runs(case, name, run, budgets, trace):
    run(case, name, trace, budgets[name])


@pytest.mark.mindspore
def test_a_dry_run_runs(run):
    run(DRY_RUN, *DRY_RUN.models)
