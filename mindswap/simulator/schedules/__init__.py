"""Schedules: what a pipeline stage does in which order. Everything else only reads their lists."""

from collections.abc import Mapping
from functools import cache

from mindswap.simulator.schedules.rounds import BY_ROUNDS, Pass, PipelineSchedule, Shape
from mindswap.simulator.schedules.zero_bubble_v import ZERO_BUBBLE_V

SCHEDULES: Mapping[str, PipelineSchedule] = {**BY_ROUNDS, "zero_bubble_v": ZERO_BUBBLE_V}


def find_schedule(name: str, shape: Shape) -> PipelineSchedule:
    """Schedule of MindSpore where `pipeline_scheduler` is `name`: seqpipe in place of all others for one chunk."""
    if shape.num_chunks == 1 and name != "zero_bubble_v":
        return SCHEDULES["seqpipe"]
    return SCHEDULES[name]


@cache
def order_passes(name: str, stage: int, shape: Shape) -> tuple[Pass, ...]:
    """Passes of a stage in one step."""
    return find_schedule(name, shape).order(stage, shape)
