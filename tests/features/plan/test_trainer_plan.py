"""Plans of files of MindFormers 2.x, recorded and dry run with the trainer of MindFormers 2.1.0, without a card."""

import json
from pathlib import Path

import pytest

from mindswap import cli
from mindswap.features.dryrun import has_mindformers_2x

pytestmark = [
    pytest.mark.mindspore,
    pytest.mark.mindformers2,
    pytest.mark.skipif(not has_mindformers_2x(), reason="make test-2x runs it where MindFormers 2.x is"),
]

SMALL = Path(__file__).parents[2] / "data/qwen3_2x.yaml"
KEPT, BUDGET = 190071808, 160 << 20  # bytes


def test_a_plan_is_dry_run_before_it_is_written(tmp_path, monkeypatch, capsys):
    """The step is recorded, and the plan runs with the trainer; a simulation then takes the step from the cache."""
    monkeypatch.setenv("MINDSWAP_CACHE", str(tmp_path / "cache"))
    target = tmp_path / "planned.yaml"
    assert cli.main(["plan", str(SMALL), "--memory", f"{BUDGET}B", "-o", str(target), "--json"]) == 0
    out, err = capsys.readouterr()
    planned = json.loads(out)
    last = planned["dry_runs"][-1]
    measured = last["dry_run"]["used_peak_bytes"]
    assert last["fits"] and measured <= BUDGET and "recording a step" in err
    assert planned["peak_bytes"] == pytest.approx(measured, rel=0.03)
    assert cli.main(["simulate", str(target), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["peak_bytes"] == planned["peak_bytes"] and "recording a step" not in err
    data = json.loads(out)
    assert data["peak_bytes"] < KEPT
