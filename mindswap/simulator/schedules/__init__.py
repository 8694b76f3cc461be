"""Pipeline schedules: the order of the forward and backward passes of each stage."""

from collections.abc import Mapping
from functools import cache

from mindswap.simulator.schedules.rounds import BY_ROUNDS, Pass, PipelineSchedule, Shape
from mindswap.simulator.schedules.zero_bubble_v import ZERO_BUBBLE_V

SCHEDULES: Mapping[str, PipelineSchedule] = {**BY_ROUNDS, "zero_bubble_v": ZERO_BUBBLE_V}


def find_schedule(name: str, shape: Shape) -> PipelineSchedule:
    """Return the schedule that MindSpore runs for a value of `pipeline_scheduler`.

    With one chunk that is seqpipe in place of all others but zero_bubble_v.
    """
    if shape.num_chunks == 1 and name != "zero_bubble_v":
        return SCHEDULES["seqpipe"]
    return SCHEDULES[name]


@cache
def order_passes(name: str, stage: int, shape: Shape) -> tuple[Pass, ...]:
    """Return the passes of a stage in one step, in execution order; cached."""
    return find_schedule(name, shape).order(stage, shape)
