"""1f1b with several chunks where ENABLE_LESS_MEM_VPP=1 and jit_level is O0 or O1: a shorter warm-up.

Each stage holds one chunk less than the one before it, not two. The bubble is the same where transfers take no time,
and grows by more where they do: a stage waits for its neighbour's send in every turn.

Source: `InterleavedScheduler::MemoryOptimizedReorder` and `EnableKbk`, mindspore/ccsrc/frontend/parallel/
pipeline_transformer/pipeline_scheduler.cc (mindspore-ai/mindspore_test, 17110c7).

    stage 0 of 2, 2 chunks a and b, 4 micro-batches:
    F0a F1a F0b  F1b B0b F2a B1b F3a B0a F2b B1a F3b B2b  B3b B2a B3a
"""

from mindswap.simulate.schedules.interleaved_1f1b import refusal, rounds_in_order, short_step
from mindswap.simulate.schedules.passes import Pass, Shape, warm_up_then_alternate

__all__ = ["order", "refusal", "short_step"]


def order(stage: int, shape: Shape) -> tuple[Pass, ...]:
    forward, backward = rounds_in_order(shape)
    rest = shape.num_micro_batches % shape.num_stages
    num_warm_up = (shape.num_stages + rest) * (shape.num_chunks - 1) + shape.num_stages - stage - 1
    return warm_up_then_alternate(forward, backward, num_warm_up)
