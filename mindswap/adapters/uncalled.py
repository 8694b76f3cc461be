"""Cells of which a model calls only methods: `self.attention.cal_attn(...)` of interleaved Llama and TeleChat2.

With lazy_inline MindSpore recomputes what the function of a marked cell runs (`FUNC_GRAPH_RECOMPUTE_K_GRAPH`), and such
a cell has no function in the graph: recompute of it does nothing, while cells in it that are called can be recomputed.
"""

import ast
import functools
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any


def find_uncalled(cell: object) -> frozenset[str]:
    """Attributes of which the code of a cell uses nothing but methods, outside `__init__`; where it can be read."""
    kind: Any = type(cell)  # types are not hashable to mypy
    return _of_class(kind)


@functools.cache
def _of_class(cell_type: type) -> frozenset[str]:
    methods: set[str] = set()
    others: set[str] = set()
    for node, parent in _reads_of_self(cell_type):
        (methods if isinstance(parent, ast.Attribute) else others).add(node.attr)
    return frozenset(methods - others)


def _reads_of_self(cell_type: type) -> Iterator[tuple[ast.Attribute, ast.AST]]:
    """Every `self.name` with what it is a part of."""
    for owner in cell_type.__mro__:
        if owner.__module__.partition(".")[0] in ("builtins", "mindspore"):
            continue
        try:
            source = ast.parse(textwrap.dedent(inspect.getsource(owner)))
        except (OSError, TypeError, SyntaxError):  # a class that was typed in, or made by a program
            continue
        for function in ast.walk(source):
            if isinstance(function, ast.FunctionDef) and function.name != "__init__":
                for parent in ast.walk(function):
                    for node in ast.iter_child_nodes(parent):
                        if isinstance(node, ast.Attribute) and _is_self(node.value):
                            yield node, parent


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"
