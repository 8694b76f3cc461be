"""What a user reads has the words of the field: those that another word replaced do not come back."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from mindswap.cli import COMMANDS, build_parser

ROOT = Path(__file__).parents[1]
# The phrase, and what is written instead.
REPLACED = {
    "as many entries as help": "unrestricted plan",
    "straight line": "extrapolated from",
    "corrected by that": "corrected by the extrapolation error",
    "behind the layers": "after the layers",
    "sums of gradients": "accumulated gradients",
    "gradients, exposed": "exposed gradient communication",
    "link out": "D2H busy",
    "link in,": "H2D busy",
    "copy out": "offload (D2H)",
    "copies out": "D2H copies",
    "copies back": "H2D copies",
    "by the bound": "lower bound",
    "pass it on": "ignores it",
    "this one counts": "this entry applies",
    "are away": "are on the host",
}
# Messages of the PyNative mode (`copies=` is an argument), and notes for developers.
EXEMPT = ("mindswap/pynative/", "mindswap/adapters/")


def shown_texts(path: Path) -> Iterator[str]:
    """Texts of a module that are not docstrings."""
    tree = ast.parse(path.read_text("utf-8"))
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def replaced_in(text: str) -> dict[str, str]:
    """The phrases of a text that have a better word, with that word."""
    return {phrase: word for phrase, word in REPLACED.items() if phrase in text}


def test_no_module_prints_a_replaced_phrase():
    paths = [path for path in sorted((ROOT / "mindswap").rglob("*.py"))
             if not path.relative_to(ROOT).as_posix().startswith(EXEMPT)]  # fmt: skip
    found = {str(path): phrases for path in paths for text in shown_texts(path) if (phrases := replaced_in(text))}
    assert len(paths) > 300 and found == {}


def test_a_replaced_phrase_is_found(tmp_path):
    module = tmp_path / "module.py"
    module.write_text('"""Of copies out."""\n\nTEXT = f"{1} copies out, 2 back"\n')
    assert [replaced_in(text) for text in shown_texts(module) if replaced_in(text)] == [{"copies out": "D2H copies"}]


@pytest.mark.parametrize("command", COMMANDS)
def test_no_help_has_a_replaced_phrase(command, capsys):
    with pytest.raises(SystemExit):
        build_parser(command).parse_args([command, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert shown and replaced_in(shown) == {}


@pytest.mark.parametrize("page", ["README.md", "docs/plan.md", "docs/dryrun.md", "docs/simulate.md", "docs/verify.md"])
def test_no_example_of_a_page_shows_a_replaced_phrase(page):
    text = (ROOT / page).read_text("utf-8")
    examples = text.split("```")[1::2]
    assert examples and [phrases for example in examples if (phrases := replaced_in(example))] == []
