"""Elements of a schedule, and all schedules but zero_bubble_v: rounds of micro-batches, and gpipe.

In rounds: warm-up forwards, then one forward and one backward alternate (1F1B). Forwards iterate over sequence pieces,
then over the micro-batches of a round, then over virtual chunks. A backward takes the micro-batch of the oldest pending
forward, and its pieces and chunks in reverse order. In the examples below, a and b are chunks, x and y sequence pieces,
on stage 0 of 2.

Sources: mindspore/ccsrc/frontend/parallel/pipeline_transformer/ of mindspore-ai/mindspore_test: pipeline_scheduler.cc
(17110c7) and seqpipe_scheduler.cc (7115566).
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum


class PassWork(IntEnum):
    """Work of a pass."""

    FORWARD = 0
    BACKWARD = 1  # gradients of inputs and weights
    INPUT_GRADIENT = 2  # backward without the gradients of weights
    WEIGHT_GRADIENT = 3  # gradients of weights only


@dataclass(frozen=True)
class Pass:
    """One pass of one micro-batch through one virtual chunk of a stage."""

    chunk: int  # virtual chunk of the stage
    micro_batch: int  # position in the step
    work: PassWork
    sequence: int = 0  # sequence piece; 0 if sequences are not split


@dataclass(frozen=True)
class Shape:
    """Numbers of stages, chunks, micro-batches and sequence pieces of a step."""

    num_stages: int
    num_chunks: int = 1  # virtual chunks per stage
    num_micro_batches: int = 1
    num_sequences: int = 1  # pieces that each sequence is split into


@dataclass(frozen=True)
class PipelineSchedule:
    """Definition of one value of `pipeline_scheduler`."""

    order: Callable[[int, Shape], tuple[Pass, ...]]  # passes of a stage in one step
    # (shape, minimum) -> a number of micro-batches from the minimum on with the same steady state
    short_step: Callable[[Shape, int], int]
    refusal: Callable[[Shape], str] = lambda shape: ""  # why MindSpore refuses this shape; "" if it takes it


def max_num_in_flight(passes: Iterable[Pass]) -> int:
    """Return the maximum number of forward passes whose backward, with both halves if split, is not complete."""
    held = maximum = 0
    for entry in passes:
        if entry.work is PassWork.FORWARD:
            held += 1
            maximum = max(maximum, held)
        elif entry.work is not PassWork.INPUT_GRADIENT:
            held -= 1
    return maximum


def order_rounds(stage: int, shape: Shape, rounds: Sequence[int], forwards_per_stage: int) -> tuple[Pass, ...]:
    """Return the passes of a stage: warm-up, alternating forward and backward, then the remaining backwards.

    Args:
        stage: index of the stage.
        shape: shape of the step.
        rounds: number of micro-batches of each round.
        forwards_per_stage: additional warm-up forwards compared with the next stage.
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
    waiting: deque[int] = deque()  # micro-batches of pending forwards (without backward)
    done: dict[int, list[Pass]] = {}  # micro-batch -> its pending forwards, the latest one last

    def go_back() -> None:
        last = done[waiting.popleft()].pop()
        passes.append(Pass(last.chunk, last.micro_batch, PassWork.BACKWARD, last.sequence))

    for index, (chunk, micro_batch, piece) in enumerate(forward):
        forward_pass = Pass(chunk, micro_batch, PassWork.FORWARD, piece)
        passes.append(forward_pass)
        waiting.append(micro_batch)
        done.setdefault(micro_batch, []).append(forward_pass)
        if index >= min(num_warm_up, len(forward) - 1):
            go_back()
    while waiting:
        go_back()
    return tuple(passes)


def by_rounds(
    rounds_of: Callable[[Shape], list[int]], forwards_per_stage: int
) -> Callable[[int, Shape], tuple[Pass, ...]]:
    """Return a `PipelineSchedule.order` with rounds of the numbers of micro-batches that `rounds_of` returns."""
    return lambda stage, shape: order_rounds(stage, shape, rounds_of(shape), forwards_per_stage)


def spread_remainder(num_micro_batches: int, size: int) -> list[int]:
    """Return the sizes of the rounds: `size` each, with the remainder spread over the first ones."""
    num_rounds = num_micro_batches // size
    if num_rounds == 0:
        return [num_micro_batches]
    remainder = num_micro_batches - num_rounds * size
    return [size + remainder // num_rounds + (position < remainder % num_rounds) for position in range(num_rounds)]


def spread_rounds(shape: Shape, size: int, minimum: int) -> int:
    """Return a `short_step` if the remainder is spread over the first rounds: the first round keeps its size."""
    total = shape.num_micro_batches
    num_rounds, remainder = divmod(total, size)
    if remainder > num_rounds:
        return total
    return min(total, max(1, -(-minimum // size)) * size + (remainder > 0))


# seqpipe: 1F1B, with chunks and with pieces of sequences; MindSpore also uses it for one chunk with any setting.
# Source: `SeqpipeScheduler`: `ComputeCycleList` (rounds), `ComputeBias`, `ExtractDataStruct` (warm-up),
# `MakeExecuteOrder`. With one chunk `PipelineInterleave::SetScheduler` (pipeline_interleave.cc) takes it in place of
# any other: then it is 1F1B as in Narayanan et al., "PipeDream" (SOSP 2019), as it is without pipeline_interleave.
#     1 chunk, 3 micro-batches:                    F0 F1 B0 F2 B1 B2
#     1 chunk, 2 micro-batches of 2 pieces x, y:   F0x F0y F1x B0y F1y B0x B1y B1x


def _order_seqpipe(stage: int, shape: Shape) -> tuple[Pass, ...]:
    rounds = spread_remainder(shape.num_micro_batches, shape.num_stages)
    return order_rounds(stage, shape, rounds, 1 if shape.num_chunks == 1 else 2)


SEQPIPE = PipelineSchedule(
    _order_seqpipe,
    lambda shape, minimum: spread_rounds(shape, shape.num_stages if shape.num_chunks > 1 else 1, minimum),
)

# 1f1b with several chunks: rounds of as many micro-batches as stages go through chunk after chunk.
# Source: `InterleavedScheduler::Reorder`: `offset_` (micro-batches that make no whole round are in the first one),
# `bias_` (warm-up), `SortFuncBetweenMicro` (order of forwards and of backwards). Orders as in Narayanan et al.,
# "Efficient large-scale language model training on GPU clusters using Megatron-LM" (SC 2021), section 2.2.
#     2 chunks, 4 micro-batches: F0a F1a F0b F1b  F2a B0b F3a B1b F2b B0a F3b B1a  B2b B3b B2a B3a


def _refuse_few(shape: Shape) -> str:
    if shape.num_micro_batches < shape.num_stages:
        return f"{shape.num_micro_batches} micro-batches are fewer than {shape.num_stages} stages"
    return ""


def _interleaved_rounds(shape: Shape) -> list[int]:
    """Return the sizes of the rounds: the first includes the remainder; too few micro-batches are a single round."""
    num_rounds, remainder = divmod(shape.num_micro_batches, shape.num_stages)
    return [min(shape.num_micro_batches, shape.num_stages + remainder), *[shape.num_stages] * (num_rounds - 1)]


def _short_interleaved(shape: Shape, minimum: int) -> int:
    """Return a number of micro-batches with the same remainder in rounds; at most the total."""
    total = shape.num_micro_batches
    return total - max(0, total - minimum) // shape.num_stages * shape.num_stages


INTERLEAVED_1F1B = PipelineSchedule(by_rounds(_interleaved_rounds, 2), _short_interleaved, _refuse_few)

# The same where ENABLE_LESS_MEM_VPP=1 and jit_level is O0 or O1: a shorter warm-up. Each stage holds one chunk less
# than the one before it, not two. The bubble is the same where transfers take no time, and grows by more where they do:
# a stage waits for its neighbour's send in every turn.
# Source: `InterleavedScheduler::MemoryOptimizedReorder` and `EnableKbk`.
#     2 chunks, 4 micro-batches: F0a F1a F0b  F1b B0b F2a B1b F3a B0a F2b B1a F3b B2b  B3b B2a B3a
INTERLEAVED_LESS_MEMORY = PipelineSchedule(by_rounds(_interleaved_rounds, 1), _short_interleaved, _refuse_few)

# seqvpp: as seqpipe, with rounds of fewer micro-batches: a round has as many pieces of sequences as stages.
# Source: `SeqvppScheduler::ComputeCycleList`.
#     2 chunks, 2 micro-batches of 2 pieces:
#     F0ax F0ay F0bx F0by F1ax  F1ay B0by F1bx B0bx F1by B0ay  B0ax B1by B1bx B1ay B1ax


def _refuse_pieces(shape: Shape) -> str:
    if shape.num_stages < shape.num_sequences:
        return f"a sequence is split into {shape.num_sequences} pieces, more than the {shape.num_stages} stages"
    if shape.num_micro_batches * shape.num_sequences < shape.num_stages:
        pieces = f"{shape.num_micro_batches} micro-batches x {shape.num_sequences} pieces of sequences"
        return f"{pieces} are fewer than {shape.num_stages} stages"
    return ""


def _round_size(shape: Shape) -> int:
    """Return the number of micro-batches of a full round."""
    return max(1, shape.num_stages // shape.num_sequences)


def _seqvpp_rounds(shape: Shape) -> list[int]:
    return spread_remainder(shape.num_micro_batches, _round_size(shape))


def _short_seqvpp(shape: Shape, minimum: int) -> int:
    return spread_rounds(shape, _round_size(shape), minimum)


SEQVPP = PipelineSchedule(by_rounds(_seqvpp_rounds, 2), _short_seqvpp, _refuse_pieces)

# seqsmartvpp: as seqvpp with a shorter warm-up: a stage holds one piece less than the one before it, not two.
# Source: `SeqsmartvppScheduler::ComputeBias`. That the stages must be an even number is said in mindspore/context.py of
# 2.9.0.
#     2 chunks, 4 micro-batches: F0a F1a F0b  F1b B0b F2a B1b F3a B0a F2b B1a F3b B2b  B3b B2a B3a


def _refuse_odd(shape: Shape) -> str:
    if shape.num_stages % 2:
        return f"it takes an even number of stages, not {shape.num_stages}"
    return _refuse_pieces(shape)


SEQSMARTVPP = PipelineSchedule(by_rounds(_seqvpp_rounds, 1), _short_seqvpp, _refuse_odd)

# gpipe: all forwards, then all backwards, each chunk after chunk.
# Source: `GpipeInterleavedScheduler`, gpipe_interleave_scheduler.cc, `SortFuncBetweenMicro` and `Reorder`
# (mindspore-ai/mindspore, 15b78ff).
#     2 stages, 2 chunks a and b, 2 micro-batches:  F0a F1a F0b F1b  B0b B1b B0a B1a


def order_gpipe(stage: int, shape: Shape) -> tuple[Pass, ...]:
    """Return the passes of a stage in one step; the same for all stages."""
    chunks, micro_batches = range(shape.num_chunks), range(shape.num_micro_batches)
    forward = [Pass(chunk, micro_batch, PassWork.FORWARD) for chunk in chunks for micro_batch in micro_batches]
    back = [Pass(chunk, micro_batch, PassWork.BACKWARD) for chunk in reversed(chunks) for micro_batch in micro_batches]
    return (*forward, *back)


# MindSpore accepts any shape. All micro-batches are in flight until backward starts, so no shorter step is equivalent.
GPIPE = PipelineSchedule(order_gpipe, short_step=lambda shape, minimum: shape.num_micro_batches)

LESS_MEMORY = "1f1b_less_memory"  # no name of MindSpore: 1f1b where ENABLE_LESS_MEM_VPP=1
BY_ROUNDS: Mapping[str, PipelineSchedule] = {
    "1f1b": INTERLEAVED_1F1B,
    LESS_MEMORY: INTERLEAVED_LESS_MEMORY,
    "gpipe": GPIPE,
    "seqpipe": SEQPIPE,
    "seqvpp": SEQVPP,
    "seqsmartvpp": SEQSMARTVPP,
}
# Schedules that define the order of sequence pieces.
WITH_PIECES = ("seqpipe", "seqvpp", "seqsmartvpp")
