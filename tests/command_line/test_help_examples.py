"""The examples of `--help` are commands that run: on the small Llama, in a folder with the files that they name."""

import io
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mindswap import cli
from mindswap.cli import COMMANDS
from mindswap.features.run.adaptive_options import split_words
from mindswap.runtime.attempt.state import StateFile
from mindswap.runtime.training_command import ADAPTIVE_FLAG
from tests.command_line.option_cases import ROOT
from tests.command_line.test_every_option import OF_2X, budgets, little_effort, parser_of, prepared, trace  # noqa: F401 fixtures
from tests.features.adaptive.test_status_cli import STATE
from tests.features.calibrate.test_cli import COPIES, KERNELS, STEPS
from tests.simulator.cost.profiles import SUMMARY_COLUMNS, new_copy, summary, write_csv, write_json, write_profile

CONFIGS = (
    "llama2_7b.yaml", "llama2_13b.yaml", "a.yaml", "b.yaml", "my.yaml", "configs/llama2_7b/pretrain_llama2_7b.yaml",
    "configs/llama2_7b/case1_default_swap.yaml",
)  # fmt: skip
# These need no network, but for the options that do.
PURE = ("check", "explain", "convert", "doctor", "calibrate", "example", "status")
NETWORK = ("--network", "--trace")
# These take seconds of a step that is in the cache. Others compile, train or dry run: `option_cases` has their options.
QUICK = ("simulate", "compare", "plan", "check", "convert")
SLOW = ("--dry-run", "--sweep", "auto", "--objective")


def examples() -> Iterator[str]:
    """Every `mindswap ...` of the examples; what is piped into one stands before it."""
    for command in COMMANDS:
        text = parser_of(command).epilog or ""
        assert text.startswith("examples:\n"), command
        lines = text.partition("\n\n")[0].replace("\\\n", " ").splitlines()[1:]
        for line in lines:
            line = re.split(r"  +# |(?<=\S)   +", line.strip())[0]
            yield from (part.strip() for part in line.split(";"))


def words_of(example: str) -> list[str]:
    """Of the command line itself, from `mindswap` on."""
    before, pipe, behind = example.partition(" | mindswap ")
    words = shlex.split(f"mindswap {behind}" if pipe else before.partition(" | ")[0])
    return words[words.index("mindswap") :] if "mindswap" in words else words


EXAMPLES = list(dict.fromkeys(examples()))


def test_each_command_has_an_example_of_its_own():
    assert {words[1] for words in map(words_of, EXAMPLES) if words[0] == "mindswap"} >= {*COMMANDS}


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_a_command_line(example):
    words = words_of(example)
    if ADAPTIVE_FLAG in words:
        args, command = split_words(words[2:])
        assert args.memory and command[0] == "msrun"
    elif words[0] == "mindswap":
        behind = words[2:] if words[1] != "run" else ["--", *words[2:]]  # as cli.main: all of it is of the training
        assert parser_of(words[1]).parse_args(behind)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The working directory, with what examples name."""
    config = prepared(tmp_path, "llama")["config"]
    for name in CONFIGS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(config, tmp_path / name)
    shutil.copy(tmp_path / "counts.yaml", tmp_path / "old.yaml")
    shutil.copy(tmp_path / "launch.sh", tmp_path / "pretrain_gpt.sh")
    (tmp_path / "config_2x.yaml").write_text(f"training: {{}}\nparallelism: {{}}\n{OF_2X}", "utf-8")
    write_profile(tmp_path / "profile", KERNELS, COPIES, STEPS, rank="host_20260101_ascend_ms")
    of_cann = tmp_path / "PROF_000001_20260101" / "mindstudio_profiler_output"
    write_csv(of_cann / "op_summary_20260101.csv", SUMMARY_COLUMNS, [summary(entry) for entry in KERNELS])
    write_json(of_cann / "msprof_20260101.json", [new_copy(0, 220, 2 * 10**6), new_copy(1000, 320, 3 * 10**6)])
    (tmp_path / "output" / "msrun_log").mkdir(parents=True)
    StateFile(tmp_path / "output" / "msrun_log").save(STATE, "key")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(example: str, capsys, monkeypatch, **replaced: str) -> None:
    """It is done, or says of the file or the machine what is not as it should be."""
    before = example.partition(" | ")[0].split()
    if before[0] == "cat":
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path(before[1]).read_bytes())))
    words = [replaced.get(word, word) for word in words_of(example)[1:]]
    if words[-2:] == ["--device", "device.yaml"]:
        shutil.copy(ROOT / "mindswap" / "data" / "hardware" / "generic.yaml", "device.yaml")
    code = cli.main(words)
    shown = capsys.readouterr()
    assert code in (0, 1) and "a bug" not in shown.err and "usage:" not in shown.err, shown.err
    assert "mindswap: error" not in shown.err, shown.err


def chosen(commands: tuple[str, ...], needs_network: bool) -> list[str]:
    found = []
    for example in EXAMPLES:
        words = words_of(example)
        is_network = any(option in words for option in NETWORK) or "step.json" in words or words[1] not in PURE
        if words[0] == "mindswap" and words[1] in commands and is_network == needs_network:
            found += [] if set(SLOW) & set(words) else [example]
    return found


@pytest.mark.parametrize("example", chosen(PURE, needs_network=False))
def test_an_example_without_a_network_runs(example, folder, capsys, monkeypatch):
    if words_of(example)[:2] == ["mindswap", "example"]:
        shutil.rmtree("trial", ignore_errors=True)
    run(example, capsys, monkeypatch)


@pytest.mark.mindspore
@pytest.mark.parametrize("example", chosen(QUICK, needs_network=True))
def test_an_example_on_a_captured_step_runs(example, folder, trace, budgets, capsys, monkeypatch):  # noqa: F811
    """Within less memory than `--help` has, so that there is something to plan."""
    if "simulate" not in words_of(example) or "step.json" in words_of(example)[2]:
        shutil.copy(trace, "step.json")
    tight = budgets["llama"] if "config_2x.yaml" not in example else "1GiB"
    run(example, capsys, monkeypatch, **{"40GiB": tight, "8MiB": "1GiB"})
