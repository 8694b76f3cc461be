"""Replay of the allocations of a simulated step in MindSpore's memory pool without virtual memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mindswap.simulator.memory import interval_times
from mindswap.simulator.memory_parts import MemoryPart
from mindswap.simulator.memory_pool import UNIT_BYTES, Buffer, MemoryPool
from mindswap.simulator.optimizer_allocations import Allocation, FinalGradient
from mindswap.simulator.program import MemoryKind, OpKind
from mindswap.simulator.timeline import Timeline

# MindSpore asks its Ascend pool for this much more than the size of a tensor: in dry runs, tensors of a multiple of 512
# bytes take 512 bytes more, smaller ones are rounded up.
PADDING_BYTES = 32


@dataclass(frozen=True)
class StageAllocations:
    """Memory of a stage that is not in the program of a step.

    Attributes:
        persistent_bytes: sizes of constants, weights, accumulated gradients and optimizer states, in order.
        gradients: gradient of each trained weight at the end of backward.
        optimizer: allocations of the end of the step, in order.
        block_bytes: smallest block that the pool takes from the device.
    """

    persistent_bytes: Sequence[int]
    gradients: Sequence[FinalGradient] = ()
    optimizer: Sequence[Allocation] = ()
    block_bytes: int = UNIT_BYTES


@dataclass(frozen=True, eq=False)
class _Intervals:
    """Intervals of a stage without that of the optimizer; arrays of shape (num_intervals,)."""

    begin_ns: np.ndarray
    end_ns: np.ndarray
    size_bytes: np.ndarray
    is_gradient: np.ndarray
    is_sent: np.ndarray  # a tensor that a Send reads or writes

    def events(self) -> Iterator[tuple[int, bool]]:
        """Yield intervals with whether they are allocated, in order; the last ones are those of the end of backward."""
        times_ns = np.concatenate((self.end_ns, self.begin_ns))
        count = len(self.end_ns)
        last_ns = self.end_ns.max(initial=0)
        for position in np.argsort(times_ns, kind="stable").tolist():  # at equal times, frees precede allocations
            if position >= count or self.end_ns[position] < last_ns:
                yield position % count, position >= count


def replay_memory_pool(timeline: Timeline, stage: int, allocations: StageAllocations) -> int:
    """Replay the allocations of a stage in MindSpore's pool without virtual memory.

    Args:
        timeline: a simulated step.
        stage: pipeline stage.
        allocations: memory that is not in the program: persistent memory and that of the optimizer.

    Returns:
        Peak with fragments in bytes, as `MemoryPool.actual_bytes`.

    Raises:
        SimulationError: see `interval_times`.
    """
    intervals = _intervals_of(timeline, stage)
    pool = MemoryPool(allocations.block_bytes)
    for size_bytes in allocations.persistent_bytes:
        pool.allocate(size_bytes + PADDING_BYTES, is_persistent=True)
    buffers: dict[int, Buffer] = {}
    for number, is_allocated in intervals.events():
        if is_allocated:
            buffers[number] = pool.allocate(int(intervals.size_bytes[number]) + PADDING_BYTES)
        else:
            pool.release(buffers.pop(number))
    _replay_optimizer(pool, intervals, buffers, allocations)
    return pool.actual_bytes


def _intervals_of(timeline: Timeline, stage: int) -> _Intervals:
    """Return the intervals of a stage."""
    intervals = timeline.program.intervals
    begin_ns, end_ns = interval_times(timeline)
    is_optimizer = intervals.part == MemoryPart.OPTIMIZER_TEMPORARIES
    # Of the last SEND the output begins where the passes end, and stays until the end of the step.
    is_output = _is_send(timeline, intervals.begin) & _is_send(timeline, intervals.end)
    is_last = end_ns >= end_ns[intervals.stage == stage].max(initial=0)
    is_live = ((begin_ns < end_ns) | (is_output & is_last)) & (intervals.size_bytes > 0)
    selected = np.flatnonzero((intervals.stage == stage) & is_live & ~is_optimizer)
    return _Intervals(
        begin_ns=begin_ns[selected],
        end_ns=end_ns[selected],
        size_bytes=intervals.size_bytes[selected],
        is_gradient=intervals.kind[selected] == MemoryKind.GRADIENT,
        is_sent=_is_send(timeline, intervals.end[selected]),
    )


def _is_send(timeline: Timeline, references: np.ndarray) -> np.ndarray:
    """Return whether each reference to an operator or a copy is to a Send."""
    kinds = timeline.program.ops.kind
    is_operator = references >= 0
    return is_operator & (kinds[np.where(is_operator, references, 0)] == OpKind.SEND)


def _replay_optimizer(
    pool: MemoryPool, intervals: _Intervals, buffers: dict[int, Buffer], allocations: StageAllocations
) -> None:
    """Replay the end of the step.

    Gradients are freed one by one when they are scaled. What is sent is never freed, because nothing waits for the last
    Send before the end of the step; all other buffers are freed at the start.
    """
    tensors: dict[tuple[int, str], Buffer] = {}
    for position, gradient in enumerate(allocations.gradients):
        same = (n for n in buffers if intervals.is_gradient[n] and intervals.size_bytes[n] == gradient.backward_bytes)
        if (number := next(same, None)) is not None:
            tensors[position, "gradient"] = buffers.pop(number)
    for number, buffer in buffers.items():
        if not intervals.is_sent[number]:
            pool.release(buffer)
    for tensor, size_bytes in allocations.optimizer:
        if size_bytes:
            tensors[tensor] = pool.allocate(size_bytes + PADDING_BYTES)
        elif tensor in tensors:
            pool.release(tensors.pop(tensor))
