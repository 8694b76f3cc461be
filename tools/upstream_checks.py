"""Find the checks of MindFormers and MindSpore that may stop a training, and hold them against the list of ours.

`tools/upstream_checks.yaml` lists each check with the rule of `mindswap check` that reports it, or the reason why none
does. `python tools/upstream_checks.py` (in the environment with MindFormers) prints what the list lacks and what it has
too much, and writes `docs/internals/upstream_checks.md` and its Chinese page.
"""

import ast
import hashlib
import importlib.util
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST):
                continue
            inner = (*conditions, *_condition_of(node, field))
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from _checks_below(child, file, (*names, child.name), ())
                continue
            own = _tested_by(child)
            if own is not None:
                yield Site(file, ".".join(names), child.lineno, " && ".join((*inner, own)), ast.unparse(child))
            yield from _checks_below(child, file, names, inner)


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
    rest, missing = Counter(listed), []
    for site in sites:
        if rest[site.key] > 0:
            rest[site.key] -= 1
        else:
            missing.append(site)
    return missing, sorted(rest.elements())
