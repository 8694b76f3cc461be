"""Calibration of a device with a profile: durations of operators, and fitted parameters of the links.

Times of copies are fitted as `t = a + size / b`, collectives as fractions of the link bandwidth.
"""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from mindswap.graph.ops import ComputeUnit
from mindswap.simulator.cost.cost_table import Measurement
from mindswap.simulator.cost.hardware import Device, figure_values, with_figures
from mindswap.simulator.profile.profile import (
    Profile,
    ProfiledCopy,
    ProfiledKernel,
    Transfer,
    can_measure,
    is_matrix_kernel,
    measure,
)
from mindswap.units import NS_PER_S, format_bytes

MIN_SAMPLES = 3  # minimum number of copies, collectives or kernels for a fit
# Size from which bandwidth dominates. Copies of any size are fitted, but without `MIN_SAMPLES` of at least this size
# the fit is not accepted. Smaller messages of collectives mostly wait, and are not fitted.
LARGE_BYTES = 2**20
# Minimum busy fraction of a collective's time for it to be used in a fit, in thousandths.
BUSY_PERMILLE = 800
# Minimum fraction of a contended copy that overlaps copies in the other direction, in thousandths.
CONTENDED_PERMILLE = 900


@dataclass(frozen=True)
class LinkFit:
    """Fit of one direction of the link to the host: `t = a + size / b`."""

    bandwidth_bytes_per_s: int  # b
    latency_ns: int  # a, not below 0
    num_copies: int  # copies used in the fit: those without copies in the other direction
    num_large: int  # those of at least `LARGE_BYTES`; with fewer than `MIN_SAMPLES` the fit is not accepted
    middle_error_permille: int  # median relative error of fitted times, in thousandths
    largest_error_permille: int  # maximum relative error

    def duration_ns(self, size_bytes: int) -> int:
        """Return the time of a copy of this size in ns."""
        return self.latency_ns + size_bytes * NS_PER_S // self.bandwidth_bytes_per_s


def fit_link(copies: Sequence[ProfiledCopy], is_out: bool) -> LinkFit | None:
    """Fit latency and bandwidth to the copies of one direction that ran without copies in the other direction.

    Weighted least squares over the median time of each size, because the median is robust against delayed copies. The
    latency is 0 with one size only, or if the fitted latency is negative.

    Args:
        copies: copies of both directions.
        is_out: whether to fit offloads.

    Returns:
        The fit; None with fewer than three copies, or if larger copies are not slower.
    """
    pairs = zip(copies, _overlaps(copies), strict=True)
    alone = [copy for copy, overlap in pairs if copy.is_out is is_out and copy.duration_ns and not overlap]
    if len(alone) < MIN_SAMPLES:
        return None
    times: dict[int, list[int]] = {}
    for copy in alone:
        times.setdefault(copy.size_bytes, []).append(copy.duration_ns)
    points = [
        (size, statistics.median(durations_ns), len(durations_ns)) for size, durations_ns in sorted(times.items())
    ]
    sizes, middles, counts = np.array(points, np.float64).T
    slope, latency = np.polyfit(sizes, middles, 1, w=np.sqrt(counts)).tolist() if len(points) > 1 else (0.0, -1.0)
    if latency < 0:
        slope, latency = float(counts @ (sizes * middles) / (counts @ sizes**2)), 0.0
    if slope <= 0:
        return None
    num_large = sum(copy.size_bytes >= LARGE_BYTES for copy in alone)
    fit = LinkFit(max(1, round(NS_PER_S / slope)), round(latency), len(alone), num_large, 0, 0)
    errors = [abs(fit.duration_ns(c.size_bytes) - c.duration_ns) * 1000 // c.duration_ns for c in alone]
    return replace(fit, middle_error_permille=int(statistics.median(errors)), largest_error_permille=max(errors))


class ShareFit(NamedTuple):
    """Fit of the fraction of a link's bandwidth that collectives reach."""

    permille: int  # the fraction, in thousandths
    num_samples: int  # collectives
    error_permille: int  # median relative error, in thousandths


def fit_share(
    transfers: Iterable[Transfer], link: str, bandwidth_bytes_per_s: int, latency_ns: int = 0
) -> ShareFit | None:
    """Fit the fraction of a link's bandwidth that collectives reach from start to end.

    Of equal collectives of the same size the fastest is used, because the others waited for a rank. The number of
    parallel links follows from link time / elapsed time. A collective whose links were busy for less than
    `BUSY_PERMILLE` of that time also waited, and is ignored.

    Args:
        transfers: transfers of collectives.
        link: kind of link (`Transfer.link`).
        bandwidth_bytes_per_s: bandwidth of one link of this kind.
        latency_ns: fixed time of a collective.

    Returns:
        The fit; None without usable transfers.
    """
    groups: dict[tuple[str, int], list[Transfer]] = {}
    for transfer in transfers:
        if transfer.link == link and transfer.size_bytes >= LARGE_BYTES and transfer.elapsed_ns > 2 * latency_ns:
            groups.setdefault((transfer.op.partition("__")[0], transfer.size_bytes), []).append(transfer)
    moved = []
    for group in groups.values():
        best = min(group, key=lambda transfer: transfer.elapsed_ns)
        num_links = max(1, -(-best.link_ns // best.elapsed_ns))
        if best.link_ns * 1000 >= BUSY_PERMILLE * num_links * best.elapsed_ns:
            moved.append((len(group), best.size_bytes, num_links * (best.elapsed_ns - latency_ns)))
    if not moved or not bandwidth_bytes_per_s:
        return None
    size, time = sum(n * size for n, size, _ in moved), sum(n * time for n, _, time in moved)
    errors = [abs(moved_bytes * time // size - busy_ns) * 1000 // busy_ns for _, moved_bytes, busy_ns in moved]
    permille = size * NS_PER_S * 1000 // (time * bandwidth_bytes_per_s)
    return ShareFit(max(1, permille), sum(n for n, _, _ in moved), int(statistics.median(errors)))


def fit_contention(copies: Sequence[ProfiledCopy], out: LinkFit | None, back: LinkFit | None) -> tuple[int, int] | None:
    """Fit the rate of copies while the other direction copies too.

    Args:
        copies: copies of both directions.
        out: fit of offloads on an idle link.
        back: fit of prefetches on an idle link.

    Returns:
        Median of (time alone / measured time) in thousandths, at most 1000, and the number of copies; None with fewer
        than three.
    """
    rates = []
    for copy, overlap in zip(copies, _overlaps(copies), strict=True):
        fit = out if copy.is_out else back
        if fit is not None and copy.duration_ns > 0 and overlap * 1000 >= CONTENDED_PERMILLE * copy.duration_ns:
            rates.append(min(1000, fit.duration_ns(copy.size_bytes) * 1000 // copy.duration_ns))
    return (max(1, int(statistics.median(rates))), len(rates)) if len(rates) >= MIN_SAMPLES else None


def _overlaps(copies: Sequence[ProfiledCopy]) -> np.ndarray:
    """Return for each copy the ns during which copies of the other direction ran on the same rank."""
    rows = [(copy.start_ns, copy.duration_ns, 2 * copy.rank + copy.is_out) for copy in copies]
    start, duration, stream = np.array(rows, np.int64).reshape(-1, 3).T
    end, result = start + duration, np.zeros(len(copies), np.int64)
    for number in np.unique(stream).tolist():
        selected, opposite = stream == number, stream == number ^ 1
        begun, ended = (
            _passed(time[opposite], end[selected]) - _passed(time[opposite], start[selected]) for time in (start, end)
        )
        result[selected] = begun - ended
    return result


def _passed(since: np.ndarray, until: np.ndarray) -> np.ndarray:
    """Return for each `until` the sum of the times since all earlier `since`."""
    since = np.sort(since)
    number = np.searchsorted(since, until)
    return number * until - np.append(0, np.cumsum(since))[number]


# Limits of kernel time / computing time of the steps: both are from the same run, and differ only by overlap.
FEWEST_PERMILLE, MOST_PERMILLE = 800, 1200


@dataclass(frozen=True)
class FigureFit:
    """Fit of one device parameter to a profile."""

    name: str  # name of the figure in `hardware.FIGURES`
    before: int  # value of the given device, in its smallest unit
    fitted: int | None = None  # fitted value; None if the profile has no data for it
    num_samples: int = 0  # copies or collectives
    # median relative error of the fit over copies or transfers, in thousandths; None without any
    residual_permille: int | None = None
    objection: str = ""  # reason to keep the value of the device; "" if it is replaced

    @property
    def is_accepted(self) -> bool:
        """Return whether the fitted value replaces that of the device."""
        return self.fitted is not None and not self.objection


@dataclass(frozen=True)
class Calibration:
    """Operator durations and device parameters from a profile."""

    device: Device  # device with the new figures, and the profile as their source
    measurements: tuple[Measurement, ...]  # durations of operators, in descending order of total time
    figures: tuple[FigureFit, ...]  # all figures that a profile can determine
    links: Mapping[str, LinkFit]  # name of the figure -> successful fit of one direction
    unmeasured_ns: tuple[tuple[str, int], ...]  # (kernel, total) of kernels without measurement, descending
    num_kernels: int  # runs of compute kernels in the profile
    kernels_ns: int  # their total time
    num_covered: int  # runs that `measurements` cover
    covered_ns: int  # their total time
    notes: tuple[str, ...]  # caveats

    @property
    def changes(self) -> tuple[FigureFit, ...]:
        """The device parameters that are replaced."""
        return tuple(figure for figure in self.figures if figure.is_accepted)


def calibrate(profile: Profile, device: Device) -> Calibration:
    """Compute operator durations and link parameters from a profile; other device parameters are unchanged.

    Args:
        profile: profile of one or more ranks.
        device: device whose parameters are used where the profile has none.
    """
    kernels = [kernel for kernel in profile.kernels if ComputeUnit.NETWORK not in kernel.units]
    measurements = measure(kernels)
    links = _links(profile, device)
    figures = (*_link_figures(profile, device, links), *_shares(profile, device))
    accepted = [figure for figure in figures if figure.is_accepted]
    source = f"measured, {profile.num_ranks} rank{'s' * (profile.num_ranks > 1)} of a profile"
    new_device = with_figures(
        device,
        {figure.name: figure.fitted for figure in accepted if figure.fitted is not None},
        {figure.name: f"{source}, {figure.num_samples} samples" for figure in accepted},
    )
    covered = [kernel for kernel in kernels if can_measure(kernel)]
    unmeasured_ns: Counter[str] = Counter()
    for kernel in kernels:
        unmeasured_ns[kernel.type] += 0 if can_measure(kernel) else kernel.duration_ns
    return Calibration(
        device=new_device,
        measurements=measurements,
        figures=figures,
        links={name: fit for name, fit in links.items() if fit is not None},
        unmeasured_ns=tuple((name, time_ns) for name, time_ns in unmeasured_ns.most_common() if time_ns),
        num_kernels=len(kernels),
        kernels_ns=sum(kernel.duration_ns for kernel in kernels),
        num_covered=len(covered),
        covered_ns=sum(kernel.duration_ns for kernel in covered),
        notes=(*profile.notes, *_notes(profile, kernels, device)),
    )


def _links(profile: Profile, device: Device) -> dict[str, LinkFit | None]:
    """Fit both directions; None if times do not grow with sizes, because no link is faster than device memory."""
    fits = {"d2h": fit_link(profile.copies, True), "h2d": fit_link(profile.copies, False)}
    limit = device.memory_bandwidth_bytes_per_s
    return {name: fit if fit and fit.bandwidth_bytes_per_s <= limit else None for name, fit in fits.items()}


def _link_figures(profile: Profile, device: Device, fits: Mapping[str, LinkFit | None]) -> Iterable[FigureFit]:
    values = figure_values(device)
    for name, is_out in (("d2h", True), ("h2d", False)):
        fit, latency = fits[name], f"{name}_latency"
        if fit is None:
            count = sum(copy.is_out is is_out for copy in profile.copies)
            why = _why_no_link(profile, count)
            yield from (FigureFit(key, values[key], num_samples=count, objection=why) for key in (name, latency))
            continue
        objection = ""
        if fit.num_large < MIN_SAMPLES:
            large = f"too few copies of {format_bytes(LARGE_BYTES)} or more ({fit.num_large})"
            objection = f"{large}; {MIN_SAMPLES} are needed"
        for key, fitted in ((name, fit.bandwidth_bytes_per_s), (latency, fit.latency_ns)):
            yield FigureFit(key, values[key], fitted, fit.num_copies, fit.middle_error_permille, objection)
    permille, count = fit_contention(profile.copies, fits["d2h"], fits["h2d"]) or (None, 0)
    why = "" if count else "fewer than three copies ran beside the other direction"
    yield FigureFit("contended_fraction", values["contended_fraction"], permille, count, objection=why)


def _why_no_link(profile: Profile, count: int) -> str:
    if count:
        return f"{count} copies, of which fewer than three ran alone, or whose times do not grow with their sizes"
    return "copies have no size below Level2" if profile.num_unsized_copies else "no copies in this direction"


def _shares(profile: Profile, device: Device) -> Iterable[FigureFit]:
    """Shares that collectives reach on the links within a node (HCCS) and between nodes (RDMA)."""
    values = figure_values(device)
    num_links = max(1, device.intranode.num_mesh_cards - 1)
    for name, link, bandwidth in (
        ("collective_fraction", "HCCS", device.intranode.bandwidth_bytes_per_s // num_links),
        ("internode_fraction", "RDMA", device.internode.bandwidth_bytes_per_s),
    ):
        fit = fit_share(profile.transfers, link, bandwidth, device.op_latency_ns["communication"])
        if fit is None:
            why = f"no large {link} transfers in communication.json that did not wait"
            yield FigureFit(name, values[name], objection=why)
            continue
        permille, num_transfers, _ = fit
        objection = ""
        if num_transfers < MIN_SAMPLES:
            objection = f"too few collectives ({num_transfers}); {MIN_SAMPLES} are needed"
        elif permille > 1000:
            objection = f"links are faster than those of {device.title}: is this its profile?"
        yield FigureFit(name, values[name], *fit, objection)


def _notes(profile: Profile, kernels: Sequence[ProfiledKernel], device: Device) -> Iterable[str]:
    if profile.num_unsized_copies:
        level = f" ({profile.level})" if profile.level else ""
        yield (
            f"{profile.num_unsized_copies} copies without a size{level}: only profiler level 2 writes sizes, "
            "so the links to the host keep their figures"
        )
    computing = sum(step.computing_ns for step in profile.steps)
    kernels_ns = sum(kernel.duration_ns for kernel in kernels)
    if computing and not FEWEST_PERMILLE <= kernels_ns * 1000 // computing <= MOST_PERMILLE:
        yield (
            f"kernels take {kernels_ns * 100 // computing} % of the computing time in step_trace_time.csv: "
            "is a part of one of them missing?"
        )
    # Matrix kernels are split over all cores of a card; there are cards of the same name with 20, 24 and 25.
    blocks = [kernel.num_blocks for kernel in kernels if can_measure(kernel) and is_matrix_kernel(kernel)]
    max_blocks, num_cores = max(blocks, default=0), device.num_matrix_cores
    if num_cores and len(blocks) >= MIN_SAMPLES and max_blocks and max_blocks != num_cores:
        cores = f"matrix kernels run on {max_blocks} cores, {device.title} has {num_cores}"
        yield f"{cores}: is --device the card of this profile?"
