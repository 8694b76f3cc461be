"""Passes that overlap, as the micro-batches of a pipeline stage do, swap without changing a number."""

import json
import subprocess
import sys

import pytest

from tests.features.dryrun.test_trainer_on_backend import has_mindformers_2x

pytestmark = [
    pytest.mark.mindspore,
    pytest.mark.mindformers2,
    pytest.mark.skipif(not has_mindformers_2x(), reason="make test-2x runs it where MindFormers 2.x is"),
]


def test_losses_gradients_and_weights_are_those_without_swap_in_any_order_of_the_passes(tmp_path):
    """2 steps on a CPU, memory that is taken filled with NaN. The first pass is recorded, those beside it run alone."""
    request, result = tmp_path / "request.json", tmp_path / "result.json"
    request.write_text("{}", encoding="utf-8")
    words = ["-m", "tests.adapters.pynative.in_flight", str(request), str(result)]
    ended = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr[-2000:]
    answers = json.loads(result.read_text("utf-8"))
    assert len(answers) == 5
    assert [name for name, (is_equal, _) in answers.items() if not is_equal] == []
    # 8 passes: one is recorded, those that begin before its backward are not swapped either. An evaluation is in flight
    # until its graph is freed.
    expected = {
        "1F1B, first of 2 stages": (6, 2),
        "1F1B, recomputed": (6, 2),
        "last in, first out": (4, 4),
        "with evaluations": (4, 3),
    }
    for name, (num_passes, num_in_flight) in expected.items():
        report = answers[name][1]
        assert (report["num_passes"], report["num_in_flight"], report["is_as_predicted"]) == (
            num_passes,
            num_in_flight,
            True,
        )
        assert report["offloaded_bytes"] == report["prefetched_bytes"] > 0
        # When the last pass in flight has ended its forward, all of them have all that they swap on the host.
        if name != "with evaluations":  # there what one of them leaves depends on the garbage collector
            assert report["peak_host_bytes"] * num_passes == report["offloaded_bytes"] * num_in_flight
        assert report["peak_device_bytes"] == report["predicted_peak_bytes"] < report["peak_without_swap_bytes"]
    # A pass of another shape goes on without swap, and so does the next one, which is recorded.
    other = answers["another shape"][1]
    assert other["num_deviations"] == 1 and other["num_passes"] == other["num_as_predicted"] > 0
    assert other["left_bytes"] == 0
