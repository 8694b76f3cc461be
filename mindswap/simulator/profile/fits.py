"""Fits of link parameters to a profile.

Times of copies are fitted as `t = a + size / b`, collectives as fractions of the link bandwidth.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from mindswap.simulator.profile.profile import (
    ProfiledCopy,
    Transfer,
)
from mindswap.units import NS_PER_S

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
