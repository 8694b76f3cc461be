"""Activation memory of a simulated step over time, and its peak.

An interval is live from its begin to just before its end: memory that is freed at a time is available to allocations at
the same time.
"""

from typing import NamedTuple

import numpy as np

from mindswap.errors import SimulationError
from mindswap.simulator.program import NO_OP, MemoryKind, OpKind, Program
from mindswap.simulator.timeline import MemoryProfile, Timeline


def interval_times(timeline: Timeline) -> tuple[np.ndarray, np.ndarray]:
    """Return begin and end of each interval of the program: int64 ns, shape (num_intervals,) each.

    MindSpore's pool allocates and frees memory when the host launches operators, in execution order; other streams only
    delay the reuse of freed memory. So memory of other streams is allocated at its launch position among the operators
    of the compute stream, and freed where the compute stream waits for the other stream:

    - outputs of communication, and prefetched tensors, are allocated after the previous compute operator, however late
      the communication or copy starts;
    - inputs of communication are freed when the first operator that waits for it starts; sent tensors when the next
      operator starts that waits for a received one, because both use the stream of one communication group. A stage
      that goes on with a backward receives its gradient before it sends what forward made, so it is the one after that.

    Raises:
        SimulationError: if an interval ends before it begins, because no dependency orders both.
    """
    intervals, copies = timeline.program.intervals, timeline.program.copies
    op_begin_ns, op_end_ns, launched_ns = _launch_times(timeline)
    launch_op = np.where(copies.prefetch_op == NO_OP, copies.producer_op, copies.prefetch_op)
    # `~c` is -1 for copy 0, -2 for copy 1: positions from the end of an array with the copies in reverse.
    # A prefetch that depends on communication may start before the launch of the next compute operator.
    taken_ns = np.minimum(launched_ns[launch_op], timeline.in_start_ns)
    begin_ns = np.concatenate((op_begin_ns, taken_ns[::-1]))[intervals.begin]
    release_ns = np.maximum(timeline.release_ns, launched_ns[copies.release_op])
    end_ns = np.concatenate((op_end_ns, release_ns[::-1]))[intervals.end]
    wrong = end_ns < begin_ns
    if wrong.any():
        first = int(np.argmax(wrong))
        label = timeline.program.labels[intervals.label[first]]
        raise SimulationError(
            f"interval {first} ({label}) ends at {end_ns[first]} ns, before it begins at {begin_ns[first]} ns"
        )
    return begin_ns, end_ns


class _LaunchTimes(NamedTuple):
    """Times of each operator: int64 ns, shape (num_ops,)."""

    allocation_ns: np.ndarray  # allocation of its outputs
    release_ns: np.ndarray  # release of inputs of which it is the last reader
    previous_end_ns: np.ndarray  # end of the last compute operator up to it, when the next one may be launched


def _launch_times(timeline: Timeline) -> _LaunchTimes:
    """Compute allocation and release times of all operators."""
    program = timeline.program
    ops, starts = program.ops, program.stage_starts
    position = np.arange(len(ops))
    is_compute = ops.kind < OpKind.COLLECTIVE
    before = np.maximum.accumulate(np.where(is_compute, position, NO_OP))  # the last compute operator up to each
    before = np.where(before < np.repeat(starts[:-1], np.diff(starts)), NO_OP, before)
    before_ns = np.where(before == NO_OP, 0, timeline.op_end_ns[before])
    begins = np.append(timeline.op_start_ns, 0)[find_waiters(program)]
    ends = np.where(is_compute, timeline.op_end_ns, np.maximum(begins, before_ns))
    return _LaunchTimes(np.where(is_compute, timeline.op_start_ns, before_ns), ends, before_ns)


def find_waiters(program: Program) -> np.ndarray:
    """Return the compute operator at whose start inputs of communication are freed: int64, shape (num_ops,).

    It is the first one that waits for the communication, for a SEND the one that waits for a later RECEIVE; the number
    of operators if none waits.
    """
    ops, starts = program.ops, program.stage_starts
    position = np.arange(len(ops))
    waiter = np.full(len(ops), len(ops))
    waits = (ops.kind < OpKind.COLLECTIVE) & (ops.wait_op != NO_OP)
    np.minimum.at(waiter, ops.wait_op[waits], position[waits])
    sends, receives = np.flatnonzero(ops.kind == OpKind.SEND), np.flatnonzero(ops.kind == OpKind.RECEIVE)
    if len(sends):
        # Between a forward and a backward the gradient is received before the SEND: the RECEIVE after that one counts.
        reader = np.append(ops.kind, OpKind.FORWARD)[waiter[np.minimum(sends + 1, len(ops) - 1)]]
        is_before_backward = np.isin(sends + 1, receives) & np.isin(reader, (OpKind.BACKWARD, OpKind.RECOMPUTE))
        is_before_backward &= ops.kind[np.maximum(sends - 1, 0)] == OpKind.FORWARD
        following = np.append(receives, [0, 0])[np.searchsorted(receives, sends) + is_before_backward]
        end_of_stage = starts[np.searchsorted(starts, sends, side="right")]
        is_on_stage = (following > sends) & (following < end_of_stage)
        waiter[sends] = np.where(is_on_stage, waiter[following], end_of_stage - 1)
    return waiter


def peak_memory(timeline: Timeline) -> np.ndarray:
    """Return the peak activation memory of each stage: int64 bytes, shape (num_stages,).

    Raises:
        SimulationError: see `interval_times`.
    """
    begin_ns, end_ns = interval_times(timeline)
    intervals = timeline.program.intervals
    peak_bytes = np.zeros(timeline.program.num_stages, np.int64)
    for stage in range(len(peak_bytes)):
        of_stage = np.flatnonzero(intervals.stage == stage)
        size_bytes = intervals.size_bytes[of_stage]
        changes_bytes = np.concatenate((-size_bytes, size_bytes))
        in_order = np.argsort(
            np.concatenate((end_ns[of_stage], begin_ns[of_stage])), kind="stable"
        )  # frees before allocations
        peak_bytes[stage] = np.cumsum(changes_bytes[in_order], dtype=np.int64).max(initial=0)
    return peak_bytes


def profile_memory(timeline: Timeline, stage: int) -> MemoryProfile:
    """Compute the activation memory of a stage over time by kind, its peak, and the intervals live at the peak.

    Raises:
        SimulationError: see `interval_times`.
    """
    intervals = timeline.program.intervals
    begin_ns, end_ns = interval_times(timeline)
    of_stage = np.flatnonzero((intervals.stage == stage) & (begin_ns < end_ns))
    begin_ns, end_ns = begin_ns[of_stage], end_ns[of_stage]
    size_bytes, kind = intervals.size_bytes[of_stage], intervals.kind[of_stage]

    time_ns = np.unique(np.concatenate(([0], begin_ns, end_ns)))
    change_bytes = np.zeros((len(MemoryKind), len(time_ns)), np.int64)
    np.add.at(change_bytes, (kind, np.searchsorted(time_ns, begin_ns)), size_bytes)
    np.subtract.at(change_bytes, (kind, np.searchsorted(time_ns, end_ns)), size_bytes)
    by_kind_bytes = np.cumsum(change_bytes, axis=1)

    total_bytes = by_kind_bytes.sum(axis=0)
    peak = int(np.argmax(total_bytes))
    peak_ns = int(time_ns[peak])
    alive = np.flatnonzero((begin_ns <= peak_ns) & (peak_ns < end_ns) & (size_bytes > 0))
    return MemoryProfile(
        stage=stage,
        time_ns=time_ns,
        by_kind_bytes=by_kind_bytes,
        peak_bytes=int(total_bytes[peak]),
        peak_ns=peak_ns,
        holders=of_stage[alive[np.argsort(-size_bytes[alive], kind="stable")]],
    )
