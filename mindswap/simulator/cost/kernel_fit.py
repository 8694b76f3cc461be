"""Figures of kernels from measured times.

Which kernels a figure is for is not written down again: a figure is fitted to the operators whose time, by the
model, is twice as long with half of it. The fit leaves the least sum of errors without sign.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from mindswap.simulator.cost.figures import FigureKind
from mindswap.simulator.cost.hardware import FIGURES, Device, figure_values, with_figures
from mindswap.simulator.cost.kernel_samples import Sample
from mindswap.simulator.cost.roofline import operator_ns

# Figures that profiles show. The first are about the matrix units; the bandwidth of memory is fitted to vector kernels
# only. An operator counts for the first that decides its time: a kernel that computes says nothing of the memory.
MATRIX_FIGURES = ("weight_gradient_fraction", "compute_fraction", "attention_fraction", "attention_grad_fraction")
KERNEL_FIGURES = (
    *MATRIX_FIGURES,
    "norm_rate",
    "norm_grad_rate",
    "softmax_rate",
    "activation_rate",
    "activation_grad_rate",
    "cache_bandwidth",
    "memory_bandwidth_fraction",
)
MIN_KERNELS = 3
# No kernel of a real card was seen above: it is another card, or a kernel that works in the cache.
MAX_FRACTION_PERMILLE = 950
# A rate so low that it decides every time.
LOW_RATE = 10**6
# Times below, by the figure alone, are rounded too much to tell what decides them.
MIN_NS = 100
IDEAL_PERMILLE = 1000


@dataclass(frozen=True)
class FigureFit:
    """What a profile says of one figure."""

    name: str  # of the figure
    before: int  # of the device that was begun with, in its smallest unit
    fitted: int | None = None  # by the profile; None if it shows nothing
    num_samples: int = 0  # runs of kernels, copies or collectives
    # middle, over operators, copies or transfers, of how far times by the fit are from those measured; None without any
    residual_permille: int | None = None
    objection: str = ""  # why the figure stays as it was; empty if it is replaced

    @property
    def is_accepted(self) -> bool:
        return self.fitted is not None and not self.objection


def fit_kernels(samples: Iterable[Sample], device: Device) -> tuple[FigureFit, ...]:
    """Every figure of kernels that the device has."""
    values = figure_values(device)
    ideal = {name: _ideal(name) for name in KERNEL_FIGURES}
    left = [sample for sample in samples if sample.measurement.duration_ns >= 2 * _latency_ns(sample, device)]
    fits = []
    for name in KERNEL_FIGURES:
        mine, left = _split(left, name, device, ideal)
        fits.append(_fit(name, values[name], mine, device))
    return tuple(fits)


def _split(
    samples: Sequence[Sample], name: str, device: Device, ideal: Mapping[str, int]
) -> tuple[list[tuple[Sample, int]], list[Sample]]:
    """The samples that the figure decides with reference value x ns, and the others."""
    reference = _reference(name, device)
    whole, half = (with_figures(device, {**ideal, name: value}) for value in (reference, reference // 2))
    mine, others = [], []
    for sample in samples:
        latency = _latency_ns(sample, device)
        time, slower = (operator_ns(sample.node, sample.work, known) - latency for known in (whole, half))
        if sample.is_matrix is (name in MATRIX_FIGURES) and time >= MIN_NS and abs(slower - 2 * time) <= 2:
            mine.append((sample, time))
        else:
            others.append(sample)
    return mine, others


def _fit(name: str, before: int, samples: Sequence[tuple[Sample, int]], device: Device) -> FigureFit:
    count = sum(sample.measurement.count for sample, _ in samples)
    if not samples:
        return FigureFit(name, before, objection="no kernels of this kind")
    reference = _reference(name, device)
    times = [(sample.measurement.count, time, _net_ns(sample, device)) for sample, time in samples]
    time, net = _middle(times)
    fitted = max(1, reference * time // net)
    errors = [abs(reference * time // fitted - net) * 1000 // net for _, time, net in times]
    is_fraction = FIGURES[name].kind is FigureKind.FRACTION
    objection = ""
    if count < MIN_KERNELS:
        objection = f"too few kernels ({count}); {MIN_KERNELS} are needed"
    elif is_fraction and fitted > IDEAL_PERMILLE:
        objection = f"kernels are faster than the peak of {device.title}: is this its profile?"
    elif is_fraction and fitted > MAX_FRACTION_PERMILLE:
        objection = f"more than {MAX_FRACTION_PERMILLE / 1000:g} of a peak is not reached: is this its profile?"
    return FigureFit(name, before, fitted, count, int(statistics.median(errors)), objection)


def _middle(times: Sequence[tuple[int, int, int]]) -> tuple[int, int]:
    """The operator (count, time, measured) in the middle of all time, ordered by how much slower it was measured.

    Its ratio leaves the smallest sum of errors: sum n |r time - measured| is least at the median of measured / time
    with weights n time. One operator that is much slower than the others moves it little.
    """
    ordered = sorted(times, key=lambda entry: Fraction(entry[2], entry[1]))
    half, so_far = sum(n * time for n, time, _ in times), 0
    for n, time, net in ordered:
        so_far += 2 * n * time
        if so_far >= half:
            return time, net
    raise AssertionError("unreachable: the last operator completes the sum")


def _ideal(name: str) -> int:
    """A value with which the figure decides nothing."""
    return {FigureKind.FRACTION: IDEAL_PERMILLE, FigureKind.BANDWIDTH: 10**18}.get(FIGURES[name].kind, 0)


def _reference(name: str, device: Device) -> int:
    """A value with which the figure decides the times of its kernels."""
    kind = FIGURES[name].kind
    if kind is FigureKind.FRACTION:
        return IDEAL_PERMILLE
    return device.memory_bandwidth_bytes_per_s if kind is FigureKind.BANDWIDTH else LOW_RATE


def _latency_ns(sample: Sample, device: Device) -> int:
    return device.op_latency_ns["matrix" if sample.is_matrix else "vector"]


def _net_ns(sample: Sample, device: Device) -> int:
    """Measured without the fixed cost, which is at most half of it."""
    return max(1, sample.measurement.duration_ns - _latency_ns(sample, device))
