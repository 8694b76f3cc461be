"""Result of a simulation: when everything ran, who waited for what, memory over time. Pure data.

Every figure here is simulated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from mindswap.simulator.program import OpKind, Program


class StallCause(IntEnum):
    """Reason for which an operator started later than the one before it on its stream ended.

    Only the last thing waited for is named; if several ended last, an operator before a copy, and a copy out
    before a copy in. A compute operator that waits for a collective which itself waited for a copy has cause
    `COMMUNICATION`.
    """

    NONE = 0
    COPY_OUT = 1  # the release of a copied tensor had to wait for its copy
    COPY_IN = 2  # a tensor was not back yet
    COMMUNICATION = 3  # a collective or a send of the same stage had not ended
    COMPUTE = 4  # an operator of the communication stream waited for the compute operator that feeds it
    PIPELINE = 5  # another stage had not sent yet, or a receive had not ended: the bubble


@dataclass(frozen=True, eq=False)
class Timeline:
    """A simulated step; all times int64 ns from its start."""

    program: Program
    op_start_ns: np.ndarray  # shape (num_ops,)
    op_end_ns: np.ndarray  # shape (num_ops,)
    # shape (num_ops,), time that the stream of the operator stood still before it, from the end of the operator before
    # on that stream, or from 0. A bubble may be on both streams: a receive that waits, and the compute operator that
    # waits for the receive
    stall_ns: np.ndarray
    stall_cause: np.ndarray  # int8, shape (num_ops,), `StallCause` of the last thing waited for
    stall_copy: np.ndarray  # int64, shape (num_ops,), the copy waited for; -1 for none
    out_start_ns: np.ndarray  # this and the next three: shape (num_copies,)
    out_end_ns: np.ndarray
    in_start_ns: np.ndarray
    in_end_ns: np.ndarray
    release_ns: np.ndarray  # shape (num_copies,), when the memory of the copied tensor was free

    @property
    def step_time_ns(self) -> int:
        """End of the last operator of any stage."""
        return int(self.op_end_ns.max(initial=0))

    @property
    def exposed_copy_ns(self) -> int:
        """Time that compute streams stood still for copies, all stages together."""
        is_copy = (self.stall_cause == StallCause.COPY_OUT) | (self.stall_cause == StallCause.COPY_IN)
        return int(self.stall_ns[is_copy & (self.program.ops.kind < OpKind.COLLECTIVE)].sum())


@dataclass(frozen=True)
class StepTerm:
    """A part of the step time behind the simulated operators: the optimizer, gradients that nothing hides."""

    name: str
    duration_ns: int


@dataclass(frozen=True, eq=False)
class MemoryProfile:
    """Activation memory of one stage over time."""

    stage: int
    time_ns: np.ndarray  # int64, shape (num_moments,), rising; memory is constant from one to the next
    by_kind_bytes: np.ndarray  # int64, shape (num_kinds, num_moments), in the order of `MemoryKind`
    peak_bytes: int  # highest sum over the kinds
    peak_ns: int  # the first moment at which it is reached
    holders: np.ndarray  # intervals alive at that moment, largest first: positions in `Program.intervals`


# Waits of the compute stream of a stage.

Waits = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def find_waits(timeline: Timeline, stage: int) -> Waits:
    """The waits of a stage's compute stream, cut where their cause changes.

    A compute operator that waits for a collective which could not start, because nothing had come from another stage,
    is in the bubble until then, and waits for the collective from then on:

        receive        |...........| r |
        collective                     | c c |
        compute        | op |                | op |
                            | bubble   | coll |

    Returns:
        Operator behind each wait, begin and end in ns, and `StallCause`; shape (num_waits,) each.
    """
    program = timeline.program
    own = np.arange(program.stage_starts[stage], program.stage_starts[stage + 1])
    kind = program.ops.kind[own]
    on_network = own[(kind == OpKind.COLLECTIVE) | (kind == OpKind.SEND)]
    stalled = own[(kind < OpKind.COLLECTIVE) & (timeline.stall_ns[own] > 0)]
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
        for piece in _pieces(timeline, on_network, collective, begin, end)
    ]  # fmt: skip
    whole = ~is_late
    late = np.array(rows, np.int64).reshape(-1, 4)
    columns = (stalled[whole], begin_ns[whole], end_ns[whole], cause[whole])
    ops, begins, ends, causes = (np.concatenate(pair) for pair in zip(columns, late.T, strict=True))
    return ops, begins, ends, causes


def _pieces(
    timeline: Timeline, on_network: np.ndarray, op: int, begin_ns: int, end_ns: int
) -> list[tuple[int, int, int]]:
    """Begin, end and cause of the parts of a wait for a collective, by walking back over what held it up."""
    found = []
    while True:
        start_ns = int(timeline.op_start_ns[op])
        found.append((max(begin_ns, start_ns), end_ns, int(StallCause.COMMUNICATION)))
        end_ns = start_ns
        held_ns = min(int(timeline.stall_ns[op]), end_ns - begin_ns)
        if held_ns > 0:
            is_bubble = timeline.stall_cause[op] == StallCause.PIPELINE
            cause = StallCause.PIPELINE if is_bubble else StallCause.COMMUNICATION
            found.append((end_ns - held_ns, end_ns, int(cause)))
            end_ns -= held_ns
        before = int(np.searchsorted(on_network, op)) - 1
        if end_ns <= begin_ns or before < 0:
            return found
        op = int(on_network[before])


# Exposed gradient reduction time: ReduceScatter or AllReduce of data parallel ranks, not overlapped with backward.
#
# With sums that are cut (`StepSettings.is_accumulator_sharded`) each micro-batch has its exchange: a ReduceScatter
# before the gradient is added (`_VirtualAssignAdd` in ops/_grad_experimental/grad_comm_ops.py with the group that
# pipeline_split_utils.cc, InsertVirtualAssignAdd, gives it; with level3 the backward of the AllGather in the cell).
# Else the last micro-batch alone exchanges the sums.


def backward_by_section_ns(timeline: Timeline, stage: int, num_sections: int) -> list[int]:
    """Compute time of backward of the last micro-batch on a stage, with what runs again, by section of the model."""
    kind, layer, micro_batch, duration_ns = _columns(timeline, stage)
    num_sequences = timeline.program.num_sequences
    last = np.max(micro_batch) // num_sequences * num_sequences  # pieces go back in reverse
    is_backward = (kind == OpKind.BACKWARD) | (kind == OpKind.RECOMPUTE)
    chosen = is_backward & (micro_batch == last) & (layer >= 0)
    return np.bincount(layer[chosen] + 1, duration_ns[chosen], num_sections).astype(np.int64).tolist()


def last_forward_ns(timeline: Timeline, stage: int) -> int:
    """Compute time of forward of the last micro-batch on a stage."""
    kind, _, micro_batch, duration_ns = _columns(timeline, stage)
    chosen = (kind == OpKind.FORWARD) & (micro_batch == np.max(micro_batch))
    return int(duration_ns[chosen].sum())


def _columns(timeline: Timeline, stage: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Kind, layer, micro-batch and duration of the operators of a stage."""
    ops, starts = timeline.program.ops, timeline.program.stage_starts
    own = slice(int(starts[stage]), int(starts[stage + 1]))
    return ops.kind[own], ops.layer[own], ops.micro_batch[own], ops.duration_ns[own]


def repeated_exchange_ns(
    exchange_ns: Sequence[int], backward_ns: Sequence[int], forward_ns: int, num_micro_batches: int
) -> int:
    """Time behind backward until all gradients are exchanged, if each micro-batch exchanges its own.

    What the backward of one does not hide goes on beside the forward of the next; the rest keeps its gradients waiting.

    Args:
        exchange_ns: as of `exposed_exchange_ns`, for each micro-batch.
        backward_ns: as of `exposed_exchange_ns`, for each micro-batch.
        forward_ns: from the end of one backward to the begin of the next.
        num_micro_batches: of a step.
    """
    exposed_ns = 0
    for _ in range(num_micro_batches):
        exposed_ns = exposed_exchange_ns(exchange_ns, backward_ns, max(exposed_ns - forward_ns, 0))
    return exposed_ns


def exposed_exchange_ns(exchange_ns: Sequence[int], backward_ns: Sequence[int], busy_ns: int = 0) -> int:
    """Time behind backward until all gradients are exchanged.

    The gradients of a section go out when its backward has ended, one after the other on one network.

        backward    | layer 2 | layer 1 | layer 0 |
        exchange              | 2 2 |   | 1 1 1 1 1 | 0 0 |
                                                  |exposed|

    Args:
        exchange_ns: time of exchanging the gradients of each section, in order of forward.
        backward_ns: backward of the last micro-batch of each section.
        busy_ns: how long the network has something else to do when backward begins.
    """
    end = busy_ns - sum(backward_ns)
    for section in range(len(exchange_ns) - 1, -1, -1):
        if exchange_ns[section]:
            end = max(end, -sum(backward_ns[:section])) + exchange_ns[section]
    return max(end, 0)
