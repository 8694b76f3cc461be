"""What the compute stream of a stage waited for, and when. Pure; reads a timeline."""

import numpy as np

from mindswap.simulator.program import OpKind
from mindswap.simulator.timeline import StallCause, Timeline

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
