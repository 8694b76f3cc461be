"""What a new user met in the first hour, as it was typed; the expectation is what would have helped."""

import re
from pathlib import Path

import pytest
import yaml

from mindswap import cli
from mindswap.features.example import NUM_CHARACTERS

ROOT = Path(__file__).parents[2]
LLAMA = "model: {model_config: {type: LlamaConfig, num_layers: 4}, arch: {type: LlamaForCausalLM}}\n"


@pytest.fixture
def typed(tmp_path, capsys, monkeypatch):
    """Types a command in a folder with `x.yaml`; gives exit code, and what is shown."""
    monkeypatch.chdir(tmp_path)

    def run(text, *words):
        Path("x.yaml").write_text(text)
        try:
            code = cli.main([*words])
        except SystemExit as exit_:
            code = exit_.code
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    return run


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LLAMA + "swap: {swap: True}", ("x.yaml:2:1: error: swap: is not used; it has keys", "write 'swap_config:'")),
        (
            "model:\n  model_config: {num_layers: 4}\n  swap_config: {swap: True}",
            ("x.yaml:3:3: error: model.swap_config: is not used here", "move 'swap_config' to the top level"),
        ),
    ],
    ids=["another name", "below model"],
)
def test_a_section_where_nothing_reads_it(typed, text, said):
    code, shown = typed(text, "check", "x.yaml")
    assert code == 1 and all(part in shown for part in said)


def test_a_tab(typed):
    code, shown = typed("a:\n\tb: 1\n", "check", "x.yaml")
    assert code == 1 and "x.yaml:2:1: error: tab used for indentation" in shown


def test_a_model_without_table_says_what_can_be_done(typed):
    moe = "model: {model_config: {num_layers: 4, expert_num: 8}, arch: {type: FooForCausalLM}}\n"
    code, shown = typed(moe + "swap_config: {swap: True, default_prefetch: 2}", "check", "--table", "x.yaml")
    assert code == 0 and "to check them: run this where MindFormers is installed" in shown and "above" not in shown


def test_layers_the_wrong_way_round(typed):
    code, shown = typed(LLAMA, "inspect", "x.yaml", "--layers", "3-1")
    assert code not in (0, 3) and "'3-1' names no layer; write 1-3" in shown


def test_what_was_written_and_what_to_do_with_it(typed):
    text = LLAMA + "recompute_config: {recompute: [1]}\nparallel_config: {pipeline_stage: 1}"
    code, shown = typed(text, "convert", "x.yaml", "--to", "index", "-o", "y.yaml")
    assert code == 0 and "written: y.yaml; next: mindswap check y.yaml" in shown and Path("y.yaml").exists()


def test_gigabytes_of_the_command_line_are_not_those_of_the_yaml(typed):
    code, shown = typed("", "plan", "--help")
    shown = re.sub(r"\s+", " ", shown)
    assert code == 0 and "GB is 10^9 bytes here, but 58GB in a YAML of MindFormers is 58GiB" in shown


@pytest.mark.parametrize("command", ["plan", "convert", "prepare-data", "calibrate", "trace"])
def test_every_command_that_writes_a_file_takes_o(typed, command):
    code, shown = typed("", command, "--help")
    assert code == 0 and re.search(r"^  -o \S+, --output", shown, re.MULTILINE)


@pytest.mark.parametrize("page", ["rules.md", "rules.zh.md"])
@pytest.mark.parametrize(
    "rule",
    ["yaml-file", "yaml-syntax", "yaml-encoding", "yaml-tag", "convert", "megatron-options", "adaptive-exclusion"],
)
def test_what_no_rule_of_check_says_is_on_the_page_of_rules(page, rule):
    assert f"- `{rule}`" in (ROOT / "docs" / page).read_text("utf-8")


@pytest.mark.parametrize("page", ["troubleshooting.md", "troubleshooting.zh.md"])
@pytest.mark.parametrize("line", ["The input config swap_config is empty.", "initial swap_config from dict"])
def test_lines_of_a_log_that_a_user_greps(page, line):
    assert line in (ROOT / "docs" / page).read_text("utf-8")


def test_the_demo_says_what_comes_and_how_long_it_takes():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert "installing MindSpore and MindFormers into $(VENV): about 3 minutes, once" in makefile
    assert re.search(r"demo:.*\(\d+ to \d+ min; the first time installs MindSpore", makefile)
    assert "This takes one to three minutes." in (ROOT / "docs" / "plan.md").read_text("utf-8")  # a sweep


def test_no_option_beside_memory_reads_like_a_share_of_it(typed):
    code, shown = typed("", "simulate", "x.yaml", "--memory-fraction", "0.9")
    assert code != 0 and "unrecognized arguments: --memory-fraction" in shown
    code, shown = typed("", "simulate", "--help")
    assert code == 0 and "--memory-bandwidth-fraction" in shown


# `mindswap example`: what it writes is a file of configs/, for one process.


CASE_3 = Path(__file__).parents[2] / "configs" / "llama2_7b" / "cpu" / "case3_op_swap.yaml"


def test_the_files_are_good_and_what_is_there_stays(tmp_path, capsys):
    folder = tmp_path / "trial"
    assert cli.main(["example", str(folder)]) == 0
    assert f"cd {folder}\n" in capsys.readouterr().out
    written, case_3 = (yaml.safe_load(path.read_text("utf-8")) for path in (folder / "llama2_small.yaml", CASE_3))
    case_3["use_parallel"], case_3["parallel_config"]["data_parallel"] = False, 1
    assert written == case_3
    assert len((folder / "text.txt").read_text("utf-8")) == NUM_CHARACTERS
    assert cli.main(["check", str(folder / "llama2_small.yaml")]) == 0
    (folder / "llama2_small.yaml").unlink()
    assert cli.main(["example", str(folder)]) == 1  # the text is there, so nothing is written
    assert "text.txt" in capsys.readouterr().err and not (folder / "llama2_small.yaml").exists()
