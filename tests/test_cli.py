"""What the command line imports, and what it lists."""

import subprocess
import sys

import pytest

from mindswap import cli

# Half a second and more to import, for the commands that simulate.
SLOW = {"numpy", "numba", "scipy", "mindspore"}


def imported(*words):
    """Names of the modules that a command line has imported in the end."""
    code = f"import sys; from mindswap.cli import main; main({list(words)}); print(*sys.modules, file=sys.stderr)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(result.stderr.split())


@pytest.mark.parametrize("words", [["--help"], ["check", "--help"], ["convert", "--help"]])
def test_what_needs_no_simulator_does_not_import_it(words):
    assert imported(*words) & SLOW == set()


def test_what_simulates_does():
    assert "numba" in imported("simulate", "--help")


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help_of_a_command_begins_with_its_summary_and_ends_with_examples(name, capsys):
    assert cli.main([name, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f" {cli.COMMANDS[name].summary} " in text and " examples: mindswap " in text


def test_an_unknown_command_names_the_known_ones(capsys):
    assert cli.main(["chek"]) == 1
    assert "invalid choice: 'chek' (choose from 'check'" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["help"], ["--help"]])
def test_without_a_command_it_lists_them(words, capsys):
    assert cli.main(words) == 0
    assert "simulate" in capsys.readouterr().out


def test_help_of_a_command(capsys):
    assert cli.main(["help", "convert"]) == 0
    assert capsys.readouterr().out.startswith("usage: mindswap convert")


def test_ctrl_c_is_said(monkeypatch, capsys):
    def interrupted(words):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "build_parser", interrupted)
    assert cli.main(["check"]) == 130
    assert capsys.readouterr().err == "mindswap: interrupted\n"
