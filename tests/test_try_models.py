"""The commands on the training configurations that the wheel of MindFormers brings, and the table of all 31.

    MINDSWAP_MODELS_FOLDER=~/mindformers pytest -m mindspore -k every_file tests/test_try_models.py

is every command on all of them, as `make models`: an hour.
"""

import importlib.util
import json
import os
import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from mindswap import cli

TOOL = Path(__file__).parents[1] / "tools" / "try_models.py"
EFFORT = "7 s, 1.0 GB"
OUTER = {"ok": True, "error": None, "problems": []}
CHECKOUT = os.environ.get("MINDSWAP_MODELS_FOLDER", "")
# What a cell may say; "refused: ..." may stand in all of them.
TOOK = r" \(\d+ s, \d+\.\d GB\)"
VERIFIED = rf"(right|nothing asked|NOT as asked in \d+ of \d+ layers){TOOK}"
FORMS = {
    "check": "right",
    "explain": "right",
    "inspect": f"right{TOOK}",
    "verify": VERIFIED,
    "verify swap": VERIFIED,
    "simulate": rf"\d+\.\d\d s(, does not fit)?{TOOK}",
    "plan": rf"(\d+\.\d\d s, \d+\.\d % above the bound|nothing fits){TOOK}",
    "verify plan": rf"no plan|not tried|right{TOOK}",
    "tried": r"20\d\d-\d\d-\d\d",
}


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
    simulated = {"step_time_ns": 1_254_000_000, "fits": True}
    assert cell("simulate", 0, **simulated) == "1.25 s (7 s, 1.0 GB)"
    assert cell("simulate", 1, **simulated | {"fits": False}, ok=False).startswith("1.25 s, does not fit")


def test_figures_of_a_plan():
    planned = {"status": "feasible", "step_time_ns": 2 * 10**9, "gap": 0.0123}
    assert cell("plan", 0, **planned) == "2.00 s, 1.2 % above the bound (7 s, 1.0 GB)"
    nothing = {"status": "infeasible", "ok": False}
    assert cell("plan", 1, **nothing) == "nothing fits (7 s, 1.0 GB)"


def test_a_graph_that_does_not_do_what_is_asked():
    assert cell("verify", 0, layers=[]) == "nothing asked (7 s, 1.0 GB)"
    layers = [{"layer": 0, "ok": True}, {"layer": 1, "ok": False}]
    assert cell("verify", 1, ok=False, layers=layers) == "NOT as asked in 1 of 2 layers (7 s, 1.0 GB)"


@pytest.mark.parametrize(("verified", "says"), [(True, "right"), (False, "NOT as asked"), (None, "nobody could tell")])
def test_a_plan_that_is_verified_before_it_is_written(verified, says):
    assert cell("verify plan", 0, verified=verified) == f"{says} (7 s, 1.0 GB)"


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
    assert row.endswith("| as `explain` | not tried | not tried |")


def lines_of(page):
    text = page.read_text("utf-8")
    return text[text.index(TRY.BEGIN) + len(TRY.BEGIN) : text.index(TRY.END)].strip().splitlines()


def rows_of(lines):
    """Cells by configuration and command, as the tool had them before it wrote the table."""
    columns = ["configuration", *FORMS]
    assert lines[0] == "| " + " | ".join(columns) + " |"
    rows = {}
    for line in lines[2:]:
        cells = dict(zip(columns, line.strip("| ").split(" | "), strict=True))
        name = cells.pop("configuration").strip("`")
        rows[name] = {column: cells[text[4:-1]] if text[:4] == "as `" else text for column, text in cells.items()}
    return rows


def test_the_table_of_the_docs_is_as_the_tool_writes_it():
    lines, translated = (lines_of(page) for page in TRY.PAGES)
    assert lines == translated
    rows = rows_of(lines)
    assert lines == TRY.table(rows)
    # All 31 training configurations of MindFormers 1.9.0, and the 7 without a model once more with one.
    assert len(rows) == 31 + 7
    assert {name.split(f" {TRY.OPTION} ")[0] for name in rows if TRY.OPTION in name} == set(TRY.WITHOUT_MODEL)
    wrong = {
        (name, command): cells[command]
        for name, cells in rows.items()
        for command, form in FORMS.items()
        if not re.fullmatch(f"{form}|refused: .+", cells[command])
    }
    assert not wrong
    assert all(text == TRY.plain(text) for cells in rows.values() for text in cells.values())


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
    cells, of_the_docs = {}, rows_of(lines_of(TRY.PAGES[0]))
    for name, config, options in tries:
        # Not `TRY.run`, which starts a process for each.
        code = cli.main([command, "--json", str(config), *options])
        printed = capsys.readouterr()
        found = TRY.judge(command, code, printed.out, printed.err, EFFORT)
        assert not found.is_fault, f"{name}: {found.cell}"
        cells[name] = found.cell
        assert found.cell == of_the_docs[name][command], f"{name}: docs/models.md says something else"
    # The wheel of 1.9.0 has 15 of the files; the model of 7 is in a folder, and they are tried with one as well.
    assert len(cells) == 15 + 7
    refused = {name: text for name, text in cells.items() if text != "right"}
    offset = refused.pop("configs/telechat3_moe/pretrain_telechat3_105b_a4b_4k.yaml")
    assert "0 adds up to 0, but 45 layers on 8 stages x 1 chunks leave a remainder of 5" in offset
    if command == "explain":
        assert "how many layers" in refused.pop("configs/general/run_general_task.yaml")
    assert all("pretrained_model_dir: the model is not known" in text for text in refused.values())
    # Of those 7, one says itself how many layers there are.
    assert len(refused) == (6 if command == "explain" else 0)


@pytest.mark.mindspore
@pytest.mark.skipif(not CHECKOUT, reason="MINDSWAP_MODELS_FOLDER names no checkout of MindFormers")
@pytest.mark.parametrize("command", TRY.COMMANDS)
@pytest.mark.parametrize("row", TRY.find_tries(Path(CHECKOUT)) if CHECKOUT else [], ids=lambda row: row[0])
def test_every_file_through_every_command(row, command):
    name, config, options = row
    found = TRY.run(command, config, options, 240, TRY.PLACE / "captures")
    print(f"{name}: {command}: {found.cell}")
    assert not found.is_fault, found.cell
