"""Time of forward, which hides the copies of offloaded tensors."""

import numpy as np

from mindswap.simulator.memory import profile_memory
from mindswap.simulator.program import OpKind
from mindswap.simulator.timeline import StallCause, Timeline


def forward_time_ns(timeline: Timeline) -> int:
    """Return the forward time of all micro-batches on all stages, with exposed communication, which copies overlap."""
    return int(_busy_ns(timeline)[timeline.program.ops.kind == OpKind.FORWARD].sum())


def hiding_time_ns(timeline: Timeline) -> int:
    """Return the forward time per micro-batch in which offloads can hide before the memory peak.

    A large head moves the peak to the head: then the forward time after the peak does not count.
    """
    ops, peak_ns = timeline.program.ops, profile_memory(timeline, 0).peak_ns
    is_compute, is_forward = ops.kind < OpKind.COLLECTIVE, ops.kind == OpKind.FORWARD
    forward_ns = forward_time_ns(timeline) // (1 + int(ops.micro_batch.max()))
    peak_op = int(np.flatnonzero(is_compute & (timeline.op_start_ns <= peak_ns))[-1])
    if not is_forward[peak_op]:
        return forward_ns
    is_after_peak = is_forward & (ops.micro_batch == ops.micro_batch[peak_op]) & (np.arange(len(ops)) >= peak_op)
    return forward_ns - int(_busy_ns(timeline)[is_after_peak].sum())


def _busy_ns(timeline: Timeline) -> np.ndarray:
    """Return the time of each operator with exposed communication: int64, shape (num_ops,)."""
    waits = timeline.stall_cause == StallCause.COMMUNICATION
    return timeline.program.ops.duration_ns + np.where(waits, timeline.stall_ns, 0)
