"""gpipe: all forwards, then all backwards, each chunk after chunk.

Source: `GpipeInterleavedScheduler`, mindspore/ccsrc/frontend/parallel/pipeline_transformer/
gpipe_interleave_scheduler.cc, `SortFuncBetweenMicro` and `Reorder` (mindspore-ai/mindspore, 15b78ff).

    2 stages, 2 chunks a and b, 2 micro-batches:  F0a F1a F0b F1b  B0b B1b B0a B1a
"""

from mindswap.simulator.schedules.passes import Pass, PassWork, PipelineSchedule, Shape


def order(stage: int, shape: Shape) -> tuple[Pass, ...]:
    """Passes of a stage in one step; the same for all stages."""
    micro_batches, chunks = range(shape.num_micro_batches), range(shape.num_chunks)
    forward = [Pass(chunk, micro_batch, PassWork.FORWARD) for chunk in chunks for micro_batch in micro_batches]
    backward = [
        Pass(chunk, micro_batch, PassWork.BACKWARD) for chunk in reversed(chunks) for micro_batch in micro_batches
    ]
    return (*forward, *backward)


# MindSpore takes any shape; every further micro-batch is held until backward begins.
GPIPE = PipelineSchedule(order, short_step=lambda shape, at_least: shape.num_micro_batches)
