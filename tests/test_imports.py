"""Imports go one way; MindSpore and MindFormers are behind `adapters/`."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "mindswap"

# From what everything builds on to what builds on everything. A part imports itself and those before it.
ORDER = (
    "errors",
    "files",
    "units",
    "version",
    "config",
    "policy",
    "graph",
    "pynative",
    "check",
    "simulator",
    "planner",
    "training",
    "report",
    "adapters",
    "api",
    "__init__",
    "commands",
    "cli",
    "__main__",
)
# Starts a program: it may import what it starts.
ENTRIES = ("training/launch/__main__.py",)
HEAVY = ("mindspore", "mindformers", "torch")


def imports(path: Path) -> list[str]:
    """Names of the modules a file imports, also inside functions."""
    found = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.append(node.module)
    return found


def files():
    return sorted(path for path in PACKAGE.rglob("*.py"))


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_every_part_has_its_place():
    assert {part(path) for path in files()} == set(ORDER)


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_imports_only_what_stands_before_it(path):
    if str(path.relative_to(PACKAGE)) in ENTRIES:
        return
    allowed = ORDER[: ORDER.index(part(path)) + 1]
    for name in imports(path):
        if name.split(".")[0] == "mindswap":
            used = name.split(".")[1] if "." in name else "__init__"
            assert used in allowed, f"{path}: {name}"


def test_no_files_import_each_other():
    """Not in a circle of any length, imports inside functions and for types included."""
    above = {module(path): imported_files(path) for path in files()}
    while free := {name for name, used in above.items() if not used & above.keys() - {name}}:
        above = {name: used for name, used in above.items() if name not in free}
    assert sorted(above) == []


def imported_files(path: Path) -> set[str]:
    """Modules of the package that a file imports; of a name that a package hands on, the package."""
    modules = {module(file) for file in files()}
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & modules or {node.module} & modules
    return found


def module(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_adapters_import_mindspore(path):
    if part(path) != "adapters":
        assert [name for name in imports(path) if name.split(".")[0] in HEAVY] == []


def test_no_two_classes_have_one_name():
    """Who reads a name must not have to look which of them it is."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")]
    counts = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert len(counts) > 300
    assert [name for name, number in counts.items() if number > 1] == []


def test_modules_that_comments_name_are_there():
    modules = {".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in files()}
    parents = {module.rpartition(".")[0] for module in modules}
    rooms = {module.partition(".")[0] for module in modules if "." in module}
    named = re.compile(rf"`((?:{'|'.join(sorted(rooms))})\.[a-z_0-9.]+)")
    gone = {
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in files()
        for name in named.findall(path.read_text("utf-8"))
        if name != "config.json" and not any(is_at(name, module) for module in modules | parents - rooms)
    }
    assert not gone


def is_at(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")
