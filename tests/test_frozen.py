"""What is frozen stays as it was made: no attribute, no entry of a field is written afterwards, and no hidden cache."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "mindswap"
# Methods that change a list, dict or set.
WRITERS = {
    "add", "append", "clear", "discard", "extend", "fill", "insert", "pop", "popitem", "remove", "setdefault", "sort",
    "update",
}  # fmt: skip
LOOKED_AT = (ast.AnnAssign, ast.Assign, ast.Attribute, ast.AugAssign, ast.Call, ast.Delete)
# While these run, the object is being made.
MAKERS = ("__init__", "__post_init__")


def is_frozen(node: ast.AST) -> bool:
    """A class with `@dataclass(frozen=True, ...)`."""
    return isinstance(node, ast.ClassDef) and any(
        isinstance(call, ast.Call)
        and ast.unparse(call.func).rpartition(".")[2] == "dataclass"
        and any(word.arg == "frozen" and ast.unparse(word.value) == "True" for word in call.keywords)
        for call in node.decorator_list
    )


def type_name(annotation: ast.expr | None) -> str:
    """`Catalog` of `Catalog`, `"Catalog"`, `Catalog | None` and `"Catalog | None"`; nothing of other types."""
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.right, ast.Constant):
        return type_name(annotation.left)
    if isinstance(annotation, ast.Constant):
        return str(annotation.value).removesuffix(" | None")
    return annotation.id if isinstance(annotation, ast.Name) else ""


def frozen_names(function: ast.FunctionDef, nodes: list[ast.AST], frozen: set[str], owner: str) -> set[str]:
    """Names in a function that stand for something frozen: `self`, arguments, and what the function itself makes."""
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    found = {argument.arg for argument in arguments if type_name(argument.annotation) in frozen}
    if owner in frozen and function.name not in MAKERS:
        found |= {"self"}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            made = node.value.func
            if isinstance(made, ast.Name) and (made.id == "replace" or made.id in frozen):
                found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found |= {node.target.id} if type_name(node.annotation) in frozen else set()
    return found


def owner_of(node: ast.AST) -> str | None:
    """`catalog` of `catalog.items[0][1]`: what a field belongs to; None where it is no field."""
    is_field = False
    while isinstance(node, ast.Attribute | ast.Subscript):
        is_field |= isinstance(node, ast.Attribute)
        node = node.value
    return node.id if is_field and isinstance(node, ast.Name) else None


def writes(nodes: list[ast.AST], names: set[str]) -> Iterator[tuple[int, str]]:
    """Lines that write into a field of one of the names."""
    for node in nodes:
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = list(node.targets)
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WRITERS:
            targets = [node.func.value]
        for target in targets:
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            for part in parts:
                if owner_of(part) in names:
                    yield node.lineno, ast.unparse(node)


def functions_of(tree: ast.AST) -> Iterator[tuple[ast.FunctionDef, str]]:
    """Functions with the name of their class; no name for those of a module."""
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef):
                yield child, node.name if isinstance(node, ast.ClassDef) else ""


def find_writes(sources: dict[str, str]) -> list[str]:
    """Every write into something frozen: `file:line: code`.

    Args:
        sources: text of each file, by its name.
    """
    trees = {name: ast.parse(text) for name, text in sources.items()}
    classes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    # A name that stands for a frozen class here and another one there says nothing.
    frozen = {node.name for node in classes if is_frozen(node)} - {n.name for n in classes if not is_frozen(n)}
    found = []
    for name, tree in trees.items():
        for function, owner in functions_of(tree):
            nodes = [node for node in ast.walk(function) if isinstance(node, LOOKED_AT)]
            written = list(writes(nodes, frozen_names(function, nodes, frozen, owner)))
            if function.name not in MAKERS:
                written += backdoors(nodes)
            found += [f"{name}:{line}: {text}" for line, text in written]
            decorators = {ast.unparse(decorator).rpartition(".")[2] for decorator in function.decorator_list}
            if owner in frozen and "cached_property" in decorators:
                found.append(f"{name}:{function.lineno}: cached_property {owner}.{function.name}")
    return sorted(set(found))


def backdoors(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """`object.__setattr__` and `__dict__`, which go around frozen."""
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr in ("__dict__", "__setattr__", "__delattr__"):
            yield node.lineno, ast.unparse(node)


@pytest.mark.long
def test_nothing_writes_into_frozen():
    sources = {str(path.relative_to(PACKAGE)): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}
    assert find_writes(sources) == []


FROZEN = """
@dataclass(frozen=True, eq=False)
class Block:
    sizes: dict
    def __post_init__(self):
        object.__setattr__(self, "count", 1)
"""


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("def f(block: Block):\n    block.sizes[0] = 1", "block.sizes[0] = 1"),
        ("def f(block: 'Block | None'):\n    block.sizes[0] += 1", "block.sizes[0] += 1"),
        ("def f():\n    block = Block({})\n    block.sizes.update(a=1)", "block.sizes.update(a=1)"),
        ("def f(old):\n    block = replace(old, a=1)\n    block.sizes[1].x = 2", "block.sizes[1].x = 2"),
        ("def f(block):\n    object.__setattr__(block, 'count', 2)", "object.__setattr__"),
        ("def f(block):\n    block.__dict__['_count'] = 2", "block.__dict__"),
        ("    @cached_property\n    def total(self):\n        return 1", "cached_property Block.total"),
        ("    def add(self):\n        self.sizes.clear()", "self.sizes.clear()"),
    ],
    ids=["entry", "entry-or-none", "method", "replaced", "setattr", "dict", "cached", "self"],
)
def test_finds_a_write(code, line):
    found = find_writes({"block.py": FROZEN + code})
    assert [entry.partition(": ")[2] for entry in found] == [line]


def test_reading_and_making_are_no_writes():
    code = (
        "def f(block: Block):\n    sizes = dict(block.sizes)\n    sizes[0] = 1\n    return replace(block, sizes=sizes)"
    )
    assert find_writes({"block.py": FROZEN + code}) == []
