"""Keep the Chinese catalogue `mindswap/data/locale/zh.po` in step with the texts of the sources.

    python tools/messages.py             # adds texts that are new, drops those that are gone
    python tools/messages.py --check     # exit code 1 and a list, if a text has no translation
    python tools/messages.py --missing   # prints the texts without a translation

A text is a string or f-string of a module of `SOURCES` that has words: each of its lines is an entry, with placeholders
`{0}`, `{1}` for its expressions. Left out are docstrings, help texts, and strings that are no sentences. A translation
that equals the English text marks a string that is not shown, or is a name.
"""

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from mindswap.language import CATALOGUE, read_entries  # noqa: E402

PACKAGE = ROOT / "mindswap"
# Packages and modules with texts of the commands in `mindswap.language.COMMANDS`.
SOURCES = (
    "adapters/graph",
    "adapters/quiet.py",
    "cli.py",
    "command_line",
    "config",
    "errors.py",
    "features/check",
    "features/compare",
    "features/doctor",
    "features/dryrun",
    "features/explain",
    "features/inspect",
    "features/plan",
    "features/simulate",
    "features/step.py",
    "features/step_2x.py",
    "features/verify",
    "files.py",
    "graph/analysis/execution_order.py",
    "planner",
    "policy/cell_tree.py",
    "policy/coverage.py",
    "policy/equivalence.py",
    "policy/formats/mindformers1",
    "policy/formats/mindformers2",
    "policy/model.py",
    "policy/summary.py",
    "policy/wording.py",
    "report/policy_text.py",
    "report/problems.py",
    "report/pynative.py",
    "report/simulation_text.py",
    "rules",
    "simulator",
    "steps",
    "system",
    "units.py",
)
# Modules of these without texts for a terminal: pages, pictures, sources of C.
EXCLUDED = (
    "simulator/profile",
    "features/dryrun/block_roles.py",
    "features/dryrun/cann_stand_ins.py",
    "features/dryrun/insight.py",
    "features/dryrun/page.py",
    "features/dryrun/plots.py",
    "features/inspect/plots.py",
)
# Keyword arguments and names whose strings are help texts or examples.
HELP_ARGUMENTS = {"help", "description", "metavar", "prefix", "suffix"}
HELP_NAMES = {"EPILOG", "USAGE", "COMMANDS"}
# Functions whose arguments are no texts for a user.
SILENT_CALLS = {"AssertionError", "attributes", "compile", "namedtuple", "TypeVar"}
# Two words, or more: a string with one word is a name or a key.
SENTENCE = re.compile(r"[A-Za-z]{2,}[,:;)']* +[({'\"]*[A-Za-z{]|[A-Za-z}][,:;)']* +[({'\"]*[A-Za-z]{2,}")
HEADER = """\
# Chinese texts of mindswap. English is the source; see tools/messages.py.
msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\\nLanguage: zh\\n"
"""


# Files of data with texts: what, why and fix of the findings of `doctor`.
DATA = ("data/doctor/findings.yaml",)
# Templates with fewer letters outside of placeholders match too much.
MIN_LETTERS = 3
FIELD = re.compile(r"\{\w*\}")


def source_files() -> list[Path]:
    """Return the modules with texts."""
    return sorted(set(_modules(SOURCES)) - set(_modules(EXCLUDED)))


def _modules(names: tuple[str, ...]) -> Iterator[Path]:
    for name in names:
        yield from [PACKAGE / name] if name.endswith(".py") else (PACKAGE / name).rglob("*.py")


def find_texts(source: str) -> Iterator[str]:
    """Return the entries of a module."""
    tree = ast.parse(source)
    for node in _shown_nodes(tree):
        for line in _text_of(node).split("\n"):
            text = line.strip()
            if is_sentence(text):
                yield text


def is_sentence(text: str) -> bool:
    """Return whether a text has words that a user reads."""
    plain = re.sub(r"\{\d+\}", "{", text)
    return bool(SENTENCE.search(plain)) and sum(map(str.isalpha, plain)) >= MIN_LETTERS


def _text_of(node: ast.Constant | ast.JoinedStr) -> str:
    """Return a string with `{0}`, `{1}` for its expressions, or for the `{}` of `str.format`."""
    if isinstance(node, ast.Constant):
        parts = FIELD.split(node.value)
    else:
        parts = [""]
        for value in node.values:
            if isinstance(value, ast.Constant):
                first, *others = FIELD.split(value.value)  # `str.format` is used later
                parts[-1] += first
                parts += others
            else:
                parts.append("")
    return _number(parts)


def _number(parts: list[str]) -> str:
    """Join the parts of a text with `{0}`, `{1}` between them."""
    # Numbers start anew on each line, because each line is an entry.
    joined, number = parts[0], 0
    for before, part in pairwise(parts):
        number = 0 if "\n" in before else number
        joined += f"{{{number}}}{part}"
        number += 1
    return joined


def _shown_nodes(node: ast.AST) -> Iterator[ast.Constant | ast.JoinedStr]:
    """Return the strings below a node that may be shown, also those inside of expressions of f-strings."""
    if isinstance(node, ast.JoinedStr):
        yield node
        for value in node.values:
            if isinstance(value, ast.FormattedValue):
                yield from _shown_nodes(value.value)
        return
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield node
        return
    if _is_silent(node):
        return
    for child in ast.iter_child_nodes(node):
        is_docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
        if not is_docstring:
            yield from _shown_nodes(child)


def _is_silent(node: ast.AST) -> bool:
    """Return whether no string below a node is a text for a user of the reports."""
    if isinstance(node, ast.keyword):
        return node.arg in HELP_ARGUMENTS
    if isinstance(node, ast.Assign):
        return any(isinstance(target, ast.Name) and target.id in HELP_NAMES for target in node.targets)
    if isinstance(node, ast.AnnAssign):
        return isinstance(node.target, ast.Name) and node.target.id in HELP_NAMES
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return name in SILENT_CALLS
    return False


def _texts_of_data(node: object) -> Iterator[str]:
    """Return the entries of plain data."""
    if isinstance(node, dict):
        for value in node.values():
            yield from _texts_of_data(value)
    elif isinstance(node, str) and is_sentence(text := _number(FIELD.split(node))):
        yield text


def all_texts() -> dict[str, list[str]]:
    """Return all entries with the modules that have them."""
    texts: dict[str, list[str]] = {}
    for name in DATA:
        for text in _texts_of_data(yaml.safe_load((PACKAGE / name).read_text("utf-8"))):
            texts.setdefault(text, [name])
    for path in source_files():
        name = path.relative_to(PACKAGE).as_posix()
        for text in find_texts(path.read_text("utf-8")):
            modules = texts.setdefault(text, [])
            if name not in modules:
                modules.append(name)
    return texts


def render(texts: dict[str, list[str]], entries: list[tuple[str | None, str, str]]) -> str:
    """Return the catalogue with these texts, and the entries with a context or without a source."""
    known = {english: chinese for context, english, chinese in entries if context is None}
    # Sorted and without places, so that a text that moves to another module changes nothing.
    texts_of_sources = [f"msgid {_quote(text)}\nmsgstr {_quote(known.get(text, ''))}\n" for text in sorted(texts)]
    others = sorted((str(entry[0]), *entry[1:]) for entry in entries if entry[0] is not None)
    with_context = [
        f'msgctxt "{context}"\nmsgid {_quote(english)}\nmsgstr {_quote(chinese)}\n'
        for context, english, chinese in others
    ]
    return "\n".join([HEADER, *texts_of_sources, *with_context])


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def main() -> int:
    """Update, check or list; 1 if a text has no translation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--missing", action="store_true")
    args = parser.parse_args()
    entries = list(read_entries(CATALOGUE.read_text("utf-8"))) if CATALOGUE.exists() else []
    texts = all_texts()
    translated = {english for context, english, chinese in entries if context is None and chinese}
    missing = [text for text in texts if text not in translated]
    if args.missing or args.check:
        print("\n".join(missing))
        return int(args.check and bool(missing))
    CATALOGUE.parent.mkdir(exist_ok=True)
    CATALOGUE.write_text(render(texts, entries), encoding="utf-8")
    print(f"{len(texts)} texts, {len(missing)} without a translation")
    return 0


if __name__ == "__main__":
    sys.exit(main())
