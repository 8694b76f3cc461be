"""Figures of a device that a simulation used, in words, for every report."""

from collections.abc import Callable, Mapping

from mindswap.simulator.cost.hardware import FIGURES, Device, FigureKind, figure_values
from mindswap.simulator.report_data import DeviceFigure
from mindswap.units import format_bandwidth, format_bytes, format_time

FORMATS: Mapping[FigureKind, Callable[[int], str]] = {
    FigureKind.SIZE: format_bytes,
    FigureKind.BANDWIDTH: format_bandwidth,
    FigureKind.TIME: format_time,
    FigureKind.FLOPS: lambda flops: f"{flops / 10**12:g} TFLOPS",
    FigureKind.RATE: lambda elements_per_s: f"{elements_per_s / 10**9:g} Gelements/s",
    FigureKind.FRACTION: lambda permille: f"{permille / 10:g} %",
    FigureKind.COUNT: str,
}


def device_figures(device: Device, dtype: str) -> tuple[DeviceFigure, ...]:
    """Return every figure of a device, including options, with its source; the most influential ones are first.

    Peaks of other types than `dtype`, which the network computes in, are left out.
    """
    values = figure_values(device)
    shown = [
        DeviceFigure(
            figure.words,
            (not values[name] and figure.zero) or FORMATS[figure.kind](values[name]),
            device.sources.get(name, "not said"),
            figure.is_main,
        )
        for name, figure in FIGURES.items()
        if figure.kind is not FigureKind.FLOPS or name.endswith(f"_{dtype}")
    ]
    return tuple(sorted(shown, key=lambda figure: not figure.is_main))


def format_figure(name: str, value: int) -> str:
    """Format a figure of a device file in its smallest unit, as in calibrations; fractions are from 0 to 1."""
    kind = FIGURES[name].kind
    return f"{value / 1000:.3f}" if kind is FigureKind.FRACTION else FORMATS[kind](value)
