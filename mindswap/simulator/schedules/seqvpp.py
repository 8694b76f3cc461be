"""seqvpp: as seqpipe, with rounds of fewer micro-batches: a round has as many pieces of sequences as stages.

Source: `SeqvppScheduler::ComputeCycleList`, mindspore/ccsrc/frontend/parallel/pipeline_transformer/
seqpipe_scheduler.cc (mindspore-ai/mindspore_test, 7115566).

    stage 0 of 2, 2 chunks a and b, 2 micro-batches of 2 pieces x, y:
    F0ax F0ay F0bx F0by F1ax  F1ay B0by F1bx B0bx F1by B0ay  B0ax B1by B1bx B1ay B1ax
"""

from mindswap.simulator.schedules import seqpipe
from mindswap.simulator.schedules.passes import Pass, Shape


def order(stage: int, shape: Shape) -> tuple[Pass, ...]:
    return seqpipe.order_rounds(stage, shape, rounds_of(shape), 2)


def refusal(shape: Shape) -> str:
    if shape.num_stages < shape.num_sequences:
        return f"a sequence is cut into {shape.num_sequences} pieces, more than the {shape.num_stages} stages"
    if shape.num_micro_batches * shape.num_sequences < shape.num_stages:
        pieces = f"{shape.num_micro_batches} micro-batches x {shape.num_sequences} pieces of sequences"
        return f"{pieces} are fewer than {shape.num_stages} stages"
    return ""


def round_size(shape: Shape) -> int:
    """Micro-batches of a round, as long as all are in one."""
    return max(1, shape.num_stages // shape.num_sequences)


def rounds_of(shape: Shape) -> list[int]:
    """Micro-batches of each round."""
    return seqpipe.spread_rest(shape.num_micro_batches, round_size(shape))


def short_step(shape: Shape, at_least: int) -> int:
    return seqpipe.spread_rounds(shape, round_size(shape), at_least)
