"""Result of a simulation: start and end times, stalls with causes, memory over time. Pure data, all simulated."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from mindswap.simulator.program import OpKind, Program


class StallCause(IntEnum):
    """Cause of an idle gap between an operator and the previous one on its stream.

    It is the dependency that ended last; if several ended at the same time, an operator has priority over a copy, and
    an offload over a prefetch. A compute operator that waits for a collective which itself waited for a copy has cause
    `COMMUNICATION`.
    """

    NONE = 0
    COPY_OUT = 1  # the device memory of an offloaded tensor could not be released before its offload ended
    COPY_IN = 2  # a prefetch had not ended
    COMMUNICATION = 3  # a collective or a send of the same stage had not ended
    COMPUTE = 4  # an operator of the communication stream waited for the compute operator that produces its input
    PIPELINE = 5  # pipeline bubble: another stage had not sent, or a receive had not ended


@dataclass(frozen=True, eq=False)
class Timeline:
    """Times of a simulated step: int64, ns from its start."""

    program: Program
    op_start_ns: np.ndarray  # shape (num_ops,)
    op_end_ns: np.ndarray  # shape (num_ops,)
    # shape (num_ops,), idle time of the operator's stream before it, since the previous operator of the stream or 0.
    # A bubble may count on two streams: a receive that waits, and the compute operator that waits for the receive
    stall_ns: np.ndarray
    stall_cause: np.ndarray  # int8, shape (num_ops,), `StallCause` of that idle time
    stall_copy: np.ndarray  # int64, shape (num_ops,), copy that the operator waited for; -1 for none
    out_start_ns: np.ndarray  # offloads; shape (num_copies,), also of the next three
    out_end_ns: np.ndarray
    in_start_ns: np.ndarray
    in_end_ns: np.ndarray
    release_ns: np.ndarray  # shape (num_copies,), when the device memory of the offloaded tensor was released

    @property
    def step_time_ns(self) -> int:
        """End of the last operator of any stage."""
        return int(self.op_end_ns.max(initial=0))

    @property
    def exposed_copy_ns(self) -> int:
        """Idle time of compute streams caused by copies, summed over all stages, in ns."""
        is_copy = (self.stall_cause == StallCause.COPY_OUT) | (self.stall_cause == StallCause.COPY_IN)
        return int(self.stall_ns[is_copy & (self.program.ops.kind < OpKind.COLLECTIVE)].sum())


@dataclass(frozen=True)
class StepTerm:
    """Step overhead after the simulated operators, such as the optimizer or exposed gradient reduction."""

    name: str
    duration_ns: int


@dataclass(frozen=True, eq=False)
class MemoryProfile:
    """Activation memory of one stage over time."""

    stage: int
    time_ns: np.ndarray  # int64, shape (num_moments,), ascending; memory is constant between neighbours
    by_kind_bytes: np.ndarray  # int64, shape (num_kinds, num_moments), in the order of `MemoryKind`
    peak_bytes: int  # maximum of the sum over kinds
    peak_ns: int  # first time at which it is reached
    holders: np.ndarray  # intervals live at that time, largest first: positions in `Program.intervals`


# Idle time of the compute stream of a stage.

Waits = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def find_waits(timeline: Timeline, stage: int) -> Waits:
    """Split the idle time of a stage's compute stream by cause.

    If a compute operator waits for a collective that itself waits for another stage, the idle time is a pipeline bubble
    until the collective starts, and communication afterwards:

        receive        |...........| r |
        collective                     | c c |
        compute        | op |                | op |
                            | bubble   | coll |

    Returns:
        Operator after each idle gap, start and end in ns, and `StallCause`; shape (num_waits,) each.
    """
    program = timeline.program
    ops_of_stage = np.arange(program.stage_starts[stage], program.stage_starts[stage + 1])
    kind = program.ops.kind[ops_of_stage]
    on_network = ops_of_stage[(kind == OpKind.COLLECTIVE) | (kind == OpKind.SEND)]
    stalled = ops_of_stage[(kind < OpKind.COLLECTIVE) & (timeline.stall_ns[ops_of_stage] > 0)]
    end_ns = timeline.op_start_ns[stalled]
    begin_ns = end_ns - timeline.stall_ns[stalled]
    cause = timeline.stall_cause[stalled].astype(np.int64)
    awaited = program.ops.wait_op[stalled]
    is_late = (cause == StallCause.COMMUNICATION) & (timeline.op_start_ns[awaited] > begin_ns)
    rows = [
        (op, *piece)
        for op, begin, end, collective in zip(
            stalled[is_late].tolist(), begin_ns[is_late].tolist(), end_ns[is_late].tolist(),
            awaited[is_late].tolist(), strict=True,
        )
        for piece in _wait_parts(timeline, on_network, collective, begin, end)
    ]  # fmt: skip
    is_single = ~is_late
    late = np.array(rows, np.int64).reshape(-1, 4)
    columns = (stalled[is_single], begin_ns[is_single], end_ns[is_single], cause[is_single])
    ops, begins, ends, causes = (np.concatenate(pair) for pair in zip(columns, late.T, strict=True))
    return ops, begins, ends, causes


class _WaitPart(NamedTuple):
    """A part of a wait."""

    begin_ns: int
    end_ns: int
    cause: int  # `StallCause`


def _wait_parts(timeline: Timeline, on_network: np.ndarray, op: int, begin_ns: int, end_ns: int) -> list[_WaitPart]:
    """Return the parts of a wait for a collective, from the last one back to the operator that delayed it."""
    parts = []
    while True:
        start_ns = int(timeline.op_start_ns[op])
        parts.append(_WaitPart(max(begin_ns, start_ns), end_ns, int(StallCause.COMMUNICATION)))
        end_ns = start_ns
        held_ns = min(int(timeline.stall_ns[op]), end_ns - begin_ns)
        if held_ns > 0:
            is_bubble = timeline.stall_cause[op] == StallCause.PIPELINE
            cause = StallCause.PIPELINE if is_bubble else StallCause.COMMUNICATION
            parts.append(_WaitPart(end_ns - held_ns, end_ns, int(cause)))
            end_ns -= held_ns
        before = int(np.searchsorted(on_network, op)) - 1
        if end_ns <= begin_ns or before < 0:
            return parts
        op = int(on_network[before])


# Exposed gradient reduction time: ReduceScatter or AllReduce of data parallel ranks, not overlapped with backward.
#
# With sharded accumulators (`StepSettings.is_accumulator_sharded`) every micro-batch reduces its gradients: a
# ReduceScatter before the accumulation (`_VirtualAssignAdd` in ops/_grad_experimental/grad_comm_ops.py with the group
# of pipeline_split_utils.cc, InsertVirtualAssignAdd; with level3 the backward of the AllGather in the cell). Otherwise
# only the last micro-batch reduces the accumulated gradients.


def backward_by_segment_ns(timeline: Timeline, stage: int, num_segments: int) -> list[int]:
    """Return the compute time of backward of the last micro-batch on a stage, by segment of the model.

    Returns:
        ns for each segment, with recompute; 0 outside the layers.
    """
    kind, layer, micro_batch, duration_ns = _stage_ops(timeline, stage)
    num_sequences = timeline.program.num_sequences
    last = np.max(micro_batch) // num_sequences * num_sequences  # backward runs the sequence pieces in reverse
    is_backward = (kind == OpKind.BACKWARD) | (kind == OpKind.RECOMPUTE)
    chosen = is_backward & (micro_batch == last) & (layer >= 0)
    return np.bincount(layer[chosen] + 1, duration_ns[chosen], num_segments).astype(np.int64).tolist()


def last_forward_ns(timeline: Timeline, stage: int) -> int:
    """Return the compute time of forward of the last micro-step on a stage, in ns."""
    kind, _, micro_batch, duration_ns = _stage_ops(timeline, stage)
    chosen = (kind == OpKind.FORWARD) & (micro_batch == np.max(micro_batch))
    return int(duration_ns[chosen].sum())


class _StageOps(NamedTuple):
    """Columns of `Ops` of one stage."""

    kind: np.ndarray
    layer: np.ndarray
    micro_batch: np.ndarray
    duration_ns: np.ndarray


def _stage_ops(timeline: Timeline, stage: int) -> _StageOps:
    ops, starts = timeline.program.ops, timeline.program.stage_starts
    span = slice(int(starts[stage]), int(starts[stage + 1]))
    return _StageOps(ops.kind[span], ops.layer[span], ops.micro_batch[span], ops.duration_ns[span])


def repeated_reduction_ns(
    reduction_ns: Sequence[int], backward_ns: Sequence[int], forward_ns: int, num_micro_batches: int
) -> int:
    """Return the exposed time of gradient reduction if every micro-batch reduces its own gradients.

    Reductions that backward does not overlap continue during the next forward; the rest delays the next reductions.

    Args:
        reduction_ns: see `exposed_reduction_ns`; the same in each micro-batch.
        backward_ns: see `exposed_reduction_ns`; the same in each micro-batch.
        forward_ns: time from the end of one backward to the start of the next.
        num_micro_batches: number of reductions in a step.

    Returns:
        Time in ns after the last backward.
    """
    exposed_ns = 0
    for _ in range(num_micro_batches):
        exposed_ns = exposed_reduction_ns(reduction_ns, backward_ns, max(exposed_ns - forward_ns, 0))
    return exposed_ns


def exposed_reduction_ns(reduction_ns: Sequence[int], backward_ns: Sequence[int], busy_ns: int = 0) -> int:
    """Return the exposed time of gradient reduction: from the end of backward until all gradients are reduced.

    The reduction of a segment's gradients starts when its backward has ended; reductions do not overlap each other.

        backward    | layer 2 | layer 1 | layer 0 |
        reduction             | 2 2 |   | 1 1 1 1 1 | 0 0 |
                                                  |exposed|

    Args:
        reduction_ns: time of reducing the gradients of each segment, in forward order.
        backward_ns: time of backward of each segment.
        busy_ns: time for which the network is still busy when backward starts.

    Returns:
        Time in ns; 0 if backward overlaps everything.
    """
    end = busy_ns - sum(backward_ns)
    for segment in range(len(reduction_ns) - 1, -1, -1):
        if reduction_ns[segment]:
            end = max(end, -sum(backward_ns[:segment])) + reduction_ns[segment]
    return max(end, 0)
