"""Keep the Chinese catalogue `mindswap/data/locale/zh.po` in step with the texts of the sources.

    python tools/messages.py             # adds texts that are new, drops those that are gone
    python tools/messages.py --check     # exit code 1 and a list, if a text has no translation
    python tools/messages.py --missing   # prints the texts without a translation

A text is a string or f-string of a module of the package that has words: each of its lines is an entry, with
placeholders `{0}`, `{1}` for its expressions. Left out are docstrings, and strings that are no sentences. A translation
that equals the English text marks a string that is not shown, or is a name. The texts of `--help` are entries, too.
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

from mindswap.cli import COMMANDS, build_parser  # noqa: E402
from mindswap.command_line.parser import replace_help_texts  # noqa: E402
from mindswap.features.run.adaptive_options import build_options_parser  # noqa: E402
from mindswap.language import CATALOGUE, HELP, read_entries  # noqa: E402

PACKAGE = ROOT / "mindswap"
# Modules without texts for a terminal: pages, pictures, logs of workers, patterns of logs, sources of C.
EXCLUDED = (
    "adapters/pynative/swap.py",
    "features/dryrun/block_roles.py",
    "features/dryrun/insight.py",
    "features/dryrun/page.py",
    "features/dryrun/plots.py",
    "features/inspect/plots.py",
    "features/prove/page.py",
    "language.py",
    "policy/applied.py",
    "pynative/ledger.py",
    "pynative/trace_indices.py",
    "report/device_figures.py",
    "report/html.py",
    "report/insight.py",
    "report/plan_plot.py",
    "report/plots.py",
    "report/step_page.py",
    "runtime/logs/oom.py",
    "runtime/logs/scan.py",
    "runtime/logs/step_report.py",
)
# Keyword arguments and names whose strings are help texts or examples.
HELP_ARGUMENTS = {"help", "description", "metavar", "prefix", "suffix"}
HELP_NAMES = {"EPILOG", "USAGE", "COMMANDS", "MEMORY_UNITS"}
# Functions whose arguments are no texts for a user.
SILENT_CALLS = {"AssertionError", "attributes", "compile", "namedtuple", "TypeVar", "_option"}
# Two words, or more: a string with one word is a name or a key.
SENTENCE = re.compile(r"[A-Za-z]{2,}[,:;)']* +[({'\"]*[A-Za-z{]|[A-Za-z}][,:;)']* +[({'\"]*[A-Za-z]{2,}")
HEADER = """\
# Chinese texts of mindswap. English is the source; see tools/messages.py.
msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\\nLanguage: zh\\n"
"""


# Files of data with texts: findings of `doctor`, of logs and of the graph, options of Megatron-LM, files of a profile.
DATA = (
    "data/doctor/findings.yaml",
    "data/logs/findings.yaml",
    "data/megatron/other_options.yaml",
    "data/megatron/validity.yaml",
    "data/profile/files.yaml",
    "data/report/effect.yaml",
)
SILENT_KEYS = {"columns", "names", "sign", "signs", "when"}  # of these: conditions and contents of files
# Templates with fewer letters outside of placeholders match too much.
MIN_LETTERS = 3
FIELD = re.compile(r"\{\w*\}")


def source_files() -> list[Path]:
    """Return the modules with texts."""
    return sorted(set(PACKAGE.rglob("*.py")) - {PACKAGE / name for name in EXCLUDED})


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
        node = [value for key, value in node.items() if key not in SILENT_KEYS]
    if isinstance(node, list):
        for value in node:
            yield from _texts_of_data(value)
    elif isinstance(node, str):
        yield from filter(is_sentence, (_number(FIELD.split(line.strip())) for line in node.split("\n")))


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


def help_texts() -> set[str]:
    """Return the texts of `--help` of all commands."""
    texts: set[str] = set()

    def add(text: str) -> str:
        texts.add(text)
        return text

    replace_help_texts(build_parser(None), add)
    replace_help_texts(build_options_parser(), add)
    for name in COMMANDS:
        commands = next(action.choices for action in build_parser(name)._actions if action.dest == "command")
        replace_help_texts(commands[name], add)
    return texts


def render(texts: dict[str, list[str]], entries: list[tuple[str | None, str, str]]) -> str:
    """Return the catalogue with these texts, and the entries with a context or without a source."""
    known = {english: chinese for context, english, chinese in entries if context is None}
    # Sorted and without places, so that a text that moves to another module changes nothing.
    texts_of_sources = [f"msgid {_quote(text)}\nmsgstr {_quote(known.get(text, ''))}\n" for text in sorted(texts)]
    translated = {english: chinese for context, english, chinese in entries if context == HELP}
    others = sorted((str(entry[0]), *entry[1:]) for entry in entries if entry[0] not in (None, HELP))
    others += [(HELP, text, translated.get(text, "")) for text in sorted(help_texts())]
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
    translated = {english for context, english, chinese in entries if context == HELP and chinese}
    missing += sorted(help_texts() - translated)
    if args.missing or args.check:
        print("\n".join(missing))
        return int(args.check and bool(missing))
    CATALOGUE.parent.mkdir(exist_ok=True)
    CATALOGUE.write_text(render(texts, entries), encoding="utf-8")
    print(f"{len(texts)} texts, {len(missing)} without a translation")
    return 0


if __name__ == "__main__":
    sys.exit(main())
