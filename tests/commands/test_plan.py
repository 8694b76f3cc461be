"""`mindswap plan`: exit codes, text, what it writes; plans themselves are in tests/plan/test_planner.py."""

import json
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from mindswap import cli

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "configs" / "llama2_7b" / "cpu" / "case3_op_swap.yaml"


@pytest.fixture
def plan(capsys):
    def run(*options):
        code = cli.main(["plan", *map(str, options)])
        captured = capsys.readouterr()
        assert "a bug" not in captured.err and "Traceback" not in captured.err, captured.err
        return code, captured.out, captured.err

    return run


def test_help_ends_with_examples(plan):
    code, out, _ = plan("--help")
    assert code == 0
    assert "mindswap plan llama2_7b.yaml --memory 54GiB" in out.partition("examples:")[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--allow", "offload"), "--allow offload: write swap, recompute, or swap,recompute"),
        (("--sweep", "--in-place"), "--sweep makes many plans: choose one with --memory to write it"),
        (("--objective", "speed"), "invalid choice: 'speed'"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_compiled(plan, options, message):
    code, out, error = plan(CONFIG, *options)
    assert (code, out) == (1, "")
    assert message in error


@pytest.mark.mindspore
@pytest.mark.parametrize(
    ("options", "message"),
    [(("--device", "tpu"), "tpu"), (("--memory", "4.6"), "write a number with its unit")],
)
def test_wrong_devices_and_figures_are_refused(plan, options, message):
    code, out, error = plan(CONFIG, *options)
    assert (code, out) == (1, "")
    assert message in error


@pytest.mark.mindspore
def test_a_plan_is_written_checked_and_does_what_it_says(plan, tmp_path, capsys):
    target = tmp_path / "planned.yaml"
    code, out, _ = plan(CONFIG, "--device", "cpu", "--memory", "6MiB", "--explain", "-o", target)
    assert code == 0
    assert "all figures are simulated" in out
    assert "this plan" in out
    text = target.read_text()
    assert "# mindswap: plan for 6.0 MiB per card on" in text
    assert text.startswith(CONFIG.read_text()[:200])  # the user's comments
    assert cli.main(["check", str(target)]) == 0
    assert cli.main(["verify", str(target)]) == 0
    assert "the compiled graph does what the policy asks" in capsys.readouterr().out


@pytest.mark.mindspore
def test_in_place_and_json(plan, tmp_path):
    path = tmp_path / "x.yaml"
    shutil.copy(CONFIG, path)
    code, out, _ = plan(path, "--device", "cpu", "--memory", "6MiB", "--in-place", "--json")
    data = json.loads(out)
    assert (code, data["simulated"], data["status"]) == (0, True, "feasible")
    assert data["peak_bytes"] <= 6 * 2**20
    assert data["step_time_ns"] >= data["lower_bound_ns"]
    assert path.read_text() != CONFIG.read_text()


@pytest.mark.mindspore
def test_a_budget_below_the_parameters_says_what_would_do(plan, tmp_path):
    target = tmp_path / "planned.yaml"
    code, out, _ = plan(CONFIG, "--device", "cpu", "--memory", "1MiB", "-o", target)
    assert code == 1
    assert "nothing fits; the least found needs" in out
    assert "parameters, gradients, optimizer" in out
    assert not target.exists()


@pytest.mark.mindspore
def test_a_sweep_is_a_falling_curve(plan, tmp_path):
    picture = tmp_path / "pareto.png"
    code, out, _ = plan(CONFIG, "--device", "cpu", "--allow", "recompute", "--sweep", "--json", "--plot", picture)
    curve = json.loads(out)
    assert code == 0
    assert len(curve) >= 2
    for less, more in pairwise(curve):
        assert less["peak_bytes"] < more["peak_bytes"]
        assert less["step_time_ns"] > more["step_time_ns"]
    assert picture.read_bytes().startswith(b"\x89PNG")
