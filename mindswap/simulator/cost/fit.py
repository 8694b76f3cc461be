"""Figures of the links from measured times: `t = a + size / b` for copies, shares of links for collectives."""

import bisect
import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from mindswap.simulator.cost.profile import ProfiledCopy, Transfer
from mindswap.units import NS_PER_S

MIN_COPIES = 3
# The time of smaller copies is mostly their fixed part, and small messages of collectives wait more than they move.
LARGE_BYTES = 2**20
# A collective says how fast links are when they are busy for this much of it.
BUSY_PERMILLE = 800
# A copy counts as contended when this much of it runs beside copies in the other direction.
CONTENDED_PERMILLE = 900


@dataclass(frozen=True)
class LinkFit:
    """One direction of the link to the host."""

    bandwidth_bytes_per_s: int  # b
    latency_ns: int  # a, not below 0
    num_copies: int  # copies that were fitted: those that had the link to themselves
    num_large: int  # those of them that tell of the bandwidth: of `LARGE_BYTES` or more
    middle_error_permille: int  # how far fitted times are from measured ones
    largest_error_permille: int

    def duration_ns(self, size_bytes: int) -> int:
        return self.latency_ns + size_bytes * NS_PER_S // self.bandwidth_bytes_per_s


def fit_link(copies: Sequence[ProfiledCopy], is_out: bool) -> LinkFit | None:
    """Least squares over the copies of one direction that ran while none ran the other way.

    Copies of one size count with their middle time, as often as there are: one that was held up moves nothing. With
    one size only, or where the line would begin below zero, the latency is 0. None with fewer than three copies, or
    where larger copies were not slower.
    """
    overlaps = _overlaps(copies)
    alone = [c for c, overlap in zip(copies, overlaps, strict=True) if c.is_out is is_out and not overlap]
    alone = [copy for copy in alone if copy.duration_ns > 0]
    if len(alone) < MIN_COPIES:
        return None
    points = _middles(alone)
    count = len(alone)
    mean_size = sum(n * size for size, _, n in points) / count
    mean_time = sum(n * time for _, time, n in points) / count
    spread = sum(n * (size - mean_size) ** 2 for size, _, n in points)
    together = sum(n * (size - mean_size) * (time - mean_time) for size, time, n in points)
    slope = together / spread if spread else 0.0
    latency = mean_time - slope * mean_size
    if not spread or latency < 0:
        slope = sum(n * size * time for size, time, n in points) / sum(n * size**2 for size, _, n in points)
        latency = 0.0
    if slope <= 0:
        return None
    num_large = sum(copy.size_bytes >= LARGE_BYTES for copy in alone)
    fit = LinkFit(max(1, round(NS_PER_S / slope)), round(latency), count, num_large, 0, 0)
    errors = [abs(fit.duration_ns(c.size_bytes) - c.duration_ns) * 1000 // c.duration_ns for c in alone]
    return replace(fit, middle_error_permille=int(statistics.median(errors)), largest_error_permille=max(errors))


def _middles(copies: Iterable[ProfiledCopy]) -> list[tuple[int, float, int]]:
    """(size, middle time, how many) for each size."""
    times: dict[int, list[int]] = {}
    for copy in copies:
        times.setdefault(copy.size_bytes, []).append(copy.duration_ns)
    return [(size, statistics.median(found), len(found)) for size, found in sorted(times.items())]


@dataclass(frozen=True)
class ShareFit:
    """What one kind of link between cards reaches."""

    permille: int  # of the bandwidth of one link
    num_transfers: int  # collectives that were compared
    middle_error_permille: int  # how far times by the fit are from measured ones


def fit_share(
    transfers: Iterable[Transfer], link: str, bandwidth_bytes_per_s: int, latency_ns: int = 0
) -> ShareFit | None:
    """Share of the bandwidth of one link of a kind (`Transfer.link`) that collectives reach, from start to end.

    Of the same collective of the same size the quickest counts: the others waited for a rank. So many links worked
    side by side as it takes to move the bytes in that time. Where those were busy for less than `BUSY_PERMILLE` of it,
    even the quickest waited, and says nothing. None without large transfers that say something.
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
    errors = [abs(one_size * time // size - one_time) * 1000 // one_time for _, one_size, one_time in moved]
    permille = size * NS_PER_S * 1000 // (time * bandwidth_bytes_per_s)
    return ShareFit(max(1, permille), sum(n for n, _, _ in moved), int(statistics.median(errors)))


def fit_contention(copies: Sequence[ProfiledCopy], out: LinkFit | None, back: LinkFit | None) -> tuple[int, int] | None:
    """How fast copies are while the other direction copies too; `out` and `back` are what they take alone.

    The middle of (time alone / time measured) in thousandths, at most 1000, and of how many copies; None with fewer
    than three.
    """
    rates = []
    for copy, overlap in zip(copies, _overlaps(copies), strict=True):
        fit = out if copy.is_out else back
        if fit is not None and copy.duration_ns > 0 and overlap * 1000 >= CONTENDED_PERMILLE * copy.duration_ns:
            rates.append(min(1000, fit.duration_ns(copy.size_bytes) * 1000 // copy.duration_ns))
    return (max(1, int(statistics.median(rates))), len(rates)) if len(rates) >= MIN_COPIES else None


def _overlaps(copies: Sequence[ProfiledCopy]) -> list[int]:
    """For each copy, ns during which copies of the other direction ran on the same rank."""
    spans: dict[tuple[int, bool], list[tuple[int, int]]] = {}
    for copy in copies:
        spans.setdefault((copy.rank, copy.is_out), []).append((copy.start_ns, copy.start_ns + copy.duration_ns))
    # Latest end so far: from the first one beyond its start on, copies may overlap with a copy.
    ends = {}
    for key, found in spans.items():
        found.sort()
        ends[key] = list(itertools.accumulate((end for _, end in found), max))
    result = []
    for copy in copies:
        key, end, overlap = (copy.rank, not copy.is_out), copy.start_ns + copy.duration_ns, 0
        others = spans.get(key, [])
        for index in range(bisect.bisect_right(ends.get(key, []), copy.start_ns), len(others)):
            other_start, other_end = others[index]
            if other_start >= end:
                break
            overlap += max(0, min(end, other_end) - max(copy.start_ns, other_start))
        result.append(overlap)
    return result
