"""Changes one thing at a time in a module and says which changes no test notices.

    python tools/mutate.py mindswap/adaptive/decide.py tests/adaptive/test_decide.py --sample 50

Each mutant runs in a fork of its own, which has the changed module before any test imports it. Use it on a module whose
tests are quick; a survivor is a missing test, or a change without a meaning.
"""

import argparse
import ast
import contextlib
import copy
import importlib
import importlib.util
import io
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

LIMIT_S = 60
COMPARISONS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr, ast.RShift: ast.LShift, ast.LShift: ast.RShift,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
Change = Callable[[ast.AST], None]


def changes(node: ast.AST) -> Iterator[tuple[str, Change]]:
    """What can be changed at a node: its name, and how."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        other = COMPARISONS[type(node.ops[0])]
        yield other.__name__, lambda n: n.ops.__setitem__(0, other())
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        operator = OPERATORS[type(node.op)]
        yield operator.__name__, lambda n: setattr(n, "op", operator())
    if isinstance(node, ast.BoolOp):
        swapped = ast.Or if isinstance(node.op, ast.And) else ast.And
        yield swapped.__name__, lambda n: setattr(n, "op", swapped())
    if isinstance(node, (ast.If, ast.IfExp)):
        yield "not", lambda n: setattr(n, "test", ast.UnaryOp(ast.Not(), n.test))
    if isinstance(node, ast.Name) and node.id in NAMES and isinstance(node.ctx, ast.Load):
        yield NAMES[node.id], lambda n: setattr(n, "id", NAMES[n.id])
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield str(not node.value), lambda n: setattr(n, "value", not n.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield f"{node.value + 1}", lambda n: setattr(n, "value", n.value + 1)


def mutants(tree: ast.Module) -> Iterator[tuple[str, ast.Module]]:
    """Every tree that differs in one place, with line and change."""
    for index, node in enumerate(ast.walk(tree)):
        for number, (name, _) in enumerate(changes(node)):
            changed = copy.deepcopy(tree)
            target = next(one for place, one in enumerate(ast.walk(changed)) if place == index)
            list(changes(target))[number][1](target)
            line = getattr(node, "lineno", 0)
            yield f"line {line}: {ast.unparse(node).splitlines()[0][:70]} -> {name}", ast.fix_missing_locations(changed)


def is_killed(module: str, path: Path, tree: ast.Module, tests: list[str]) -> bool:
    """Whether a test fails with this tree in place of the module."""
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT_S)  # a loop without end is noticed too
        code = 1
        with contextlib.suppress(BaseException):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            spec = importlib.util.spec_from_file_location(module, path)
            assert spec is not None
            made = importlib.util.module_from_spec(spec)
            sys.modules[module] = made
            parent, _, name = module.rpartition(".")
            setattr(importlib.import_module(parent), name, made)
            exec(compile(tree, str(path), "exec"), made.__dict__)
            with contextlib.redirect_stdout(io.StringIO()):
                code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests]))
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0


def main() -> int:
    """Print the survivors and the share that was killed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("module", type=Path)
    parser.add_argument("tests", nargs="+")
    parser.add_argument("--sample", type=int, help="only so many, chosen with a fixed seed")
    args = parser.parse_args()
    module = ".".join(args.module.with_suffix("").parts)
    importlib.import_module(module)  # what it imports is there for every fork
    tree = ast.parse(args.module.read_text("utf-8"))
    found = list(mutants(tree))
    if args.sample and args.sample < len(found):
        found = random.Random(0).sample(found, args.sample)
    if is_killed(module, args.module, tree, args.tests):
        print("the tests fail without any change", file=sys.stderr)
        return 1
    killed = 0
    for name, mutant in found:
        if is_killed(module, args.module, mutant, args.tests):
            killed += 1
        else:
            print(f"survived: {args.module} {name}", flush=True)
    print(f"{args.module}: {killed} of {len(found)} killed, {100 * killed // max(len(found), 1)} %")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    sys.exit(main())
