"""seqpipe: 1F1B, with chunks and with pieces of sequences; also what MindSpore runs for one chunk, whatever is asked.

Forwards go piece after piece, micro-batch after micro-batch of a round, chunk after chunk. A backward takes the
oldest forward's micro-batch, and of that what went forward last: pieces and chunks go back in reverse.

Source: `SeqpipeScheduler`, mindspore/ccsrc/frontend/parallel/pipeline_transformer/seqpipe_scheduler.cc
(mindspore-ai/mindspore_test, 7115566): `ComputeCycleList` (rounds), `ComputeBias`, `ExtractDataStruct` (warm-up),
`MakeExecuteOrder`. With one chunk `PipelineInterleave::SetScheduler` (pipeline_interleave.cc) takes it in place of any
other: then it is 1F1B as in Narayanan et al., "PipeDream" (SOSP 2019). Without pipeline_interleave it is that, too.

    stage 0 of 2, 1 chunk, 3 micro-batches:                    F0 F1 B0 F2 B1 B2
    stage 0 of 2, 1 chunk, 2 micro-batches of 2 pieces x, y:   F0x F0y F1x B0y F1y B0x B1y B1x
"""

from collections import deque
from collections.abc import Sequence

from mindswap.simulator.schedules.passes import Pass, PassWork, Shape


def order(stage: int, shape: Shape) -> tuple[Pass, ...]:
    rounds = spread_rest(shape.num_micro_batches, shape.num_stages)
    return order_rounds(stage, shape, rounds, 1 if shape.num_chunks == 1 else 2)


def refusal(shape: Shape) -> str:
    """MindSpore takes any shape."""
    return ""


def spread_rest(num_micro_batches: int, size: int) -> list[int]:
    """Sizes of the rounds: `size` each, and one more in the first ones until all are in a round."""
    num_rounds = num_micro_batches // size
    if num_rounds == 0:
        return [num_micro_batches]
    rest = num_micro_batches - num_rounds * size
    return [size + rest // num_rounds + (position < rest % num_rounds) for position in range(num_rounds)]


def spread_rounds(shape: Shape, size: int, at_least: int) -> int:
    """`short_step` where the first rounds take what makes no whole round: the first one stays as large."""
    total = shape.num_micro_batches
    num_rounds, rest = divmod(total, size)
    if rest > num_rounds:
        return total
    return min(total, max(1, -(-at_least // size)) * size + (rest > 0))


def order_rounds(stage: int, shape: Shape, rounds: Sequence[int], forwards_per_stage: int) -> tuple[Pass, ...]:
    """Some forwards (warm-up), then one forward and one backward in turn, then the backwards that are left.

    All schedules have this order but gpipe and zero_bubble_v. `rounds` are their micro-batches; by
    `forwards_per_stage` the warm-up of a stage is longer than that of the next one.
    """
    forward = []
    begin = 0
    for size in rounds:
        forward += [
            (chunk, micro_batch, piece)
            for chunk in range(shape.num_chunks)
            for micro_batch in range(begin, begin + size)
            for piece in range(shape.num_sequences)
        ]
        begin += size
    num_warm_up = (
        (shape.num_stages - 1 - stage) * forwards_per_stage
        + (shape.num_chunks - 1) * rounds[0] * shape.num_sequences
        + shape.num_sequences
        - 1
    )
    passes: list[Pass] = []
    waiting: deque[int] = deque()  # micro-batches of the forwards that have no backward yet
    done: dict[int, list[Pass]] = {}  # of each micro-batch, the forwards that have none, the last one at the end

    def go_back() -> None:
        last = done[waiting.popleft()].pop()
        passes.append(Pass(last.chunk, last.micro_batch, PassWork.BACKWARD, last.sequence))

    for index, (chunk, micro_batch, piece) in enumerate(forward):
        own = Pass(chunk, micro_batch, PassWork.FORWARD, piece)
        passes.append(own)
        waiting.append(micro_batch)
        done.setdefault(micro_batch, []).append(own)
        if index >= min(num_warm_up, len(forward) - 1):
            go_back()
    while waiting:
        go_back()
    return tuple(passes)


def short_step(shape: Shape, at_least: int) -> int:
    return spread_rounds(shape, shape.num_stages if shape.num_chunks > 1 else 1, at_least)
