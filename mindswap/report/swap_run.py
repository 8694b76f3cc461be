"""What a training in PyNative mode moved and held, in lines for its log."""

from mindswap.pynative.report import SwapReport
from mindswap.units import common_unit, format_bytes


def format_swap_report(report: SwapReport) -> list[str]:
    """Lines of a log."""
    if not report.num_passes:
        return [f"swap in PyNative mode: no pass swapped; {report.num_recorded} recorded"]
    unlike = report.num_passes - report.num_as_predicted
    as_predicted = "all as predicted" if not unlike else f"{unlike} NOT as predicted"
    peaks = (report.peak_device_bytes, report.predicted_peak_bytes, report.peak_without_swap_bytes)
    unit = common_unit(peaks)
    peak, predicted, without = (format_bytes(size, unit) for size in peaks)
    lines = [
        f"swap in PyNative mode on {report.device}: {report.num_passes} passes swapped, {as_predicted}; "
        f"{format_bytes(report.offloaded_bytes)} to the host, {format_bytes(report.prefetched_bytes)} back",
        f"peak of saved activations of {'all' if report.is_audited else 'the swapped'} layers on the device: "
        f"{peak}, predicted {predicted}, without swap {without}; left behind: {format_bytes(report.left_bytes)}",
    ]
    if report.num_deviations:
        lines.append(f"{report.num_deviations} passes were not as recorded, and ran without swap")
    return lines
