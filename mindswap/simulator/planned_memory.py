"""Memory of a step whose addresses MindSpore plans beforehand (SOMAS, `memory_optimize_level: O1`).

The plan keeps tensors apart that are live at the same time, and is one allocation for the whole step. It may need more
than is live at any time. MindSpore gives addresses to the tensors by descending size, earlier ones first, in the gap
that fits best or in the lowest one, whichever plan is smaller (somas_solver_core.cc;
docs/internals/notes.md#addresses-planned-before-the-step).
"""

import numpy as np

from mindswap.simulator.memory import interval_times
from mindswap.simulator.timeline import Timeline

# So many tensors get addresses, the largest ones, as time grows with the square: 3402 tensors
# take 0.3 s. The small ones matter: with the 500 largest only, the plans of the broad set are up to 6 % too small.
MAX_TENSORS = 10_000


def planned_activation_bytes(timeline: Timeline, stage: int) -> int:
    """Return the size of the plan of a stage, in bytes.

    Raises:
        SimulationError: see `interval_times`.
    """
    begin_ns, end_ns = interval_times(timeline)
    intervals = timeline.program.intervals
    is_live = (intervals.stage == stage) & (begin_ns < end_ns) & (intervals.size_bytes > 0)
    tensors = np.flatnonzero(is_live)
    by_size = tensors[np.lexsort((begin_ns[tensors], -intervals.size_bytes[tensors]))][:MAX_TENSORS]
    lifetimes = np.array((begin_ns[by_size], end_ns[by_size]))
    return min(plan_addresses(lifetimes, intervals.size_bytes[by_size], is_best_fit) for is_best_fit in (True, False))


def plan_addresses(lifetimes: np.ndarray, size_bytes: np.ndarray, is_best_fit: bool) -> int:
    """Return the bytes up to the highest address in use.

    Args:
        lifetimes: begin and end of each tensor, shape (2, num_tensors), in the order in which they get addresses.
        size_bytes: their sizes, shape (num_tensors,).
        is_best_fit: whether a tensor gets the smallest sufficient gap; else the lowest one.
    """
    begin, end = lifetimes
    low, high = np.zeros((2, len(size_bytes)), np.int64)  # addresses of the tensors that have one
    for tensor, size in enumerate(size_bytes.tolist()):
        is_overlapping = (begin[:tensor] < end[tensor]) & (end[:tensor] > begin[tensor])
        overlapping = np.flatnonzero(is_overlapping)
        overlapping = overlapping[np.argsort(low[overlapping], kind="stable")]
        gap_low = np.concatenate(([0], np.maximum.accumulate(high[overlapping])))
        gap_bytes = np.concatenate((low[overlapping], [np.iinfo(np.int64).max])) - gap_low
        sufficient = np.flatnonzero(gap_bytes >= size)
        gap = sufficient[np.argmin(gap_bytes[sufficient])] if is_best_fit else sufficient[0]
        low[tensor], high[tensor] = gap_low[gap], gap_low[gap] + size
    return int(high.max(initial=0))
