"""The file of a configuration is parsed once, whatever is asked of it."""

import importlib
import sys
from collections import Counter
from pathlib import Path

import pytest

from mindswap.cli import main
from mindswap.config import parse

# Of a legacy model, as in most tests: MindFormers builds newer ones only in another process.
CONFIG = str(Path(__file__).parents[3] / "configs/llama2_7b/cpu/case3_op_swap.yaml")


@pytest.fixture
def parsed(monkeypatch):
    """How often each file is parsed, under its name."""
    for name in ("check", "explain", "plan", "verify", "inspect", "simulate"):
        importlib.import_module(f"mindswap.features.{name}.cli")
    real, counts = parse.parse_document, Counter()

    def count(content, file):
        counts[Path(file).name] += 1
        return real(content, file)

    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("mindswap") and vars(module).get("parse_document") is real:
            monkeypatch.setattr(module, "parse_document", count)
    return counts


@pytest.mark.parametrize("command", ["check", "explain"])
def test_what_reads_text_parses_once(parsed, command, capsys):
    assert main([command, CONFIG]) == 0
    assert parsed["case3_op_swap.yaml"] == 1


@pytest.mark.mindspore
@pytest.mark.parametrize(
    "words",
    [("plan", "--memory", "1GiB"), ("verify",), ("inspect",), ("simulate",)],
    ids=lambda words: words[0],
)
def test_what_compiles_parses_once(parsed, words, capsys):
    command, *options = words
    main([command, CONFIG, *options])
    assert parsed["case3_op_swap.yaml"] == 1
