"""The main job of the package, as `make demo` runs it: 8 workers train each of the four cases."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.mindspore

ROOT = Path(__file__).resolve().parents[1]
# Pairs per layer as worked out in tests/adapters/test_cases.py: attention 6, feed_forward 5, all of a layer 17.
CASES = {
    "case1_default_swap": ["1", "1", "1", "1"],
    "case2_layer_swap": ["17", "0", "0", "17"],
    "case3_op_swap": ["6", "11", "11", "6"],
    "case4_swap_and_recompute": ["6", "11", "11", "6"],
}


def test_the_demo_trains_the_four_cases_and_finds_their_swap_in_the_graph():
    command = [sys.executable, str(ROOT / "tools" / "demo.py")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    assert result.returncode == 0, (result.stdout + result.stderr)[-5000:]
    assert result.stderr == ""
    rows = {line.split()[0]: line.split() for line in result.stdout.splitlines() if line.startswith("case")}
    rows.pop("case")
    assert list(rows) == list(CASES)
    for name, pairs in CASES.items():
        _, log_lines, first_loss, _, last_loss, is_equal, *rest, as_asked = rows[name]
        assert log_lines == "8/8"
        assert float(last_loss) < float(first_loss) - 1
        assert (is_equal, as_asked) == ("yes", "yes")
        assert rest[:4] == pairs
