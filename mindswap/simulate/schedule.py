"""In which order a pipeline stage runs the micro-batches of its chunks. Pure.

1F1B and interleaved 1F1B as in Narayanan et al., "Efficient large-scale language model training on GPU
clusters using Megatron-LM" (SC 2021), section 2.2; MindSpore's `pipeline_scheduler: 1f1b` orders them alike.
"""

from dataclasses import dataclass

__all__ = ["Turn", "order_turns"]


@dataclass(frozen=True)
class Turn:
    """One pass of one micro-batch through one virtual chunk of a stage."""

    chunk: int
    micro_batch: int
    is_forward: bool


def order_turns(stage: int, num_stages: int, num_chunks: int, num_micro_batches: int) -> tuple[Turn, ...]:
    """What a stage does in one step.

    A stage runs forward for as many micro-batches as are on their way behind it (warm-up), then one forward
    and one backward in turn (steady state), then the backwards that are left (cool-down).

    Args:
        stage: pipeline stage, from 0.
        num_stages: pipeline stages.
        num_chunks: virtual chunks per stage.
        num_micro_batches: micro-batches of a step. With chunks they go in groups of `num_stages`; where the last
            group is not full, the order is that of a full one without those that are missing. Any other order can
            have stages wait for each other.
    """
    group = num_stages if num_chunks > 1 else 1
    num_full = -(-num_micro_batches // group) * group
    turns = _order_full(stage, num_stages, num_chunks, num_full)
    return tuple(turn for turn in turns if turn.micro_batch < num_micro_batches)


def _order_full(stage: int, num_stages: int, num_chunks: int, num_micro_batches: int) -> list[Turn]:
    total = num_micro_batches * num_chunks
    if num_chunks == 1:
        num_warm_up = min(num_stages - stage - 1, total)
    else:
        num_warm_up = min((num_stages - stage - 1) * 2 + (num_chunks - 1) * num_stages, total)
    forward = _deal(num_stages, num_chunks, num_micro_batches)
    backward = [(num_chunks - 1 - chunk, micro_batch) for chunk, micro_batch in forward]
    turns = [Turn(*forward[i], True) for i in range(num_warm_up)]
    for i in range(num_warm_up, total):
        turns += [Turn(*forward[i], True), Turn(*backward[i - num_warm_up], False)]
    turns += [Turn(*backward[i], False) for i in range(total - num_warm_up, total)]
    return turns


def _deal(num_stages: int, num_chunks: int, num_micro_batches: int) -> list[tuple[int, int]]:
    """(chunk, micro-batch) in forward order: groups of as many micro-batches as stages go through chunk after chunk."""
    size = num_stages if num_chunks > 1 else 1
    return [
        (chunk, micro_batch)
        for first in range(0, num_micro_batches, size)
        for chunk in range(num_chunks)
        for micro_batch in range(first, first + size)
    ]
