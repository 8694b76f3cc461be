"""Schedules: what a pipeline stage does in which order. Everything else only reads their lists."""

from collections.abc import Mapping
from functools import cache

from mindswap.simulator.schedules.rounds import (
    GPIPE,
    INTERLEAVED_1F1B,
    INTERLEAVED_LESS_MEMORY,
    SEQPIPE,
    SEQSMARTVPP,
    SEQVPP,
    Pass,
    PassWork,
    PipelineSchedule,
    Shape,
    most_in_flight,
)
from mindswap.simulator.schedules.zero_bubble_v import ZERO_BUBBLE_V

__all__ = [
    "LESS_MEMORY",
    "SCHEDULES",
    "WITH_PIECES",
    "Pass",
    "PipelineSchedule",
    "Shape",
    "PassWork",
    "find_schedule",
    "most_in_flight",
    "order_passes",
]

LESS_MEMORY = "1f1b_less_memory"  # no name of MindSpore: 1f1b where ENABLE_LESS_MEM_VPP=1
SCHEDULES: Mapping[str, PipelineSchedule] = {
    "1f1b": INTERLEAVED_1F1B,
    LESS_MEMORY: INTERLEAVED_LESS_MEMORY,
    "gpipe": GPIPE,
    "seqpipe": SEQPIPE,
    "seqvpp": SEQVPP,
    "seqsmartvpp": SEQSMARTVPP,
    "zero_bubble_v": ZERO_BUBBLE_V,
}
# Those that say in which order pieces of sequences run.
WITH_PIECES = ("seqpipe", "seqvpp", "seqsmartvpp")


def find_schedule(name: str, shape: Shape) -> PipelineSchedule:
    """Schedule of MindSpore where `pipeline_scheduler` is `name`: seqpipe in place of all others for one chunk."""
    if shape.num_chunks == 1 and name != "zero_bubble_v":
        return SCHEDULES["seqpipe"]
    return SCHEDULES[name]


@cache
def order_passes(name: str, stage: int, shape: Shape) -> tuple[Pass, ...]:
    """Passes of a stage in one step."""
    return find_schedule(name, shape).order(stage, shape)
