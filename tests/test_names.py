"""Names of classes and modules; who may import whom is in pyproject.toml (`lint-imports`)."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "mindswap"


@cache
def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def test_no_two_classes_have_one_name():
    """Who reads a name must not have to look which of them it is."""
    counts = Counter(
        node.name
        for path in files()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert len(counts) > 300
    assert [name for name, number in counts.items() if number > 1] == []


def test_modules_that_comments_name_are_there():
    below = {".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in files()}
    parents = {module.rpartition(".")[0] for module in below}
    packages = {module.partition(".")[0] for module in below if "." in module}
    named = re.compile(rf"`((?:{'|'.join(sorted(packages))})\.[a-z_0-9.]+)")
    gone = {
        f"{name_of(path)}: {name}"
        for path in files()
        for name in named.findall(path.read_text("utf-8"))
        if name != "config.json" and not any(is_at(name, module) for module in below | parents - packages)
    }
    assert not gone


def is_at(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")
