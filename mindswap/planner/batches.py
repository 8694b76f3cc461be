"""Batches of a step: samples of a micro-batch, and micro-batches of a step; which are worth a look, and which are best.

A step of one data parallel rank has `size * count` samples, its global batch over the number of these ranks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mindswap.errors import PlanError

# Without a global batch to keep: how far from the batch of the configuration is looked, in powers of two.
REACH = 2
AUTO = "auto"


@dataclass(frozen=True, order=True)
class Batch:
    """How the samples of a step go through one data parallel rank."""

    size: int  # samples of a micro-batch
    count: int  # micro-batches of a step

    @property
    def num_samples(self) -> int:
        """Samples of a step on one data parallel rank."""
        return self.size * self.count


def list_batches(
    own: Batch, sizes: Sequence[int] | None, counts: Sequence[int] | None, keeps_samples: bool
) -> tuple[Batch, ...]:
    """Batches to plan for, that of the configuration first if it is one of them.

    Args:
        own: of the configuration.
        sizes, counts: what was asked for; None for all that come into question.
        keeps_samples: a step has as many samples as now.

    Raises:
        PlanError: if a number that was asked for does not divide the samples of a step.
    """
    if keeps_samples:
        total = own.num_samples
        wrong = [number for number in (*(sizes or ()), *(counts or ())) if total % number]
        if wrong:
            allowed = ", ".join(str(number) for number in range(1, total + 1) if total % number == 0)
            raise PlanError(
                f"{', '.join(map(str, wrong))}: does not divide the {total} samples of a step on a data parallel rank "
                f"({own.size} x {own.count})\n    allowed: {allowed}\n    fix:     one of these, or --any-global-batch"
            )
        found = {Batch(size, total // size) for size in range(1, total + 1) if total % size == 0}
        found = {one for one in found if (not sizes or one.size in sizes) and (not counts or one.count in counts)}
    else:
        found = {Batch(size, count) for size in sizes or _near(own.size) for count in counts or _near(own.count)}
    return tuple(sorted(found, key=lambda one: (one != own, -one.size, one.count)))


def _near(number: int) -> Iterable[int]:
    """Powers of two times or below a number."""
    return {number << shift for shift in range(REACH + 1)} | {max(number >> shift, 1) for shift in range(REACH + 1)}


def pareto_front(points: Sequence[tuple[float, int]]) -> tuple[bool, ...]:
    """Of (speed, memory): whether no other is at least as fast with less memory, or faster with as much."""
    return tuple(
        not any(
            (speed >= own_speed and size < own_size) or (speed > own_speed and size <= own_size)
            for speed, size in points
        )
        for own_speed, own_size in points
    )
