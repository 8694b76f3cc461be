"""The main job of the package, as `make demo` runs it: the four cases on the Ascend backend, and trained on CPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.strength import is_nightly

pytestmark = pytest.mark.mindspore

ROOT = Path(__file__).resolve().parents[1]
# Pairs per layer as worked out in tests/adapters/test_cases.py: attention 6, feed_forward 5, all of a layer 17.
CASES = {
    "case1_default_swap": ["1", "1", "1", "1"],
    "case2_layer_swap": ["17", "0", "0", "17"],
    "case3_op_swap": ["6", "11", "11", "6"],
    "case4_swap_and_recompute": ["6", "11", "11", "6"],
}

# Numbers of copies as above. Bytes by hand, 2 samples of 64 tokens, hidden 64, ffn 192, 4 heads of 16: hidden states
# 32 KiB (2 * 64 * 64 * 4 B), of ffn 96 KiB, probabilities 128 KiB (2 * 4 * 64 * 64 * 4 B), 1 / root mean square 512 B.
KIB = 1024
ATTENTION = 5 * 32 * KIB + 128 * KIB
FEED_FORWARD = 32 * KIB + 4 * 96 * KIB
REST = 4 * 32 * KIB + 2 * 512
COPIED = {
    "case1_default_swap": (4, 4 * 128 * KIB),
    "case2_layer_swap": (2 * 17, 2 * (ATTENTION + FEED_FORWARD + REST)),
    "case3_op_swap": (4 * 6 + 2 * 5, 4 * ATTENTION + 2 * FEED_FORWARD),
    "case4_swap_and_recompute": (4 * 6 + 2 * 5, 4 * ATTENTION + 2 * FEED_FORWARD),
}

# What `mindswap run` executes in PyNative mode, and its workers.
PYNATIVE = {"case4_swap_and_recompute": "2", "qwen3_op_swap": "1"}


@pytest.fixture(scope="module")
def result():
    command = [sys.executable, str(ROOT / "tools" / "demo.py"), "--cpu-only"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)


def test_the_demo_trains_the_four_cases_and_finds_their_swap_in_the_graph(result):
    assert result.returncode == 0, (result.stdout + result.stderr)[-5000:]
    assert result.stderr == ""
    lines = [line.split() for line in result.stdout.splitlines() if line.startswith(("case", *PYNATIVE))]
    # Three tables of graph mode under a header each, then what PyNative mode executed.
    assert [line[0] for line in lines] == ["case", *CASES, "case", *CASES, "case", *CASES, *PYNATIVE]
    assert max(map(len, result.stdout.splitlines())) <= 125  # was 167: wraps on any usual terminal
    assert "[demo] 5/" in result.stdout  # which part, of how many
    tables = (lines[1:5], lines[6:10], lines[11:15], lines[15:])
    trained, compiled, executed, pynative = ({line[0]: line for line in table} for table in tables)
    for name, pairs in CASES.items():
        _, num_workers, log_lines, first_loss, _, last_loss, is_equal, as_asked = trained[name]
        assert (num_workers, log_lines) == ("2", "2/2")
        assert float(last_loss) < float(first_loss) - 0.5
        assert (is_equal, as_asked) == ("yes", "yes")
        assert compiled[name][1:5] == pairs
        _, _, num_copies, as_plain, as_mindspore, peak_without, peak = executed[name]
        assert int(num_copies) == sum(map(int, pairs))
        assert as_plain == as_mindspore == "39/39"  # embedding, 4 layers of 9 weights, last norm, head
        assert int(peak) < int(peak_without)
    for name, num_workers in PYNATIVE.items():
        assert pynative[name][1] == num_workers
        *_, as_without_swap, kib_out, kib_back, peak_without, peak, predicted = pynative[name]
        assert as_without_swap == "yes"
        assert float(kib_out) == float(kib_back) > 0
        assert float(peak) == float(predicted) < float(peak_without)


# Four layers of 7B, 8 ranks, MiB without fragments: as MindSpore 2.9.0 printed them on 2026-11-23 (without mindswap's
# runner, by hand); case 2 does not build there.
PEAKS = {"swap and recompute off": 8816, "case1_default_swap": 8656, "case4_swap_and_recompute": 7661}


@pytest.mark.skipif(not is_nightly(), reason="5 min; smaller ones by day: tests/training/dryrun/test_backend.py")
def test_the_cases_on_the_ascend_backend(tmp_path):
    program = (
        f"import sys; from pathlib import Path; sys.path.insert(0, {str(ROOT / 'tools')!r})\n"
        "from demo import CASES; from demo_ascend import show_ascend\n"
        f"sys.exit(bool(show_ascend(CASES, Path({str(tmp_path)!r}))))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for name, mib in PEAKS.items():
        (row,) = (line for line in done.stdout.splitlines() if line.startswith(f"{name}  "))
        assert int(row.removeprefix(name).split()[1]) == pytest.approx(mib, rel=0.01)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_bit_equal(result, name):
    executed = execution(name)
    assert executed["ok"] and executed["gradients_equal"] and executed["num_gradients"] == 39, result.stdout[-3000:]
    assert (executed["num_copies"], executed["offloaded_bytes"]) == COPIED[name]
    assert executed["peak_bytes"] < executed["plain_peak_bytes"]


@pytest.mark.parametrize("name", CASES)
def test_every_operator_is_mindspores_own_and_mindspore_gets_the_same(result, name):
    executed = execution(name)
    assert executed["stand_ins"] == executed["in_float32"] == {}
    assert executed["witness"] == {"is_loss_equal": True, "num_equal": 39, "relative_difference": 0.0, "failure": ""}


def execution(name):
    """What `mindswap verify --execute` said of a case in the demo."""
    return json.loads((ROOT / "output" / "demo" / name / "verify.json").read_text())["execution"]
