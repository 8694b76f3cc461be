"""Enumerate the batches and parallel strategies that a planner compares.

A data parallel rank processes `size * count` samples in a step: the global batch divided by the number of these ranks.
The strategies are those that MindFormers accepts for a number of cards and an unchanged global batch.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from mindswap.errors import PlanError

# Without a global batch to keep: range around the batch of the configuration, in powers of two.
REACH = 2
AUTO = "auto"


@dataclass(frozen=True, order=True)
class Batch:
    """Samples of a step on one data parallel rank, by micro-batches."""

    size: int  # samples of a micro-batch
    count: int  # micro-batches of a step

    @property
    def num_samples(self) -> int:
        """Samples of a step on one data parallel rank."""
        return self.size * self.count


def list_batches(
    configured: Batch, sizes: Sequence[int] | None, counts: Sequence[int] | None, keeps_samples: bool
) -> tuple[Batch, ...]:
    """Return the batches to plan for, that of the configuration first if it is one of them.

    Args:
        configured: batch of the configuration.
        sizes: requested sizes of micro-batches; None for all candidates.
        counts: requested numbers of micro-batches; None for all candidates.
        keeps_samples: whether the number of samples of a step is unchanged.

    Raises:
        PlanError: if a requested number does not divide the samples of a step.
    """
    if keeps_samples:
        total = configured.num_samples
        wrong = [number for number in (*(sizes or ()), *(counts or ())) if total % number]
        if wrong:
            allowed = ", ".join(str(number) for number in range(1, total + 1) if total % number == 0)
            raise PlanError(
                f"{', '.join(map(str, wrong))}: does not divide the {total} samples of a step on a data parallel rank "
                f"({configured.size} x {configured.count})\n    allowed: {allowed}\n"
                "    fix:     one of these, or --any-global-batch"
            )
        batches = {Batch(size, total // size) for size in range(1, total + 1) if total % size == 0}
        batches = {
            batch for batch in batches if (not sizes or batch.size in sizes) and (not counts or batch.count in counts)
        }
    else:
        batches = {
            Batch(size, count)
            for size in sizes or _near(configured.size)
            for count in counts or _near(configured.count)
        }
    return tuple(sorted(batches, key=lambda batch: (batch != configured, -batch.size, batch.count)))


def _near(number: int) -> Iterable[int]:
    """Return the number multiplied and divided by powers of two up to `2 ** REACH`."""
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


# If a number of cards has no strategy: range in which the nearest ones that have some are searched.
REACH_CARDS = 64


@dataclass(frozen=True, order=True)
class Strategy:
    """Parallel strategy of a step."""

    data: int  # data parallel size
    tensor: int  # tensor parallel size
    stages: int  # pipeline stages
    experts: int = 1  # expert parallel size
    has_sequence: bool = False  # sequence parallel together with tensor parallel

    def __str__(self) -> str:
        text = f"data {self.data}, tensor {self.tensor}, stages {self.stages}"
        text += f", experts {self.experts}" if self.experts > 1 else ""
        return text + (", sequence" if self.has_sequence else "")


class Demand(NamedTuple):
    """Quantities that the memory increases with."""

    micro_batch_size: int
    replicated_experts: int  # negative expert parallel size
    is_sequence_replicated: bool  # no sequence parallelism


def demand_of(strategy: Strategy, batch: Batch) -> Demand:
    """Return the quantities that the memory of a candidate increases with."""
    return Demand(batch.size, -strategy.experts, not strategy.has_sequence)


def needs_more(candidate: tuple[Strategy, Batch], infeasible: tuple[Strategy, Batch]) -> bool:
    """Return whether a candidate needs at least the memory of one for which no plan fits, so that none fits it either.

    That is so for the same strategy if no quantity of `demand_of` is smaller. A single micro-batch may need less than
    several smaller ones, because it accumulates no gradients.
    """
    is_more = all(
        demand >= infeasible_demand
        for demand, infeasible_demand in zip(demand_of(*candidate), demand_of(*infeasible), strict=True)
    )
    is_same_split = (
        replace(candidate[0], experts=infeasible[0].experts, has_sequence=infeasible[0].has_sequence) == infeasible[0]
    )
    return (
        candidate != infeasible
        and is_more
        and is_same_split
        and (candidate[1].count > 1 or candidate[1] == infeasible[1])
    )


@dataclass(frozen=True)
class StrategyLimits:
    """Limits of strategies.

    Attributes:
        own: strategy of the configuration.
        context: context parallel size; unchanged.
        num_samples: global batch size; unchanged.
        sizes: allowed micro-batch sizes; None for all.
        counts: allowed numbers of micro-batches; None for all.
        num_layers: layers of the model.
        num_chunks: virtual chunks of a stage.
        divisible: numbers that the tensor parallel size must divide: attention heads, key-value heads, vocabulary.
        num_experts: routed experts of a layer; 0 for a dense model.
        max_tensor: largest tensor parallel size: the cards of a node.
    """

    own: Strategy
    context: int
    num_samples: int
    sizes: tuple[int, ...] | None
    counts: tuple[int, ...] | None
    num_layers: int
    num_chunks: int
    divisible: tuple[int, ...]
    num_experts: int
    max_tensor: int


def list_strategies(cards: int, limits: StrategyLimits) -> tuple[tuple[Strategy, Batch], ...]:
    """Return the strategies and batches to plan for: that of the configuration first, then by least model parallelism.

    Raises:
        PlanError: if there is none; it names the nearest numbers of cards that have some.
    """
    candidates = tuple(_strategies(cards, limits))
    if candidates:
        return tuple(sorted(candidates, key=lambda candidate: _rank(candidate, limits.own)))
    nearest = [
        num_cards for num_cards in _by_distance(cards) if next(_strategies(num_cards, limits), None) is not None
    ][:2]
    allowed = ", ".join(map(str, sorted(nearest))) or "none near"
    raise PlanError(
        f"--cards {cards}: no strategy spreads {limits.num_samples} samples a step and {limits.num_layers} layers over "
        f"them as MindFormers takes it\n    allowed: nearest: {allowed}\n    fix:     one of these, or another batch"
    )


def _rank(candidate: tuple[Strategy, Batch], configured: Strategy) -> tuple[object, ...]:
    strategy, batch = candidate
    return (
        strategy != configured,
        strategy.tensor * strategy.stages,
        strategy.tensor,
        strategy.has_sequence,
        strategy,
        batch,
    )


def _by_distance(cards: int) -> Iterator[int]:
    for distance in range(1, REACH_CARDS + 1):
        if cards > distance:
            yield cards - distance
        yield cards + distance


def _strategies(cards: int, limits: StrategyLimits) -> Iterator[tuple[Strategy, Batch]]:
    """Yield all strategies that MindFormers accepts."""
    if cards % limits.context:
        return
    ranks = cards // limits.context
    for stages in _divisors(ranks):
        if not _has_layers(stages, limits):
            continue
        for tensor in _divisors(ranks // stages):
            if tensor > limits.max_tensor or any(number % tensor for number in limits.divisible):
                continue
            data = ranks // stages // tensor
            for experts in _experts(data * tensor, limits):
                for has_sequence in (False, True) if tensor > 1 else (False,):
                    if experts > 1 and tensor > 1 and not has_sequence:
                        continue  # MindFormers requires sequence parallel for expert with tensor parallel
                    for batch in _batches(data, stages, limits):
                        yield Strategy(data, tensor, stages, experts, has_sequence), batch


def _has_layers(stages: int, limits: StrategyLimits) -> bool:
    if stages == limits.own.stages:
        return True  # the configuration's offset distributes the layers
    if limits.num_chunks > 1 and stages == 1:
        return False
    return limits.num_layers >= stages * limits.num_chunks


def _experts(ranks: int, limits: StrategyLimits) -> Iterator[int]:
    """Yield the expert parallel sizes: divisors of the ranks of a stage (modules/transformer/moev3.py)."""
    yield 1
    for number in _divisors(ranks):
        if number > 1 and limits.num_experts and limits.num_experts % number == 0:
            yield number


def _batches(data: int, stages: int, limits: StrategyLimits) -> Iterator[Batch]:
    """Yield the batches of a data parallel rank; a pipeline needs at least one micro-batch for each stage."""
    if limits.num_samples % data:
        return
    samples = limits.num_samples // data
    for size in _divisors(samples):
        batch = Batch(size, samples // size)
        is_requested = limits.sizes is None or size in limits.sizes
        is_requested = is_requested and (limits.counts is None or batch.count in limits.counts)
        if is_requested and (stages == 1 or batch.count >= stages):
            yield batch


def _divisors(number: int) -> tuple[int, ...]:
    return tuple(divisor for divisor in range(1, number + 1) if number % divisor == 0)
