"""The commands on the training configurations that the wheel of MindFormers brings; `make models` tries all 31."""

import importlib.util
import json
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from mindswap import cli

TOOL = Path(__file__).parents[1] / "tools" / "try_models.py"
EFFORT = "7 s, 1.0 GB"
OUTER = {"ok": True, "error": None, "problems": []}


def load():
    spec = importlib.util.spec_from_file_location("try_models", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TRY = load()


def cell(command, code, **answer):
    found = TRY.judge(command, code, json.dumps({**OUTER, **answer}), "", EFFORT)
    assert not found.is_fault
    return found.cell


def test_figures_of_a_simulation():
    # 54 GiB = 54 x 2**30
    simulated = {"step_time_ns": 1_254_000_000, "peak_bytes": 54 * 2**30, "fits": True}
    assert cell("simulate", 0, **simulated) == "1.25 s, 54.0 GiB (7 s, 1.0 GB)"
    assert cell("simulate", 1, **simulated | {"fits": False}, ok=False).startswith("1.25 s, 54.0 GiB, does not fit")


def test_figures_of_a_plan():
    planned = {"status": "feasible", "step_time_ns": 2 * 10**9, "gap": 0.0123}
    assert cell("plan", 0, **planned) == "2.00 s, 1.2 % above the bound (7 s, 1.0 GB)"
    nothing = {"status": "infeasible", "least_budget_bytes": 2**30, "ok": False}
    assert cell("plan", 1, **nothing) == "nothing fits, least 1.0 GiB (7 s, 1.0 GB)"


def test_a_graph_that_does_not_do_what_is_asked():
    assert cell("verify", 0, layers=[]) == "nothing asked (7 s, 1.0 GB)"
    layers = [{"layer": 0, "ok": True}, {"layer": 1, "ok": False}]
    assert cell("verify", 1, ok=False, layers=layers) == "NOT as asked in 1 of 2 layers (7 s, 1.0 GB)"


def test_a_reason_has_neither_place_nor_fix():
    error = "/a/b.yaml:12:23: pretrained_model_dir: the model is not known: x/config.json\n    fix:     name a folder"
    text = "refused: pretrained_model_dir: the model is not known: x/config.json"
    assert cell("inspect", 1, ok=False, error=error) == text
    assert cell("inspect", 1, ok=False, error=f"no | layers\n{error}") == f"refused: no / layers; {text[9:]}"
    built = "MindFormers could not build the network of /tmp/x/a.yaml: no"
    assert cell("plan", 1, ok=False, error=built) == "refused: MindFormers could not build the network of a.yaml: no"
    wrong = [{"level": "warning", "message": "w"}, {"level": "error", "message": "offset: 0 adds up to 0"}]
    assert cell("check", 1, ok=False, problems=wrong) == "refused: offset: 0 adds up to 0"


@pytest.mark.parametrize(
    ("code", "output", "errors", "says"),
    [
        (3, json.dumps(OUTER), "mindswap: a bug: KeyError: 'x'\n    please report it", "a bug: KeyError: 'x'"),
        (1, json.dumps(OUTER), "Traceback (most recent call last):\nKeyError", "KeyError"),
        (0, "", "", "nothing printed"),
        (-24, "", "", "not done after 7 s"),
    ],
)
def test_faults(code, output, errors, says):
    found = TRY.judge("plan", code, output, errors, EFFORT)
    assert found.is_fault
    assert says in found.cell


def test_a_reason_stands_once_in_a_row():
    (row,) = TRY.table({"a.yaml": {"check": "right", "explain": "refused: x", "plan": "refused: x"}})[2:]
    assert row.count("refused: x") == 1
    assert row.endswith("| as `explain` | not tried |")


def wheel():
    try:
        return Path(distribution("mindformers").locate_file(""))
    except PackageNotFoundError:
        return Path("/no/wheel")


@pytest.fixture(scope="module")
def tries(tmp_path_factory):
    TRY.PLACE = tmp_path_factory.mktemp("models")
    return TRY.find_tries(wheel())


@pytest.mark.mindspore
@pytest.mark.parametrize("command", ["check", "explain"])
def test_the_files_of_the_wheel_are_right_or_refused_with_what_is_missing_upstream(tries, capsys, command):
    cells = {}
    for name, config, options in tries:
        # Not `TRY.run`, which starts a process for each.
        code = cli.main([command, "--json", str(config), *options])
        printed = capsys.readouterr()
        found = TRY.judge(command, code, printed.out, printed.err, EFFORT)
        assert not found.is_fault, f"{name}: {found.cell}"
        cells[name] = found.cell
    # The wheel of 1.9.0 has 15 of the files; the model of 7 is in a folder, and they are tried with one as well.
    assert len(cells) == 15 + 7
    refused = {name: text for name, text in cells.items() if text != "right"}
    offset = refused.pop("configs/telechat3_moe/pretrain_telechat3_105b_a4b_4k.yaml")
    assert "0 adds up to 0, but 45 layers on 8 stages x 1 chunks leave a rest of 5" in offset
    if command == "explain":
        assert "how many layers" in refused.pop("configs/general/run_general_task.yaml")
    assert all("pretrained_model_dir: the model is not known" in text for text in refused.values())
    # Of those 7, one says itself how many layers there are.
    assert len(refused) == (6 if command == "explain" else 0)
