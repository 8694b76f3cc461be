"""Memory of other passes that are in flight during a pass, as the micro-batches of a pipeline stage are.

A stage is recorded with one micro-batch after the other. In the training other micro-batches have run forward and wait
for their backward meanwhile: each of them holds what a pass holds between the two.
"""

from collections.abc import Iterator, Sequence

from mindswap.pynative.step_index import StepIndex
from mindswap.pynative.step_memory import FORWARD, OPTIMIZER
from mindswap.pynative.step_schedule import MemoryLifetime, Purpose, Schedule

MOVED = (Purpose.OFFLOADED, Purpose.PREFETCHED)


def count_in_flight(stage: int, num_stages: int, num_micro_batches: int, is_1f1b: bool) -> tuple[int, int]:
    """Return the other passes in flight at most, during a pass without and with gradients of an earlier one.

    Args:
        stage: index of the pipeline stage.
        num_stages: number of stages.
        num_micro_batches: micro-batches of a step.
        is_1f1b: whether forward and backward take turns; else all forward passes run first.
    """
    num_ahead = num_stages - 1 - stage if is_1f1b else num_micro_batches
    return max(0, min(num_ahead, num_micro_batches - 1)), max(0, min(num_ahead, num_micro_batches - 2))


def find_held(index: StepIndex, schedule: Schedule, in_flight: Sequence[int]) -> Iterator[MemoryLifetime]:
    """Yield the memory of the other passes, with the sizes of all of them, during each tracked pass.

    Args:
        index: the tracked step.
        schedule: the step under a policy.
        in_flight: other passes during the first tracked pass, and during later ones; empty for none.
    """
    for micro_batch in range(index.num_micro_batches) if any(in_flight) else ():
        num_others = in_flight[min(micro_batch, len(in_flight) - 1)]
        positions = _positions(index, schedule, micro_batch)
        if not num_others or not positions:
            continue
        forward_end = max(at for at in positions if _is_forward(index, schedule, at))
        for lifetime in schedule.lifetimes:
            is_of_pass = index.blocks[lifetime.block].micro_batch == micro_batch and lifetime.purpose not in MOVED
            if is_of_pass and positions[0] <= lifetime.begin <= forward_end < lifetime.end:
                size_bytes = lifetime.size_bytes * num_others
                yield MemoryLifetime(size_bytes, positions[0], positions[-1], lifetime.block, Purpose.TRACKED)


def host_bytes_in_flight(schedule: Schedule, in_flight: Sequence[int]) -> int:
    """Return the host memory of the other passes: all that a pass moves."""
    moved_bytes = sum(copy.size_bytes for copy in schedule.copies if copy.micro_batch == 0)
    return moved_bytes * max(in_flight, default=0)


def _positions(index: StepIndex, schedule: Schedule, micro_batch: int) -> list[int]:
    """Return the positions of the tasks of a pass, ascending."""
    tasks = index.memory.tasks
    return [
        at
        for at, (task, _) in enumerate(schedule.tasks)
        if tasks[task].micro_batch == micro_batch and tasks[task].phase != OPTIMIZER
    ]


def _is_forward(index: StepIndex, schedule: Schedule, at: int) -> bool:
    task, is_recomputed = schedule.tasks[at]
    return index.memory.tasks[task].phase == FORWARD and not is_recomputed
