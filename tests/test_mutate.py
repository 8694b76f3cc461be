"""What `tools/mutate.py` changes."""

import ast
import importlib.util
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "mutate.py"


def load():
    spec = importlib.util.spec_from_file_location("mutate", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_one_change_at_a_time():
    tool, tree = load(), ast.parse("x = a < 1 and max(b, c) is None")
    found = [ast.unparse(tool.mutate(tree, index, number)) for index, number, _ in tool.mutants(tree)]
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
    text = (
        "if TYPE_CHECKING:\n    import a\n@dataclass(frozen=True)\nclass C:\n    '1'\n    x: int | None = g('a')\n"
        "def f(a: int | str = g('b')) -> tuple[int, 3]:\n    assert a is not None and a > 0\n    zip(a, a, strict=True)"
    )
    assert list(load().mutants(ast.parse(text))) == []


@pytest.mark.long
def test_the_changed_module_is_there_for_whoever_imports_it(tmp_path, monkeypatch):
    """Also for a package that imports it, which a module put into `sys.modules` later would not reach."""
    (tmp_path / "mutated").mkdir()
    (tmp_path / "mutated" / "__init__.py").write_text("from mutated.one import VALUE\n")
    (tmp_path / "mutated" / "one.py").write_text("VALUE = 1\n")
    (tmp_path / "test_one.py").write_text("import mutated\n\ndef test_one():\n    assert mutated.VALUE == 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    tool, path = load(), Path("mutated/one.py")
    tree = ast.parse(path.read_text())
    [(index, number, _)] = tool.mutants(tree)
    assert tool.is_killed(path, tool.mutate(tree, index, number), ["test_one.py"], "")
    assert not tool.is_killed(path, tree, ["test_one.py"], "")
    assert not tool.is_killed(path, tool.mutate(tree, index, number), ["test_one.py"], "mindspore"), (
        "no test, no answer"
    )


@pytest.mark.long
def test_what_takes_too_long_on_the_clock_is_not_killed_and_what_computes_without_end_is(tmp_path, monkeypatch):
    (tmp_path / "endless.py").write_text("VALUE = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    tool, path = load(), Path("endless.py")
    monkeypatch.setattr(tool, "CPU_LIMIT_S", 2)
    for does, is_killed in (("__import__('time').sleep(60)", False), ("[0 for _ in iter(int, 1)]", True)):
        (tmp_path / "test_endless.py").write_text(f"def test_endless():\n    {does}\n")
        monkeypatch.setattr(tool, "LIMIT_S", 600 if is_killed else 1)
        assert tool.is_killed(path, ast.parse(path.read_text()), ["test_endless.py"], "") is is_killed


def test_its_own_tests_are_tried_first_and_once(tmp_path, monkeypatch):
    folder = tmp_path / "tests" / "simulator" / "profile"
    folder.mkdir(parents=True)
    (folder / "test_calibration.py").write_text("")
    monkeypatch.chdir(tmp_path)
    own = "tests/simulator/profile/test_calibration.py"
    assert list(load().rounds(Path("mindswap/simulator/profile/calibration.py"), ["tests/planner"])) == [
        ("its own tests", [own]),
        ("its folder", ["tests/simulator/profile", f"--ignore={own}"]),
        ("the others", ["tests/planner", f"--ignore={own}"]),
    ]


def test_without_a_folder_of_its_own_the_tests_of_the_folder_above_are_met(tmp_path, monkeypatch):
    """Else a mutant there would meet no test, and survive."""
    (tmp_path / "tests" / "planner").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    module = Path("mindswap/planner/lower_bound/inputs.py")
    assert list(load().rounds(module, [])) == [("its folder", ["tests/planner"])]
    assert list(load().rounds(Path("mindswap/pynative/trace.py"), [])) == []
