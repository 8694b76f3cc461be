"""What `tools/mutate.py` changes."""

import ast
import importlib.util
from pathlib import Path

TOOL = Path(__file__).parents[1] / "tools" / "mutate.py"


def load():
    spec = importlib.util.spec_from_file_location("mutate", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_one_change_at_a_time():
    found = [ast.unparse(tree) for _, tree in load().mutants(ast.parse("x = a < 1 and max(b, c) is None"))]
    assert sorted(found) == sorted(
        [
            "x = a <= 1 and max(b, c) is None",
            "x = a < 2 and max(b, c) is None",
            "x = a < 1 or max(b, c) is None",
            "x = a < 1 and min(b, c) is None",
            "x = a < 1 and max(b, c) is not None",
        ]
    )


def test_what_cannot_be_changed_is_left_alone():
    assert list(load().mutants(ast.parse("def f(x: str = 'a') -> None:\n    '''1'''\n    return g(x)"))) == []
