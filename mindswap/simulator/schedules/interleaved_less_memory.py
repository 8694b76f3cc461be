"""1f1b with several chunks where ENABLE_LESS_MEM_VPP=1 and jit_level is O0 or O1: a shorter warm-up.

Each stage holds one chunk less than the one before it, not two. The bubble is the same where transfers take no time,
and grows by more where they do: a stage waits for its neighbour's send in every turn.

Source: `InterleavedScheduler::MemoryOptimizedReorder` and `EnableKbk`, mindspore/ccsrc/frontend/parallel/
pipeline_transformer/pipeline_scheduler.cc (mindspore-ai/mindspore_test, 17110c7).

    stage 0 of 2, 2 chunks a and b, 4 micro-batches:
    F0a F1a F0b  F1b B0b F2a B1b F3a B0a F2b B1a F3b B2b  B3b B2a B3a
"""

from mindswap.simulator.schedules.interleaved_1f1b import refusal, rounds_of, short_step
from mindswap.simulator.schedules.passes import Pass, Shape
from mindswap.simulator.schedules.seqpipe import order_rounds

__all__ = ["order", "refusal", "short_step"]


def order(stage: int, shape: Shape) -> tuple[Pass, ...]:
    return order_rounds(stage, shape, rounds_of(shape), 1)
