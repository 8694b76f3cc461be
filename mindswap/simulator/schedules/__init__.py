"""Schedules: what a pipeline stage does in which order. One file each; everything else only reads their lists."""

from collections.abc import Mapping
from functools import cache
from typing import cast

from mindswap.simulator.schedules import (
    gpipe,
    interleaved_1f1b,
    interleaved_less_memory,
    seqpipe,
    seqsmartvpp,
    seqvpp,
    zero_bubble_v,
)
from mindswap.simulator.schedules.passes import Pass, PassWork, PipelineSchedule, Shape, most_in_flight

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
SCHEDULES: Mapping[str, PipelineSchedule] = cast(
    Mapping[str, PipelineSchedule],
    {
        "1f1b": interleaved_1f1b,
        LESS_MEMORY: interleaved_less_memory,
        "gpipe": gpipe,
        "seqpipe": seqpipe,
        "seqvpp": seqvpp,
        "seqsmartvpp": seqsmartvpp,
        "zero_bubble_v": zero_bubble_v,
    },
)
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
