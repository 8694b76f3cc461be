"""Imports go one way; MindSpore and MindFormers are behind `adapters/`."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "mindswap"

# From what everything builds on to what builds on everything. A part imports itself and those before it.
ORDER = (
    "errors",
    "streams",
    "environment",
    "signals",
    "scratch",
    "files",
    "cache",
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
ENTRIES = ("features/run/__main__.py",)
HEAVY = ("mindspore", "mindformers", "torch")


@cache
def statements(path: Path) -> list[ast.AST]:
    """Imports, also inside functions, and classes of a file."""
    kept = (ast.Import, ast.ImportFrom, ast.ClassDef)
    return [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, kept)]


def imports(path: Path) -> list[str]:
    """Names of the modules a file imports."""
    found = []
    for node in statements(path):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.append(node.module)
    return found


@cache
def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_every_part_has_its_place():
    assert {part(path) for path in files()} == set(ORDER)


def test_a_file_imports_only_what_stands_before_it():
    own = [
        (path, name, name.split(".")[1] if "." in name else "__init__")
        for path in files()
        for name in imports(path)
        if name.split(".")[0] == "mindswap" and name_of(path) not in ENTRIES
    ]
    assert len(own) > 1000
    assert [f"{path}: {name}" for path, name, used in own if ORDER.index(used) > ORDER.index(part(path))] == []


def test_no_files_import_each_other():
    """Not in a circle of any length, imports inside functions and for types included."""
    above = {module(path): imported_files(path) for path in files()}
    while free := {name for name, used in above.items() if not used & above.keys() - {name}}:
        above = {name: used for name, used in above.items() if name not in free}
    assert sorted(above) == []


def imported_files(path: Path) -> set[str]:
    """Modules of the package that a file imports; of a name that a package hands on, the package."""
    found = set()
    for node in statements(path):
        if isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & modules() or {node.module} & modules()
    return found


@cache
def modules() -> set[str]:
    return {module(path) for path in files()}


def module(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def test_only_adapters_import_mindspore():
    heavy = [(path, name) for path in files() for name in imports(path) if name.split(".")[0] in HEAVY]
    assert {part(path) for path, _ in heavy} == {"adapters"}, heavy


def test_no_two_classes_have_one_name():
    """Who reads a name must not have to look which of them it is."""
    counts = Counter(node.name for path in files() for node in statements(path) if isinstance(node, ast.ClassDef))
    assert len(counts) > 300
    assert [name for name, number in counts.items() if number > 1] == []


def test_modules_that_comments_name_are_there():
    below = {".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in files()}
    parents = {module.rpartition(".")[0] for module in below}
    rooms = {module.partition(".")[0] for module in below if "." in module}
    named = re.compile(rf"`((?:{'|'.join(sorted(rooms))})\.[a-z_0-9.]+)")
    gone = {
        f"{name_of(path)}: {name}"
        for path in files()
        for name in named.findall(path.read_text("utf-8"))
        if name != "config.json" and not any(is_at(name, module) for module in below | parents - rooms)
    }
    assert not gone


def is_at(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")
