from dataclasses import asdict

from mindswap.pynative.ledger import SwapReport, Totals
from mindswap.report.pynative import format_swap_report

# A pass: 64 bytes go and come back, at most 100 on the device and 64 on the host, nothing left.
PREDICTED = Totals((40, 100, 36, 100, 0), 100, 64, 64, 64)
OTHER = Totals((40, 120, 56, 120, 0), 120, 64, 64, 64)


def test_passes_are_summed_up_and_held_against_the_prediction():
    report = SwapReport("CPU").with_pass(PREDICTED, PREDICTED).with_pass(PREDICTED, PREDICTED)
    assert (report.num_passes, report.num_as_predicted, report.is_as_predicted) == (2, 2, True)
    assert (report.offloaded_bytes, report.prefetched_bytes) == (128, 128)
    assert (report.peak_device_bytes, report.predicted_peak_bytes, report.peak_host_bytes) == (100, 100, 64)


def test_one_pass_that_held_more_is_seen():
    report = SwapReport("CPU").with_pass(PREDICTED, PREDICTED).with_pass(OTHER, PREDICTED)
    assert (report.num_as_predicted, report.is_as_predicted, report.peak_device_bytes) == (1, False, 120)
    assert "1 NOT as predicted" in format_swap_report(report)[0]


def test_what_is_left_behind_is_not_as_predicted():
    assert not SwapReport("CPU", left_bytes=1).with_pass(PREDICTED, PREDICTED).is_as_predicted


def test_a_training_of_one_step_swapped_nothing():
    assert not SwapReport("CPU", num_recorded=1).is_as_predicted
    assert format_swap_report(SwapReport("CPU", num_recorded=1)) == [
        "swap in PyNative mode: no pass swapped; 1 recorded"
    ]


def test_the_json_has_a_schema():
    data = SwapReport("CPU").with_pass(PREDICTED, PREDICTED).to_json()
    assert (data["schema"], data["version"], data["is_as_predicted"]) == ("mindswap-swap-report", 1, True)


def test_a_report_of_nothing_counts_nothing():
    numbers = [value for value in asdict(SwapReport("CPU")).values() if isinstance(value, int)]
    assert len(numbers) == 12 and not any(numbers)
