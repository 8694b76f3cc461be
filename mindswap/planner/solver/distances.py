"""Choice of `backward_prefetch` from a timeline: as small as the copies allow.

Memory is in use from the offload to its release and from the prefetch to its use, so larger distances cost memory.
Distances are equal in groups of layers, because each value of an operator is an entry of the policy.
"""

from typing import NamedTuple

import numpy as np

from mindswap.planner.solver.search import Search
from mindswap.planner.stage_problem import KEEP, Score

# Pieces of neighbouring layers with one distance each.
MAX_PIECES = 4
# Minimum gain of doubled prefetch distances, in thousandths of the step time.
MIN_GAIN_PERMILLE = 1

# An assignment with its score.
Start = tuple[np.ndarray, Score]


class SimulatedDistances(NamedTuple):
    """Simulation of an assignment with one prefetch distance."""

    score: Score
    assignment: np.ndarray
    min_distances: np.ndarray  # from `StageProblem.min_distances`


def retune(search: Search, start: Start) -> Start:
    """Set the minimum distances of the simulated timeline: one for each group, or one for each piece of layers."""
    assignment = start[0]
    is_swapped = assignment > KEEP
    if not is_swapped.any():
        return start
    needed = search.stage_problem.min_distances(search.stage_problem.timeline(assignment))
    largest = np.where(is_swapped, np.broadcast_to(needed.max(axis=0), assignment.shape), assignment)
    for distances in (largest, *(piecewise(assignment, needed, number) for number in range(1, MAX_PIECES + 1))):
        for permille in (1000, 700, 500, 1400):
            if search.has_enough:
                return start
            scaled = np.where(is_swapped, np.maximum(1, distances * permille // 1000), assignment)
            start = min(start, (scaled, search.score(scaled)), key=score_of)
    return start


def score_of(start: Start) -> Score:
    """Return the score, as a sort key."""
    return start[1]


def piecewise(assignment: np.ndarray, needed: np.ndarray, num_pieces: int) -> np.ndarray:
    """Return the assignment with distances that are constant in each piece of neighbouring layers.

    Args:
        assignment: assignment with swaps.
        needed: minimum distance of each swap, shape of the assignment.
        num_pieces: number of pieces; their ends minimize the excess over the minimum distances.
    """
    layers = np.flatnonzero((assignment > KEEP).any(axis=1))
    by_layer = np.maximum(1, np.where(assignment > KEEP, needed, 0).max(axis=1))[layers]
    changed = assignment.copy()
    changed[layers] = np.where(
        assignment[layers] > KEEP, _level(by_layer.tolist(), num_pieces)[:, None], assignment[layers]
    )
    return changed


def by_layer_assignment(assignment: np.ndarray, needed: np.ndarray) -> np.ndarray:
    """Return the assignment with one distance for each group in all layers with equal layer assignments.

    Args:
        assignment: assignment with swaps.
        needed: minimum distance of each swap, shape of the assignment.
    """
    _, class_of = np.unique(np.minimum(assignment, 1), axis=0, return_inverse=True)
    changed = assignment.copy()
    for layer_class in range(int(class_of.max()) + 1):
        layers = np.flatnonzero(class_of.ravel() == layer_class)
        changed[layers] = np.where(
            assignment[layers] > KEEP, np.maximum(1, needed[layers].max(axis=0)), assignment[layers]
        )
    return changed


def _level(values: list[int], num_pieces: int) -> np.ndarray:
    """Return the piecewise constant upper envelope of values with minimum total excess.

    Source:
        Segmentation by dynamic programming: Bellman, "On the approximation of curves by line segments using dynamic
        programming" (Communications of the ACM, 1961).
    """
    num = len(values)
    # cost[i][j]: total excess of the maximum of values i to j - 1 over these values.
    cost = [[0] * (num + 1) for _ in range(num + 1)]
    for i in range(num):
        highest = total = 0
        for j in range(i, num):
            highest, total = max(highest, values[j]), total + values[j]
            cost[i][j + 1] = highest * (j + 1 - i) - total
    best: list[tuple[int, list[int]]] = [(cost[0][j], [j]) for j in range(num + 1)]
    for _ in range(num_pieces - 1):
        best = [min((best[i][0] + cost[i][j], [*best[i][1], j]) for i in range(j + 1)) for j in range(num + 1)]
    levels: list[int] = []
    for end in best[num][1]:
        levels += [max(values[len(levels) : end], default=0)] * (end - len(levels))
    return np.array(levels, np.int64)


def set_distances(search: Search, assignment: np.ndarray, distance: int) -> tuple[Score, np.ndarray]:
    """Choose prefetch distances: about a layer, or the minimum that the simulated timeline needs.

    Distances that are too short hide how much is needed, because the waits leave the copies their time. So they
    are doubled as long as the step gets faster.
    """

    def simulate(distance: int) -> SimulatedDistances:
        first = np.where(assignment > KEEP, distance, assignment)
        score, timeline = search.run(first)
        return SimulatedDistances(score, first, search.stage_problem.min_distances(timeline))

    score, first, min_distances = simulate(distance)
    if not (assignment > KEEP).any():
        return score, first
    while min_distances.max() >= first.max() and not search.is_exhausted:
        longer = simulate(2 * int(first.max()))
        if longer.score.step_time_ns * 1000 >= score.step_time_ns * (1000 - MIN_GAIN_PERMILLE):
            break
        score, first, min_distances = longer
    tried = (first, by_layer_assignment(first, min_distances), piecewise(first, min_distances, MAX_PIECES))
    return min(((search.score(candidate), candidate) for candidate in tried), key=lambda scored: scored[0])
