"""Choice of `backward_prefetch` from a timeline: as small as the copies allow.

Memory is in use from the offload to its release and from the prefetch to its use, so larger distances cost memory.
Distances are equal in groups of layers, because each value of an operator is an entry of the policy.
"""

import numpy as np

from mindswap.planner.solver.search import Search
from mindswap.planner.stage_problem import KEEP, Score

# Pieces of neighbouring layers with one distance each.
MAX_PIECES = 4

# An assignment with its score; the smallest score is the best.
Scored = tuple[Score, np.ndarray]


def best_of(*scored: Scored) -> Scored:
    """Return the first of the best ones."""
    return min(scored, key=lambda each: each[0])


def retune(search: Search, start: Scored) -> Scored:
    """Set the minimum distances of the simulated timeline: one for each group, or one for each piece of layers."""
    assignment = start[1]
    is_swapped = assignment > KEEP
    if search.is_exhausted or not is_swapped.any():
        return start
    needed = search.stage_problem.min_distances(search.timeline(assignment))
    by_group = np.where(is_swapped, needed.max(axis=0), assignment)
    for distances in (by_group, *(piecewise(assignment, needed, number) for number in range(1, MAX_PIECES + 1))):
        for permille in (1000, 700, 500, 1400):
            if search.is_exhausted:
                return start
            scaled = np.where(is_swapped, np.maximum(1, distances * permille // 1000), assignment)
            start = best_of(start, (search.score(scaled), scaled))
    return start


def piecewise(assignment: np.ndarray, needed: np.ndarray, num_pieces: int) -> np.ndarray:
    """Return the assignment with distances that are constant in each piece of neighbouring layers with swaps.

    Args:
        assignment: assignment with swaps.
        needed: minimum distance of each swap, shape of the assignment.
        num_pieces: number of pieces, of equally many layers.
    """
    changed, is_swapped = assignment.copy(), assignment > KEEP
    for layers in np.array_split(np.flatnonzero(is_swapped.any(axis=1)), num_pieces):
        distance = needed[layers][is_swapped[layers]].max(initial=1)
        changed[layers] = np.where(is_swapped[layers], distance, assignment[layers])
    return changed


def set_distances(search: Search, assignment: np.ndarray, distance: int) -> Scored:
    """Choose prefetch distances: about a layer, or the minimum that the simulated timeline needs.

    Distances that are too short hide how much is needed, because the waits leave the copies their time. So they
    are doubled as long as the step gets faster.
    """
    is_swapped, previous = assignment > KEEP, None
    while True:
        first = np.where(is_swapped, distance, assignment)
        score, timeline = search.run(first)
        if not is_swapped.any():
            return score, first
        if previous and score.step_time_ns >= previous[0].step_time_ns:
            break
        previous, needed = (score, first), search.stage_problem.min_distances(timeline)
        distance *= 2
        if needed.max() < first.max() or search.is_exhausted:
            break
    pieces = piecewise(previous[1], needed, MAX_PIECES)
    return best_of(previous, (search.score(pieces), pieces))
