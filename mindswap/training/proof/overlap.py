"""How much of the copies between device and host runs while the device computes. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# (start, end) in ns.
Interval = tuple[int, int]


@dataclass(frozen=True)
class Overlap:
    """Copies of a profile, each of its nanoseconds counted once: hidden, beside communication or exposed."""

    num_copies: int  # copies between device and host
    size_bytes: int | None  # of all copies; None where the profile has no sizes
    copy_ns: int  # sum of their durations
    hidden_ns: int  # of that, while the device computed
    communication_ns: int  # of that, while it only communicated
    compute_ns: int  # time in which the device computed

    @property
    def exposed_ns(self) -> int:
        """Copy time in which the device did nothing else."""
        return self.copy_ns - self.hidden_ns - self.communication_ns

    @property
    def hidden_permille(self) -> int | None:
        """Share of the copy time that is hidden under compute; None without copies."""
        return self.hidden_ns * 1000 // self.copy_ns if self.copy_ns else None


def measure_overlap(
    copies: Sequence[Interval],
    compute: Iterable[Interval],
    communication: Iterable[Interval],
    size_bytes: int | None = None,
) -> Overlap:
    """Lay the copies over what else the device did.

    Two copies that run at once count both; kernels (`compute`) and collectives may overlap each other.
    """
    computing = _union(compute)
    busy = _union([*computing, *communication])
    hidden = sum(_shared(copy, computing) for copy in copies)
    not_alone = sum(_shared(copy, busy) for copy in copies)
    return Overlap(
        num_copies=len(copies),
        size_bytes=size_bytes,
        copy_ns=sum(end - start for start, end in copies),
        hidden_ns=hidden,
        communication_ns=not_alone - hidden,
        compute_ns=sum(end - start for start, end in computing),
    )


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time as intervals that do not touch, in order."""
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def _shared(copy: Interval, others: Sequence[Interval]) -> int:
    """Time that a copy has in common with intervals that do not touch each other."""
    return sum(max(0, min(copy[1], end) - max(copy[0], start)) for start, end in others)
