"""Elements of a schedule: passes of a stage, as plain data."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum


class PassWork(IntEnum):
    """Work of a pass."""

    FORWARD = 0
    BACKWARD = 1  # both gradients
    INPUT_GRADIENT = 2  # backward without the products that give gradients of weights
    WEIGHT_GRADIENT = 3  # these products


@dataclass(frozen=True)
class Pass:
    """One pass of one micro-batch through one virtual chunk of a stage."""

    chunk: int  # virtual chunk of the stage
    micro_batch: int  # position in the step
    work: PassWork
    sequence: int = 0  # piece of the sequence, 0 where sequences are not cut


@dataclass(frozen=True)
class Shape:
    """Shape of a step that a schedule arranges."""

    num_stages: int
    num_chunks: int = 1  # virtual chunks per stage
    num_micro_batches: int = 1
    num_sequences: int = 1  # pieces that a sequence is cut into


@dataclass(frozen=True)
class PipelineSchedule:
    """Rules of one value of `pipeline_scheduler`."""

    order: Callable[[int, Shape], tuple[Pass, ...]]  # passes of a stage in one step
    # a smaller number of micro-batches, from a least one on, that shows the same full pipeline
    short_step: Callable[[Shape, int], int]
    refusal: Callable[[Shape], str] = lambda shape: ""  # why MindSpore refuses this shape; "" if it takes it


def most_in_flight(passes: Iterable[Pass]) -> int:
    """Most forward passes whose backward (both its halves, where it is cut) is not done."""
    held = most = 0
    for entry in passes:
        if entry.work is PassWork.FORWARD:
            held += 1
            most = max(most, held)
        elif entry.work is not PassWork.INPUT_GRADIENT:
            held -= 1
    return most
