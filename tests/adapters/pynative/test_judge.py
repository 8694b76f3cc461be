"""What the schedule predicts is what happens, byte by byte: 12 policies on three networks, in processes of their own.

By default only the small network runs, one step of each. `MINDSWAP_LONG=N pytest tests/adapters/pynative/test_judge.py`
trains all three for N steps with an optimizer.
"""

import json
import os
from pathlib import Path

import pytest

from tests import forked

pytestmark = pytest.mark.mindspore

ROOT = Path(__file__).parents[3]
CONFIGS = ROOT / "configs"
NUM_STEPS = int(os.environ.get("MINDSWAP_LONG", "0"))
NETWORKS = {
    "small": "small",
    "llama": str(CONFIGS / "llama2_7b" / "cpu" / "case3_op_swap.yaml"),
    "qwen3": str(CONFIGS / "qwen3" / "cpu" / "pynative.yaml"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_predicted_is_what_happens(name):
    if name != "small" and not NUM_STEPS:
        pytest.skip("two minutes of CPU: set MINDSWAP_LONG")
    command = ["-m", "tests.adapters.pynative.judged", NETWORKS[name], str(NUM_STEPS or 1)]
    ran = forked.run(command, cwd=ROOT, timeout=3600)
    assert ran.returncode == 0, ran.stderr[-3000:]
    rows = json.loads(ran.stdout.splitlines()[-1])
    assert len(rows) == 12
    for row in rows:
        assert row["is_equal"], row  # losses and gradients, bit for bit, with freed memory filled with NaN
        assert row["is_order_equal"] and row["is_all_equal"] and row["num_passes"] > 0, row
        assert row["peaks"] == [row["predicted_peak"]], row
        assert row["out"] == row["back"] and row["left"] == 0, row
    assert sum(row["out"] > 0 for row in rows) >= 10
