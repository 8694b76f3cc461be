"""What messages and pages advise must work: options that the command has, packages that are ours."""

import argparse
import ast
import re
from pathlib import Path

import pytest

from mindswap import cli
from mindswap.cli import COMMANDS, build_parser

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "mindswap"
# Imported by every command, so no command's option may be named there as if all had it.
SHARED = (
    "errors.py", "units.py", "system/streams.py", "system/scratch.py", "system/signals.py", "system/environment.py",
)  # fmt: skip


def options_of(command):
    (found,) = [
        action.choices[command]
        for action in build_parser(command)._actions
        if isinstance(action, argparse._SubParsersAction)
    ]
    return {option for action in found._actions for option in action.option_strings}


OPTIONS = {command: options_of(command) for command in COMMANDS}


def texts(path):
    """Strings of a file that are no docstrings."""
    tree = ast.parse(path.read_text("utf-8"))
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
    ]


def named(text):
    return set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+(?![\w-]|_)", text))


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "run"])
def test_a_command_names_its_own_options(command):
    """`mindswap plan --memory` in a message of another command is an option of `plan`."""
    path = PACKAGE / "features" / f"{COMMANDS[command].module.replace('.', '/')}.py"
    for text in texts(path):
        own, *others = re.split(r"mindswap (?=[a-z-]+ )", text)
        assert named(own) <= OPTIONS[command], text
        for other in others:
            name = other.split()[0]
            assert name not in OPTIONS or name == "run" or named(other) <= OPTIONS[name] | OPTIONS[command], text


@pytest.mark.parametrize("name", SHARED)
def test_what_every_command_uses_names_no_option(name):
    assert not [text for text in texts(PACKAGE / name) if named(text)]


def test_a_second_example_advises_what_the_command_has(tmp_path, capsys):
    assert cli.main(["example", str(tmp_path)]) == 0
    assert cli.main(["example", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "already exists" in error and named(error) <= OPTIONS["example"]


def test_nothing_tells_people_to_install_a_name_that_is_not_ours_on_pypi():
    pages = [ROOT / "README.md", ROOT / "README_CN.md", *(ROOT / "docs").rglob("*"), *(ROOT / "examples").rglob("*")]
    files = [path for path in (*PACKAGE.rglob("*"), *pages) if path.suffix in (".py", ".md", ".yaml", ".ipynb", ".sh")]
    wrong = re.compile(r"(?:pip|uv|pipx) (?:pip )?install (?:-\S+ )*['\"]?mindswap(?=[\[\s'\"`)]|$)", re.MULTILINE)
    assert not [str(path) for path in files if wrong.search(path.read_text("utf-8"))]
    assert all(
        map(wrong.search, ("pip install 'mindswap[cpu]'", "`pip install -U mindswap`", "uv pip install mindswap"))
    )
    release = (
        (ROOT / "docs" / "development" / "testing.md").read_text("utf-8").partition("## Release")[2].partition("## ")[0]
    )
    assert "if the name `mindswap` on PyPI belongs to this project" in release
