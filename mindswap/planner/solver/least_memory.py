"""Assignments of least memory: the starts of a search where nothing fits."""

import numpy as np

from mindswap.planner.solver.search import Search
from mindswap.planner.stage_problem import KEEP, DecisionCosts

# Values of `backward_prefetch` that are tried to minimize memory.
CLOSE_DISTANCES = (1, 4, 8, 16, 32)


def _max_recompute(costs: DecisionCosts) -> np.ndarray:
    """Return the assignment in which each group takes the recompute path that frees most, if it has any."""
    path_indices = costs.freed_bytes[:, :, 1:]
    path_index = (
        path_indices.argmax(axis=2) + 1 if path_indices.shape[2] else np.zeros(path_indices.shape[:2], np.int64)
    )
    return np.where(path_indices.max(axis=2, initial=0) > 0, -path_index, KEEP)


def minimize_memory(search: Search) -> None:
    """Try the assignments of least memory: recompute all that can be, swap the rest with small distances."""
    costs = search.stage_problem.costs
    recomputed, can_swap = _max_recompute(costs), costs.freed_bytes[:, :, 0] > 0
    full_recompute = np.zeros_like(recomputed)
    full_recompute[:, 0], recomputed[:, 0] = recomputed[:, 0], KEEP
    search.score(full_recompute)
    for distance in CLOSE_DISTANCES:
        swapped = np.where(can_swap, distance, KEEP)
        for base in (recomputed, np.zeros_like(recomputed)):
            search.score(np.where(base == KEEP, swapped, base))
