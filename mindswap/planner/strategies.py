"""Batches and parallel strategies of a step: which are worth a look, which are best.

A step of one data parallel rank has `size * count` samples, its global batch over the number of these ranks. Strategies
are all that MindFormers takes for a number of cards and a step with as many samples.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

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
        sizes: of micro-batches that were asked for; None for all that come into question.
        counts: the same of numbers of micro-batches.
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


# How far from a number of cards without a strategy the next ones are looked for.
REACH_CARDS = 64


@dataclass(frozen=True, order=True)
class Strategy:
    """How a step is spread over cards."""

    data: int  # ranks that share the samples
    tensor: int  # ranks that share a layer
    stages: int  # of the pipeline
    experts: int = 1  # ranks that share the experts of a layer
    has_sequence: bool = False  # sequence parallel beside tensor parallel

    def __str__(self) -> str:
        text = f"data {self.data}, tensor {self.tensor}, stages {self.stages}"
        text += f", experts {self.experts}" if self.experts > 1 else ""
        return text + (", sequence" if self.has_sequence else "")


def demand_of(strategy: Strategy, batch: Batch) -> tuple[int, int, bool]:
    """What memory rises with: samples at a time, and what expert and sequence parallelism do not share."""
    return batch.size, -strategy.experts, not strategy.has_sequence


def needs_more(one: tuple[Strategy, Batch], other: tuple[Strategy, Batch]) -> bool:
    """Where nothing fits the other, nothing fits this: the same split, with no less in anything that memory rises with.

    A single micro-batch may need less than several smaller ones, as it has no sums of gradients.
    """
    is_more = all(own >= least for own, least in zip(demand_of(*one), demand_of(*other), strict=True))
    alike = replace(one[0], experts=other[0].experts, has_sequence=other[0].has_sequence) == other[0]
    return one != other and is_more and alike and (one[1].count > 1 or one[1] == other[1])


@dataclass(frozen=True)
class StrategyLimits:
    """Limits of strategies.

    Attributes:
        own: of the configuration.
        context: ranks that share a sequence; stays.
        num_samples: of a step, all data parallel ranks together; stays.
        sizes: samples of a micro-batch that come into question; None for all.
        counts: micro-batches of a step, likewise.
        num_layers: of the model.
        num_chunks: of a stage.
        divisible: numbers that tensor parallel cuts: attention heads, heads of keys and values, words.
        num_experts: routed experts of a layer; 0 without.
        max_tensor: cards of a node, which tensor parallel does not leave.
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
    """Strategies and batches to plan for: that of the configuration first, then those that cut layers and steps least.

    Raises:
        PlanError: there is none, with the nearest numbers of cards that have some.
    """
    found = tuple(_strategies(cards, limits))
    if found:
        return tuple(sorted(found, key=lambda one: _rank(one, limits.own)))
    near = [at for at in _by_distance(cards) if next(_strategies(at, limits), None) is not None][:2]
    allowed = ", ".join(map(str, sorted(near))) or "none near"
    raise PlanError(
        f"--cards {cards}: no strategy spreads {limits.num_samples} samples a step and {limits.num_layers} layers over "
        f"them as MindFormers takes it\n    allowed: nearest: {allowed}\n    fix:     one of these, or another batch"
    )


def _rank(one: tuple[Strategy, Batch], own: Strategy) -> tuple[object, ...]:
    strategy, batch = one
    return strategy != own, strategy.tensor * strategy.stages, strategy.tensor, strategy.has_sequence, strategy, batch


def _by_distance(cards: int) -> Iterator[int]:
    for distance in range(1, REACH_CARDS + 1):
        if cards > distance:
            yield cards - distance
        yield cards + distance


def _strategies(cards: int, limits: StrategyLimits) -> Iterator[tuple[Strategy, Batch]]:
    """Everything that MindFormers takes, in any order."""
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
                        continue  # MindFormers asks for it
                    for batch in _batches(data, stages, limits):
                        yield Strategy(data, tensor, stages, experts, has_sequence), batch


def _has_layers(stages: int, limits: StrategyLimits) -> bool:
    if stages == limits.own.stages:
        return True  # with the offset of the configuration
    if limits.num_chunks > 1 and stages == 1:
        return False
    return limits.num_layers >= stages * limits.num_chunks


def _experts(ranks: int, limits: StrategyLimits) -> Iterator[int]:
    """MindFormers takes numbers that divide the ranks of a stage (modules/transformer/moev3.py)."""
    yield 1
    for number in _divisors(ranks):
        if number > 1 and limits.num_experts and limits.num_experts % number == 0:
            yield number


def _batches(data: int, stages: int, limits: StrategyLimits) -> Iterator[Batch]:
    """A pipeline needs a micro-batch for each stage at least."""
    if limits.num_samples % data:
        return
    samples = limits.num_samples // data
    for size in _divisors(samples):
        batch = Batch(size, samples // size)
        is_asked = limits.sizes is None or size in limits.sizes
        is_asked = is_asked and (limits.counts is None or batch.count in limits.counts)
        if is_asked and (stages == 1 or batch.count >= stages):
            yield batch


def _divisors(number: int) -> tuple[int, ...]:
    return tuple(one for one in range(1, number + 1) if number % one == 0)
