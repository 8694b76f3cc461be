"""How much of the exchange of gradients between data parallel ranks backward does not hide.

With sums that are cut (`StepSettings.is_accumulator_sharded`) each micro-batch has its exchange: a ReduceScatter before
the gradient is added (`_VirtualAssignAdd` in ops/_grad_experimental/grad_comm_ops.py with the group that
pipeline_split_utils.cc, InsertVirtualAssignAdd, gives it; with level3 the backward of the AllGather in the cell). Else
the last micro-batch alone exchanges the sums.
"""

from collections.abc import Sequence

import numpy as np

from mindswap.simulator.program import OpKind
from mindswap.simulator.timeline import Timeline


def backward_by_section_ns(timeline: Timeline, stage: int, num_sections: int) -> list[int]:
    """Compute time of backward of the last micro-batch on a stage, with what runs again, by section of the model."""
    kind, layer, micro_batch, duration_ns = _columns(timeline, stage)
    num_sequences = timeline.program.num_sequences
    last = np.max(micro_batch) // num_sequences * num_sequences  # pieces go back in reverse
    is_backward = (kind == OpKind.BACKWARD) | (kind == OpKind.RECOMPUTE)
    chosen = is_backward & (micro_batch == last) & (layer >= 0)
    durations = np.bincount(layer[chosen] + 1, duration_ns[chosen], num_sections)
    return [int(duration) for duration in durations]


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
        exchange_ns, backward_ns: as of `exposed_exchange_ns`, for each micro-batch.
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
