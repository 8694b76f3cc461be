import shlex
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindswap.errors import LaunchError
from mindswap.runtime.launcher_arguments import split_order, worker_command

WORDS = st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1)


@given(WORDS)
def test_quoted_words_arrive_unchanged(words):
    assert split_order(shlex.join(words)) == words


@settings(max_examples=100)
@given(st.lists(st.sampled_from(["a", " ", "'", '"', "\\", "\\\n", "\\\\", "b c", "é", "="]), max_size=12).map("".join))
def test_words_are_those_of_a_shell(order):
    script = f"for word in {order}\ndo printf '%s\\0' \"$word\"; done"
    shell = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    try:
        words = split_order(order)
    except LaunchError:
        return  # not closed, or nothing; a shell would go on reading
    if shell.returncode == 0 and not shell.stderr:
        assert words == shell.stdout.split("\0")[:-1]


@pytest.mark.parametrize("word", ["$(touch x)", "`id`", ";", "a;b", "*", "~", "$HOME", "&&", "|", ">x", "#"])
def test_nothing_is_evaluated(word):
    assert split_order(f"run.py {word}") == ["run.py", *word.split()]


def test_lines_may_go_on_after_a_backslash():
    assert split_order("run.py \\\n  --config x \\\n--a 'b\\\nc' \"d\\\ne\"") == [
        "run.py", "--config", "x", "--a", "b\\\nc", "de",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("order", "message"), [("a 'b", "no closing quotation"), ("a \\", "no escaped character"), (" \n", "is empty")]
)
def test_orders_that_are_no_command(order, message):
    with pytest.raises(LaunchError, match=message):
        split_order(order)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run_mindformer.py").touch()
    (tmp_path / "tool").touch()
    return tmp_path


PLUGIN = ["-m", "mindswap", "run"]


@pytest.mark.parametrize(
    "order",
    ["run_mindformer.py --a b", "python run_mindformer.py --a b", "python -m mindswap run run_mindformer.py --a b"],
)
def test_a_script_runs_with_the_plugin(folder, order):
    assert worker_command(order.split()) == ([*PLUGIN, "run_mindformer.py", "--a", "b"], None)


def test_without_the_script_the_own_entry_runs_and_says_so(folder):
    (folder / "run_mindformer.py").unlink()
    command, remark = worker_command(["./run_mindformer.py", "--a", "b"])
    assert command == [*PLUGIN, "--a", "b"]
    assert remark is not None and "own entry" in remark


@pytest.mark.parametrize("order", ["--a b", "python -m mindswap run --a b"])
def test_options_alone_are_for_the_own_entry(folder, order):
    assert worker_command(order.split()) == ([*PLUGIN, "--a", "b"], None)


@pytest.mark.parametrize("word", ["other.py", "mf/run_mindformer.py", "tool", "msrun", "x" * 5000])
def test_other_first_words_are_refused(folder, word):
    with pytest.raises(LaunchError, match=r"no script .*\n    allowed: a Python script"):
        worker_command([word])


def test_other_modules_cannot_run_with_the_plugin(folder):
    with pytest.raises(LaunchError, match="python -m pytest cannot"):
        worker_command(["python", "-m", "pytest"])
