"""A profile and a device -> the device with measured figures, and measured durations of operators. Pure."""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from mindswap.cost.fit import LinkFit, fit_contention, fit_link
from mindswap.cost.hardware import Device, Link
from mindswap.cost.measured import MeasuredKey, Measurement, measured_key
from mindswap.cost.profile_files import Kernel, Profile
from mindswap.cost.roofline import OpClass, classify, is_kernel, operator_ns
from mindswap.graph.model import Node
from mindswap.graph.work import Work, count_work

__all__ = ["Calibration", "Change", "calibrate"]

# Classes whose work follows from shapes and dtypes alone; attention also depends on its mask.
FITTED_CLASSES = (OpClass.MATMUL, OpClass.ELEMENTWISE, OpClass.CAST, OpClass.MOVE, OpClass.NORM)


@dataclass(frozen=True)
class Change:
    """A figure that the profile replaces.

    Attributes:
        name: of the figure.
        before, after: its values, in its smallest unit.
        basis: what it was fitted to, in words.
    """

    name: str
    before: int
    after: int
    basis: str


@dataclass(frozen=True)
class Calibration:
    """What came out of a profile.

    Attributes:
        device: with the new figures, and the profile as their source.
        measurements: durations of operators, the largest sum first.
        changes: figures that are new.
        links: the fits of both directions, by figure; only those that could be fitted.
        num_kernels, kernels_ns: runs of compute kernels in the profile, and their time.
        num_covered, covered_ns: those that `measurements` have.
        roofline_error_permille: (time of fitted kernels by the new roofline - measured) / measured.
        middle_error_permille: middle of the same without sign, over fitted operators; None without any.
        notes: what could not be done, and why.
    """

    device: Device
    measurements: tuple[Measurement, ...]
    changes: tuple[Change, ...]
    links: Mapping[str, LinkFit]
    num_kernels: int
    kernels_ns: int
    num_covered: int
    covered_ns: int
    roofline_error_permille: int | None
    middle_error_permille: int | None
    notes: tuple[str, ...]


def calibrate(profile: Profile, device: Device) -> Calibration:
    """Replace the figures of a device by those that a profile shows; what it does not show stays."""
    kernels = [kernel for kernel in profile.kernels if not kernel.is_communication]
    measurements = _measure(kernels)
    notes = list(profile.notes)
    changes = [*_fit_fractions(measurements, device, notes), *_fit_links(profile, device, notes)]
    links = {name: fit for name, fit in _links(profile, device).items() if fit is not None}
    new_device = _apply(device, changes)
    total_error, middle_error = _errors(measurements, new_device)
    return Calibration(
        device=new_device,
        measurements=measurements,
        changes=tuple(changes),
        links=links,
        num_kernels=len(kernels),
        kernels_ns=sum(kernel.duration_ns for kernel in kernels),
        num_covered=sum(measurement.count for measurement in measurements),
        covered_ns=sum(kernel.duration_ns for kernel in kernels if _has_types(kernel)),
        roofline_error_permille=total_error,
        middle_error_permille=middle_error,
        notes=tuple(notes),
    )


def _has_types(kernel: Kernel) -> bool:
    return kernel.inputs is not None and kernel.outputs is not None


def _measure(kernels: Iterable[Kernel]) -> tuple[Measurement, ...]:
    """The middle duration of each operator with the same types."""
    durations: dict[MeasuredKey, list[int]] = {}
    for kernel in kernels:
        if kernel.inputs is not None and kernel.outputs is not None:
            key = measured_key(kernel.type, kernel.inputs, kernel.outputs)
            durations.setdefault(key, []).append(kernel.duration_ns)
    measured = [Measurement(key, round(statistics.median(times)), len(times)) for key, times in durations.items()]
    return tuple(sorted(measured, key=lambda m: (-m.duration_ns * m.count, m.key.op, m.key.inputs, m.key.outputs)))


def _fitted(measurements: Iterable[Measurement]) -> Iterable[tuple[Measurement, OpClass, Node, Work]]:
    for measurement in measurements:
        op = measurement.key.op
        if is_kernel(op) and classify(op) in FITTED_CLASSES:
            inputs, outputs = measurement.key.input_types(), measurement.key.output_types()
            node = Node(op, op, None, "", "", (), outputs, {})
            yield measurement, classify(op), node, count_work(op, inputs, outputs)


def _fit_fractions(measurements: Iterable[Measurement], device: Device, notes: list[str]) -> list[Change]:
    """Shares of the peaks: time of ideal kernels over time measured without the fixed cost.

    Products that would be bound by compute give the share of compute, other operators that of memory
    bandwidth. Those that take less than twice the fixed cost say nothing and are left out.
    """
    ideal = replace(device, compute_permille=1000, memory_permille=1000)
    sums = {"compute_fraction": [0, 0, 0], "memory_fraction": [0, 0, 0]}
    for measurement, kind, node, work in _fitted(measurements):
        is_matrix = kind is OpClass.MATMUL
        latency = device.op_latency_ns["matrix" if is_matrix else "vector"]
        without_compute = operator_ns(node, replace(work, flops=0), ideal)
        ideal_ns = operator_ns(node, work, ideal)
        is_bound_by_memory = ideal_ns == without_compute
        if measurement.duration_ns < 2 * latency or is_matrix is is_bound_by_memory:
            continue
        entry = sums["compute_fraction" if is_matrix else "memory_fraction"]
        entry[0] += measurement.count * (ideal_ns - latency)
        entry[1] += measurement.count * (measurement.duration_ns - latency)
        entry[2] += measurement.count
    changes = []
    before = {"compute_fraction": device.compute_permille, "memory_fraction": device.memory_permille}
    for name, (ideal_sum, measured_sum, count) in sums.items():
        if not ideal_sum or not measured_sum:
            notes.append(f"{name}: the profile has no kernels to fit it to; it stays")
            continue
        after = ideal_sum * 1000 // measured_sum
        if after > 1000:
            notes.append(f"{name}: kernels are faster than the peak of {device.title}: is this its profile?")
        changes.append(Change(name, before[name], min(1000, max(1, after)), f"{count} kernels"))
    return changes


def _links(profile: Profile, device: Device) -> dict[str, LinkFit | None]:
    """Fits of both directions; None where times do not grow with sizes: no link is faster than device memory."""
    fits = {"d2h": fit_link(profile.copies, True), "h2d": fit_link(profile.copies, False)}
    limit = device.memory_bandwidth_bytes_per_s
    return {name: fit if fit and fit.bandwidth_bytes_per_s <= limit else None for name, fit in fits.items()}


def _fit_links(profile: Profile, device: Device, notes: list[str]) -> list[Change]:
    changes = []
    fits = _links(profile, device)
    for name, link in (("d2h", device.offload), ("h2d", device.prefetch)):
        fit = fits[name]
        if fit is None:
            notes.append(f"{name}: fewer than three copies that ran alone, with sizes and times that fit; it stays")
            continue
        basis = f"{fit.num_copies} copies"
        changes.append(Change(name, link.bandwidth_bytes_per_s, fit.bandwidth_bytes_per_s, basis))
        changes.append(Change(f"{name}_latency", link.latency_ns, fit.latency_ns, basis))
    contention = fit_contention(profile.copies, fits["d2h"], fits["h2d"])
    if contention is None:
        notes.append("contended_fraction: fewer than three copies that ran beside the other direction; it stays")
    else:
        permille, count = contention
        changes.append(Change("contended_fraction", device.contended_permille, permille, f"{count} copies"))
    return changes


def _apply(device: Device, changes: Iterable[Change]) -> Device:
    new = {change.name: change.after for change in changes}
    sources = {**device.sources, **{change.name: f"measured, {change.basis} of a profile" for change in changes}}
    links = {}
    for name, link in (("d2h", device.offload), ("h2d", device.prefetch)):
        links[name] = Link(new[name], new[f"{name}_latency"]) if name in new else link
        if name in new:  # the latency of the fit says how much less small copies reach
            sources.pop(f"{name}_efficiency", None)
    return replace(
        device,
        compute_permille=new.get("compute_fraction", device.compute_permille),
        memory_permille=new.get("memory_fraction", device.memory_permille),
        contended_permille=new.get("contended_fraction", device.contended_permille),
        offload=links["d2h"],
        prefetch=links["h2d"],
        sources=sources,
    )


def _errors(measurements: Iterable[Measurement], device: Device) -> tuple[int | None, int | None]:
    """Error of the roofline in total, and its middle per operator, in thousandths of what was measured."""
    predicted = measured = 0
    errors = []
    for measurement, _, node, work in _fitted(measurements):
        duration = operator_ns(node, work, device)
        predicted += measurement.count * duration
        measured += measurement.count * measurement.duration_ns
        if measurement.duration_ns:
            errors.append(abs(duration - measurement.duration_ns) * 1000 // measurement.duration_ns)
    if not measured:
        return None, None
    return (predicted - measured) * 1000 // measured, int(statistics.median(errors))
