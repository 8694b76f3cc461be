"""seqsmartvpp: as seqvpp with a shorter warm-up: a stage holds one piece less than the one before it, not two.

Source: `SeqsmartvppScheduler::ComputeBias`, mindspore/ccsrc/frontend/parallel/pipeline_transformer/
seqpipe_scheduler.cc (mindspore-ai/mindspore_test, 7115566). That the stages must be an even number is said in
mindspore/context.py of 2.9.0.

    stage 0 of 2, 2 chunks a and b, 4 micro-batches:
    F0a F1a F0b  F1b B0b F2a B1b F3a B0a F2b B1a F3b B2b  B3b B2a B3a
"""

from mindswap.simulator.schedules import seqpipe, seqvpp
from mindswap.simulator.schedules.passes import Pass, Shape
from mindswap.simulator.schedules.seqvpp import rounds_of, short_step

__all__ = ["order", "refusal", "short_step"]


def order(stage: int, shape: Shape) -> tuple[Pass, ...]:
    return seqpipe.order_rounds(stage, shape, rounds_of(shape), 1)


def refusal(shape: Shape) -> str:
    if shape.num_stages % 2:
        return f"it takes an even number of stages, not {shape.num_stages}"
    return seqvpp.refusal(shape)
