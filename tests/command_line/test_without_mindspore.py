"""Commands that need MindSpore say so where it is missing; `check` works."""

import importlib.util
from pathlib import Path

import pytest

from mindswap.cli import main

CASE = str(Path(__file__).resolve().parents[2] / "configs" / "llama2_7b" / "case3_op_swap.yaml")

pytestmark = pytest.mark.skipif(importlib.util.find_spec("mindspore") is not None, reason="MindSpore is installed")


@pytest.mark.parametrize("words", [["verify", CASE], ["inspect", "--no-cache", CASE], ["run", "--config", CASE]])
def test_what_is_missing_is_named(capsys, words):
    assert main(words) == 1
    assert "not installed: mindspore, mindformers\n    fix: pip install" in capsys.readouterr().err


def test_check_needs_neither(capsys):
    assert main(["check", CASE]) == 0
    assert "layers 1-2" in capsys.readouterr().out
