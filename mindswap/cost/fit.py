"""Figures of a device from measured times: `t = a + size / b` for copies, achieved shares for kernels. Pure."""

import bisect
import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from mindswap.cost.profile_files import Copy
from mindswap.units import NS_PER_S

__all__ = ["LinkFit", "fit_contention", "fit_link"]

MIN_COPIES = 3
# A copy counts as contended when this much of it runs beside copies in the other direction.
CONTENDED_PERMILLE = 900


@dataclass(frozen=True)
class LinkFit:
    """One direction of the link to the host.

    Attributes:
        bandwidth_bytes_per_s: b.
        latency_ns: a, not below 0.
        num_copies: copies that were fitted: those that had the link to themselves.
        middle_error_permille, largest_error_permille: how far fitted times are from measured ones.
    """

    bandwidth_bytes_per_s: int
    latency_ns: int
    num_copies: int
    middle_error_permille: int
    largest_error_permille: int

    def duration_ns(self, size_bytes: int) -> int:
        """Fitted time of a copy."""
        return self.latency_ns + size_bytes * NS_PER_S // self.bandwidth_bytes_per_s


def fit_link(copies: Sequence[Copy], is_out: bool) -> LinkFit | None:
    """Least squares over the copies of one direction that ran while none ran the other way.

    With one size only, or where the line would begin below zero, the latency is 0.

    Args:
        copies: of both directions.
        is_out: the direction to fit.

    Returns:
        None with fewer than three copies, or where larger copies were not slower.
    """
    overlaps = _overlaps(copies)
    alone = [c for c, overlap in zip(copies, overlaps, strict=True) if c.is_out is is_out and not overlap]
    alone = [copy for copy in alone if copy.duration_ns > 0]
    if len(alone) < MIN_COPIES:
        return None
    count = len(alone)
    mean_size = sum(copy.size_bytes for copy in alone) / count
    mean_time = sum(copy.duration_ns for copy in alone) / count
    spread = sum((copy.size_bytes - mean_size) ** 2 for copy in alone)
    together = sum((copy.size_bytes - mean_size) * (copy.duration_ns - mean_time) for copy in alone)
    slope = together / spread if spread else 0.0
    latency = mean_time - slope * mean_size
    if not spread or latency < 0:
        slope = sum(c.size_bytes * c.duration_ns for c in alone) / sum(c.size_bytes**2 for c in alone)
        latency = 0.0
    if slope <= 0:
        return None
    fit = LinkFit(round(NS_PER_S / slope), round(latency), count, 0, 0)
    errors = [abs(fit.duration_ns(c.size_bytes) - c.duration_ns) * 1000 // c.duration_ns for c in alone]
    return LinkFit(fit.bandwidth_bytes_per_s, fit.latency_ns, count, int(statistics.median(errors)), max(errors))


def fit_contention(copies: Sequence[Copy], out: LinkFit | None, back: LinkFit | None) -> tuple[int, int] | None:
    """How fast copies are while the other direction copies too.

    Args:
        copies: of both directions.
        out, back: what they take alone.

    Returns:
        The middle of (time alone / time measured) in thousandths, at most 1000, and of how many copies; None with
        fewer than three.
    """
    rates = []
    for copy, overlap in zip(copies, _overlaps(copies), strict=True):
        fit = out if copy.is_out else back
        if fit is not None and copy.duration_ns > 0 and overlap * 1000 >= CONTENDED_PERMILLE * copy.duration_ns:
            rates.append(min(1000, fit.duration_ns(copy.size_bytes) * 1000 // copy.duration_ns))
    return (max(1, int(statistics.median(rates))), len(rates)) if len(rates) >= MIN_COPIES else None


def _overlaps(copies: Sequence[Copy]) -> list[int]:
    """For each copy, ns during which copies of the other direction ran."""
    of_direction = {
        is_out: sorted((copy.start_ns, copy.start_ns + copy.duration_ns) for copy in copies if copy.is_out is is_out)
        for is_out in (True, False)
    }
    # Latest end so far: from the first one beyond its start on, copies may overlap with a copy.
    ends = {way: list(itertools.accumulate((end for _, end in spans), max)) for way, spans in of_direction.items()}
    result = []
    for copy in copies:
        others, end, overlap = of_direction[not copy.is_out], copy.start_ns + copy.duration_ns, 0
        for index in range(bisect.bisect_right(ends[not copy.is_out], copy.start_ns), len(others)):
            other_start, other_end = others[index]
            if other_start >= end:
                break
            overlap += max(0, min(end, other_end) - max(copy.start_ns, other_start))
        result.append(overlap)
    return result
