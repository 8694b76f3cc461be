"""Find the checks of MindFormers and MindSpore that may stop a training, and hold them against the list of ours.

`tools/upstream_checks.yaml` lists each check with the refusal or the rule of `mindswap check` that reports it, or the
reason why none does.

    python tools/upstream_checks.py              what the list lacks and has too much (with MindFormers installed)
    python tools/upstream_checks.py --docs       write docs/internals/upstream_checks.md and its Chinese page
    python tools/upstream_checks.py --check      compare the pages with the list, write nothing
"""

import argparse
import ast
import hashlib
import importlib.util
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.rules.refusal_cases import MODULES, OTHERS, Case, read_cases, rule_of  # noqa: E402

LIST = ROOT / "tools" / "upstream_checks.yaml"
PAGES = {"en": ROOT / "docs/internals/upstream_checks.md", "cn": ROOT / "docs/internals/upstream_checks.zh.md"}

# Calls that raise for a wrong value, besides `raise`, `assert` and the decorator `args_type_check`.
VALIDATORS = ("Validator", "validator")


@dataclass(frozen=True)
class Site:
    """One statement that stops a training under some condition."""

    file: str  # path below site-packages
    function: str  # qualified name of the function
    line: int
    condition: str  # what the enclosing statements and the check itself test, as code
    text: str  # the check itself, as code

    @property
    def digest(self) -> str:
        """Short hash of the condition; the message and the line do not count."""
        return hashlib.sha256(self.condition.encode()).hexdigest()[:8]

    @property
    def key(self) -> tuple[str, str, str]:
        """Identity of the check as long as its condition stays the same."""
        return self.file, self.function, self.digest


def scan(file: str) -> Iterator[Site]:
    """Yield every check of a file of MindFormers or MindSpore, in the order of the text.

    Args:
        file: path below site-packages, such as `mindformers/tools/check_rules.py`.
    """
    tree = ast.parse((package_folder(file.partition("/")[0]) / file).read_text(encoding="utf-8"))
    yield from _checks_below(tree, file, (), ())


def package_folder(package: str) -> Path:
    """Return the folder that holds an installed package, without importing it."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None, package
    return Path(spec.origin).parents[1]


def _checks_below(node: ast.AST, file: str, names: tuple[str, ...], conditions: tuple[str, ...]) -> Iterator[Site]:
    for field, value in ast.iter_fields(node):
        inner = (*conditions, *_condition_of(node, field))
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST):
                continue
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from _checks_below(child, file, (*names, child.name), ())
                continue
            condition = _tested_by(child)
            if condition is not None:
                yield Site(file, ".".join(names), child.lineno, " && ".join((*inner, condition)), ast.unparse(child))
            yield from _checks_below(child, file, names, inner)
            if isinstance(child, ast.If) and isinstance(child.body[-1], ast.Return | ast.Continue):
                inner = (*inner, f"not ({ast.unparse(child.test)})")  # what follows is reached otherwise only


def _condition_of(node: ast.AST, field: str) -> tuple[str, ...]:
    """Condition under which a field of a statement runs."""
    if isinstance(node, ast.If | ast.While) and field in ("body", "orelse"):
        test = ast.unparse(node.test)
        return (test if field == "body" else f"not ({test})",)
    if isinstance(node, ast.For) and field == "body":
        return (f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}",)
    if isinstance(node, ast.ExceptHandler) and field == "body":
        return (f"except {ast.unparse(node.type) if node.type else ''}",)
    return ()


def _tested_by(node: ast.AST) -> str | None:
    """Return what a check tests itself, None if the node is no check."""
    if isinstance(node, ast.Raise):
        raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        return f"raise {ast.unparse(raised)}" if raised is not None else "raise"
    if isinstance(node, ast.Assert):
        return f"assert {ast.unparse(node.test)}"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("args_type_check"):
        return ast.unparse(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
        is_check = node.func.value.id in VALIDATORS and node.func.attr.startswith("check")
        return ast.unparse(node) if is_check else None
    return None


def differences(sites: list[Site], listed: Counter[tuple[str, str, str]]) -> tuple[list[Site], list[tuple[str, ...]]]:
    """Return the checks that the list lacks, and the entries that no check has."""
    unmatched, missing = Counter(listed), []
    for site in sites:
        if unmatched[site.key] > 0:
            unmatched[site.key] -= 1
        else:
            missing.append(site)
    return missing, sorted(unmatched.elements())


# The list, and the pages that show it.

Places = dict[str, list[str]]  # by refusal, or by rule without a table


def read_list() -> dict[str, Any]:
    """Return the content of the list."""
    content: dict[str, Any] = yaml.safe_load(LIST.read_text(encoding="utf-8"))
    return content


def entries(content: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield file, function and entry of each line of the list."""
    for file, functions in content["checks"].items():
        for function, lines in functions.items():
            yield from ((file, function, line) for line in lines)


def listed_checks(content: dict[str, Any]) -> Counter[tuple[str, str, str]]:
    """Return the identities of all checks in the list."""
    keys = (
        (file, "" if name == "module" else name, digest)
        for file, name, line in entries(content)
        for digest in line["is"]
    )
    return Counter(keys)


def places_of(content: dict[str, Any]) -> Places:
    """Return where upstream tests what each refusal, or each rule without a table, reports."""
    places_by_name: Places = defaultdict(list)
    for file, function, line in entries(content):
        for name in (*line.get("refusal", ()), *([line["rule"]] if "rule" in line else ())):
            places_by_name[name].append(f"{_short(file)}: {function.rpartition('.')[2] or function}")
    for line in (*content["compiled"], *content["native"]):
        for name in (*line.get("refusal", ()), *([line["rule"]] if "rule" in line else ())):
            places_by_name[name].append(_short(line["at"]))
    return {name: list(dict.fromkeys(places)) for name, places in places_by_name.items()}


def _short(file: str) -> str:
    """Return the end of a path, which says enough."""
    return file.removeprefix("mindformers/").replace("mindspore/ccsrc/frontend/parallel/", "")


def render(language: str) -> str:
    """Return the text of a page."""
    content = read_list()
    words = content["pages"][language]
    places, cases = places_of(content), [case for module in (*MODULES, OTHERS) for case in read_cases(module)]
    lines = list(entries(content))
    counts = {
        "files": len(content["checks"]),
        "checks": sum(len(line["is"]) for *_, line in lines),
        "reported": sum(len(line["is"]) for *_, line in lines if "reason" not in line),
        "cases": len(cases),
        "called": sum(case.call != "read" and not case.call.startswith("library") for case in cases),
        "library": sum(case.call.startswith("library") for case in cases),
    }
    parts = [f"# {words['title']}", words["intro"].format(**counts), f"## {words['rules']}"]
    parts.append(words["rules_intro"].format(**counts))
    parts.append(
        "\n".join([words["columns"], "| --- | --- | --- |", *(_case_row(case, places, language) for case in cases)])
    )
    parts += [f"## {words['compiled']}", _compiled_table(content, words["compiled_columns"], language)]
    parts += [f"## {words['reasons']}", _reason_table(content, words["reason_columns"], language)]
    return "\n\n".join(parts) + "\n"


def _case_row(case: Case, places: Places, language: str) -> str:
    rule = case.name.partition(" ")[0] if case.module == OTHERS else rule_of(case.module)
    page = "../rules.md" if language == "en" else "../rules.zh.md"
    text = "; ".join(case.text.replace("@", "").splitlines()).replace("|", "\\|")
    if len(text) > 160:
        text = f"{text[:150]} ..."
    places_text = "<br>".join(f"`{place}`" for place in places[rule if case.module == OTHERS else case.name][:3])
    return f"| `{text}` | [{rule}]({page}#{rule}) | {places_text} |"


def _compiled_table(content: dict[str, Any], columns: str, language: str) -> str:
    rows = [columns, "| --- | --- | --- |"]
    for line in content["compiled"]:
        by = ", ".join(line.get("refusal", [line.get("rule", "")]))
        by = content["reasons"][line["reason"]][language] if "reason" in line else by
        rows.append(f"| `{line['says'].strip()}` | `{_short(line['at'])}` | {by} |")
    return "\n".join(rows)


def _reason_table(content: dict[str, Any], columns: str, language: str) -> str:
    checks: Counter[str] = Counter()
    files: dict[str, set[str]] = defaultdict(set)
    for file, _, line in entries(content):
        if "reason" in line:
            checks[line["reason"]] += len(line["is"])
            files[line["reason"]].add(file)
    rows = [
        f"| {content['reasons'][key][language]} | {count} | {len(files[key])} |" for key, count in checks.most_common()
    ]
    return "\n".join([columns, "| --- | --- | --- |", *rows])


def compare() -> int:
    """Print how the installed packages differ from the list."""
    content = read_list()
    missing, gone = differences([site for file in content["checks"] for site in scan(file)], listed_checks(content))
    for site in missing:
        print(f"not listed: {site.file}:{site.line} {site.function} {site.digest}: {site.condition}")
    for key in gone:
        print(f"not found:  {' '.join(key)}")
    print(f"{len(missing)} checks are not in the list, {len(gone)} of the list are not there")
    return 1 if missing or gone else 0


def main() -> int:
    """Compare the list, or write or check the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", action="store_true", help="write the pages")
    parser.add_argument("--check", action="store_true", help="compare with the pages, write nothing")
    args = parser.parse_args()
    if not args.docs and not args.check:
        return compare()
    for language, page in PAGES.items():
        text, name = render(language), page.relative_to(ROOT)
        if args.docs:
            page.write_text(text, encoding="utf-8")
            print(f"wrote {name}")
        elif not page.exists() or page.read_text(encoding="utf-8") != text:
            print(f"{name} is out of date\n    fix:     python tools/upstream_checks.py --docs", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
