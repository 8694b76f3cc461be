"""Changes one thing at a time in the code and says which changes no test notices.

    python tools/mutate.py mindswap/policy mindswap/features/adaptive/decide.py --sample 200 --results /tmp/mutants.json

A mutant meets the test files of its name first (`tests/policy/test_resolve*.py` for `mindswap/policy/resolve.py`),
what is left the rest of their folder, what is still left the tests of `--then`.
Each runs in a fork of its own, which imports the changed module wherever it is asked for. With `--results` a run goes
on where the last one stopped.
A survivor is a missing test, or a change without a meaning, or its tests took too long to say: try those `--again`.
"""

import argparse
import ast
import contextlib
import copy
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Of computing, so that a loop without end is noticed too; and of the clock, which says nothing on a busy machine.
CPU_LIMIT_S, LIMIT_S = 120, 1200
PASSED, NOTHING_COLLECTED = 0, 5  # exit codes of pytest
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
# A module, the number of the node in it, and which of its changes.
Place = tuple[Path, int, int]


def changes(node: ast.AST) -> Iterator[tuple[str, Change]]:
    """Changes that a node can have: name, and how."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        replacement = COMPARISONS[type(node.ops[0])]
        yield replacement.__name__, lambda n: n.ops.__setitem__(0, replacement())
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


def mutants(tree: ast.Module) -> Iterator[tuple[int, int, str]]:
    """Every change of one place, as number of the node, number of the change, and both in words.

    What no test can notice, or every import does, is left out: options of decorators, types, what only types are
    imported for, and what is asserted for the reader.
    """
    left_out = {id(part) for node in ast.walk(tree) for part in _without_effect(node)}
    for index, node in enumerate(ast.walk(tree)):
        for number, (name, _) in enumerate(changes(node) if id(node) not in left_out else ()):
            line = getattr(node, "lineno", 0)
            yield index, number, f"line {line}: {ast.unparse(node).splitlines()[0][:70]} -> {name}"


def _without_effect(node: ast.AST) -> Iterator[ast.AST]:
    for decorator in getattr(node, "decorator_list", ()):
        yield from ast.walk(decorator)
    for types in (getattr(node, "annotation", None), getattr(node, "returns", None)):
        yield from ast.walk(types) if types is not None else ()
    if isinstance(node, ast.Assert):
        yield from ast.walk(node)
    if isinstance(node, ast.keyword) and node.arg == "strict":  # of zip: says to the reader that lengths are equal
        yield node.value
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        yield node


def mutate(tree: ast.Module, index: int, number: int) -> ast.Module:
    """The tree with that change."""
    changed = copy.deepcopy(tree)
    target = next(node for place, node in enumerate(ast.walk(changed)) if place == index)
    list(changes(target))[number][1](target)
    return ast.fix_missing_locations(changed)


class Changed(importlib.abc.MetaPathFinder, importlib.machinery.SourceFileLoader):
    """Gives a tree in place of one module, whoever imports it."""

    def __init__(self, path: Path, tree: ast.Module) -> None:
        parts = path.with_suffix("").parts
        super().__init__(".".join(parts[:-1] if parts[-1] == "__init__" else parts), str(path.resolve()))
        self.tree = tree

    def find_spec(self, fullname, path=None, target=None):
        """The module, if it is the one."""
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self)

    def get_code(self, fullname):
        """Of the tree, not of the file or its cache."""
        return compile(self.tree, self.path, "exec")


def is_killed(path: Path, tree: ast.Module, tests: list[str], marker: str) -> bool:
    """True if a test fails with this tree in place of the module; no if there is no test."""
    compiled = tempfile.TemporaryDirectory() if "@compiled" in path.read_text("utf-8") else None
    child = os.fork()
    if child == 0:
        if compiled is not None:  # machine code of a caller has what it calls in it, and is kept by the caller
            os.environ["NUMBA_CACHE_DIR"] = compiled.name
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S + 5))
        signal.alarm(LIMIT_S)
        code = 1
        with contextlib.suppress(BaseException):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            sys.meta_path.insert(0, Changed(path, tree))
            _without_shrinking()
            with contextlib.redirect_stdout(io.StringIO()):
                code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-m", marker, *tests]))
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if compiled is not None:
        compiled.cleanup()
    return code not in (PASSED, NOTHING_COLLECTED, -signal.SIGALRM)


def _without_shrinking() -> None:
    """A generated example that fails is enough; finding a smaller one takes minutes."""
    with contextlib.suppress(ImportError):
        from hypothesis import Phase, settings

        settings.register_profile("mutants", phases=[Phase.explicit, Phase.generate], derandomize=True, database=None)
        settings.load_profile("mutants")


def rounds(path: Path, then: list[str]) -> Iterator[tuple[str, list[str]]]:
    """The tests that a mutant of a module meets, the nearest first, and as options of pytest what was tried before.

    What has no folder of its own under `tests` is tested by the folder above.
    """
    folder = Path("tests", *path.parent.parts[1:])
    while not folder.is_dir() and len(folder.parts) > 2:
        folder = folder.parent
    nearest_tests = sorted(map(str, folder.glob(f"test_{path.stem}*.py")))
    if nearest_tests:
        yield "its own tests", nearest_tests
    ignore_options = [f"--ignore={test}" for test in nearest_tests]
    if folder.is_dir():
        yield "its folder", [str(folder), *ignore_options]
    if then:
        yield "the others", [*then, *ignore_options]


def find_killer(place: Place, then: list[str], marker: str) -> str | None:
    """The round that notices the change."""
    path, index, number = place
    tree = mutate(ast.parse(path.read_text("utf-8")), index, number)
    return next((name for name, tests in rounds(path, then) if is_killed(path, tree, tests, marker)), None)


def main() -> int:
    """Print the survivors and the share that was killed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", type=Path, nargs="+", help="files, or folders of them, from the repository's root")
    parser.add_argument("--then", nargs="*", default=[], help="tests for what the mirrored folder does not notice")
    parser.add_argument("--marker", default="not mindspore and not ascend", help="tests to run, as -m of pytest")
    parser.add_argument("--sample", type=int, help="only so many, chosen by --seed")
    parser.add_argument("--seed", type=int, default=0, help="another one chooses mutants that nobody worked on")
    parser.add_argument("--results", type=Path, help="JSON file to go on from")
    parser.add_argument("--again", action="store_true", help="try those that survived again")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no mutant after that")
    args = parser.parse_args()
    end = time.monotonic() + args.seconds
    for name in ("numpy", "scipy.optimize", "hypothesis", "yaml", "regex", "mindspore"):  # once, not in every fork
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    paths = [
        path for module in args.modules for path in (sorted(module.rglob("*.py")) if module.is_dir() else [module])
    ]
    names = {(path, i, n): name for path in paths for i, n, name in mutants(ast.parse(path.read_text("utf-8")))}
    chosen = list(names)
    if args.sample and args.sample < len(chosen):
        chosen = random.Random(args.seed).sample(chosen, args.sample)
    results = json.loads(args.results.read_text("utf-8")) if args.results and args.results.exists() else {}
    for place in chosen:
        key = f"{place[0]} {names[place]} ({place[1]}.{place[2]})"
        is_open = key not in results or (args.again and results[key] is None)
        if is_open and time.monotonic() < end:
            results[key] = find_killer(place, args.then, args.marker)
            if results[key] is None:
                print(f"survived: {key}", flush=True)
            if args.results:
                args.results.write_text(json.dumps(results, indent=1), encoding="utf-8")
    killed = sum(killer is not None for killer in results.values())
    print(f"{killed} of {len(results)} killed, of {len(chosen)} chosen and {len(names)} possible")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    sys.exit(main())
