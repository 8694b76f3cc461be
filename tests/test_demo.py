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

# What `mindswap run` executes in PyNative mode, and its workers.
PYNATIVE = {"case3_op_swap": "1", "case4_swap_and_recompute": "2"}


def test_the_demo_trains_the_four_cases_and_finds_their_swap_in_the_graph():
    command = [sys.executable, str(ROOT / "tools" / "demo.py")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    assert result.returncode == 0, (result.stdout + result.stderr)[-5000:]
    assert result.stderr == ""
    lines = [line.split() for line in result.stdout.splitlines() if line.startswith("case")]
    # Three tables of graph mode under a header each, then what PyNative mode executed.
    assert [line[0] for line in lines] == ["case", *CASES, "case", *CASES, "case", *CASES, *PYNATIVE]
    assert max(map(len, result.stdout.splitlines())) <= 125  # was 167: wraps on any usual terminal
    assert "[demo] 5/" in result.stdout  # which part, of how many
    assert "qwen3_op_swap" in result.stdout
    tables = (lines[1:5], lines[6:10], lines[11:15], lines[15:])
    trained, compiled, executed, pynative = ({line[0]: line for line in table} for table in tables)
    for name, pairs in CASES.items():
        _, log_lines, first_loss, _, last_loss, is_equal, as_asked = trained[name]
        assert log_lines == "8/8"
        assert float(last_loss) < float(first_loss) - 1
        assert (is_equal, as_asked) == ("yes", "yes")
        assert compiled[name][1:5] == pairs
        _, num_operators, num_copies, as_plain, as_mindspore, as_simulated, peak_without, peak = executed[name]
        assert int(num_copies) == sum(map(int, pairs))
        assert as_plain == as_mindspore == "39/39"  # embedding, 4 layers of 9 weights, last norm, head
        assert as_simulated == f"{num_operators}/{num_operators}"
        assert int(peak) < int(peak_without)
    for name, num_workers in PYNATIVE.items():
        assert pynative[name][1] == num_workers
        *_, as_without_swap, kib_out, kib_back, peak_without, peak, predicted = pynative[name]
        assert as_without_swap == "yes"
        assert float(kib_out) == float(kib_back) > 0
        assert float(peak) == float(predicted) < float(peak_without)
