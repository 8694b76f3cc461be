"""Local search: change an assignment step by step as long as its simulated score improves.

Source:
    Aarts and Lenstra, "Local Search in Combinatorial Optimization" (1997).
"""

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from mindswap.planner.solver.distances import Scored, retune
from mindswap.planner.solver.search import Search
from mindswap.planner.stage_problem import KEEP, DecisionCosts

# Limit of simulations in one round.
MAX_TRIALS = 60
# In problems with at most this many decisions a single one matters much: they are also searched from so many perturbed
# assignments, each with so many decisions changed at random. Without them plans of exhaustively solved problems are up
# to 14 % slower than the best policy, and some find nothing that fits.
SMALL_PROBLEM_DECISIONS = 24
NUM_PERTURBATIONS = 12
NUM_PERTURBED_DECISIONS = 3


class DecisionChange(NamedTuple):
    """A change of one group to one value in some layers."""

    layers: np.ndarray
    group: int
    value: int
    change: np.ndarray  # int64, shape (4,): estimated change of `AssignmentCost`

    def apply(self, assignment: np.ndarray) -> np.ndarray:
        """Return the changed assignment."""
        changed = assignment.copy()
        if not self.group:
            changed[self.layers] = KEEP  # under full recompute a layer has no other decisions
        changed[self.layers, self.group] = self.value
        return changed

    def overlaps(self, other: "DecisionChange") -> bool:
        """Return whether both change a decision, or one decides about the whole layer."""
        is_same = self.group == other.group or not self.group or not other.group
        return is_same and bool(np.isin(self.layers, other.layers).any())


def improve(search: Search, forward_ns: int, starts: Sequence[np.ndarray] = ()) -> None:
    """Improve the best assignment of a search until a local optimum or the limit of simulations.

    Args:
        search: search with at least one simulation.
        forward_ns: forward time of a micro-batch, which hides offloads.
        starts: assignments to start from before the best one.
    """
    for start in (*starts, None):
        _climb(search, search.best if start is None else start, forward_ns)
    if search.fits and _rearrange(search):
        _climb(search, search.best, forward_ns)
    if search.best.size <= SMALL_PROBLEM_DECISIONS:
        chance = random.Random(0)
        for _ in range(NUM_PERTURBATIONS):
            _climb(search, _perturb(search.best, search.stage_problem.costs, chance), forward_ns)


def _perturb(assignment: np.ndarray, costs: DecisionCosts, chance: random.Random) -> np.ndarray:
    """Return the assignment with a few decisions changed at random."""
    perturbed = assignment.copy()
    decisions = np.argwhere(costs.freed_bytes.max(axis=2) > 0).tolist()
    for layer, group in chance.sample(decisions, min(NUM_PERTURBED_DECISIONS, len(decisions))):
        paths = np.flatnonzero(costs.freed_bytes[layer, group] > 0).tolist()
        perturbed[layer, group] = chance.choice([KEEP, *(-path if path else chance.choice((1, 4)) for path in paths)])
    perturbed[perturbed[:, 0] < KEEP, 1:] = KEEP
    return perturbed


def _climb(search: Search, assignment: np.ndarray, forward_ns: int) -> None:
    """Climb to a local optimum."""
    start = search.score(assignment), assignment
    while not search.is_exhausted:
        improved = _change(search, _retune_first(search, start), forward_ns)
        if improved[0] >= start[0] and start[0].excess_bytes:
            improved = retune(search, start)
        if improved[0] >= start[0]:
            return
        start = improved


def _retune_first(search: Search, start: Scored) -> Scored:
    """Retune before any change if it fits. Otherwise shorter distances free little, at the price of waits: later."""
    return start if start[0].excess_bytes else retune(search, start)


def _rearrange(search: Search) -> bool:
    """Permute layer assignments and scale distances while that is better; return whether anything was.

    The order of the layer assignments decides when copies are on the link: permutations differ by a tenth in step time.
    """
    chance, first = random.Random(0), search.best_score
    is_better = True
    while is_better:
        is_better, start = False, (search.best_score, search.best)
        moves = list(_permutations(start[1]))
        for move in chance.sample(moves, min(MAX_TRIALS, len(moves))):
            if search.is_exhausted:
                break
            changed = move(start[1].copy())
            changed = np.where(search.stage_problem.costs.is_possible(changed), changed, KEEP)
            score = search.score(changed)
            if is_better := score < start[0]:
                retune(search, (score, changed))
                break
    return search.best_score < first


def _permutations(assignment: np.ndarray) -> Iterator[Callable[[np.ndarray], np.ndarray]]:
    """Yield functions that rearrange a copy of an assignment.

    Two different layers are exchanged, a layer becomes like the nearest one of another kind, or the prefetch distances
    of a group are scaled in all layers.
    """
    kinds = np.unique(np.minimum(assignment, 1), axis=0, return_inverse=True)[1].ravel()
    for layer, other in np.argwhere(kinds[:, None] != kinds).tolist():
        equal_layers = np.flatnonzero(kinds == kinds[other])
        if other == equal_layers[np.abs(equal_layers - layer).argmin()]:
            yield partial(_copy_layer, layer=layer, other=other)
        if layer < other:
            yield partial(_exchange_layers, layer=layer, other=other)
    for group in np.flatnonzero((assignment > KEEP).any(axis=0)).tolist():
        for permille in (500, 700, 1400, 2000):
            yield partial(_scale_distances, group=group, permille=permille)


def _copy_layer(assignment: np.ndarray, layer: int, other: int) -> np.ndarray:
    assignment[layer] = assignment[other]
    return assignment


def _exchange_layers(assignment: np.ndarray, layer: int, other: int) -> np.ndarray:
    assignment[[layer, other]] = assignment[[other, layer]]
    return assignment


def _scale_distances(assignment: np.ndarray, group: int, permille: int) -> np.ndarray:
    distances = assignment[:, group]
    assignment[:, group] = np.where(distances > KEEP, np.maximum(1, distances * permille // 1000), distances)
    return assignment


def _change(search: Search, start: Scored, forward_ns: int) -> Scored:
    """Return the first better assignment by a single or paired move, in the order of estimated gain."""
    score, assignment = start
    costs = search.stage_problem.costs
    moves = list(_moves(assignment, costs))
    if not moves:
        return start
    freed, time, link, host = np.stack([move.change for move in moves], axis=1)
    freed, host = freed * costs.num_in_flight, host * costs.num_in_flight
    used_ns = int(costs.of(assignment)[2].sum())
    spare = search.stage_problem.budget_bytes - score.peak_bytes

    def exposed(link_ns: np.ndarray) -> np.ndarray:
        """Return the additional exposed copy time if copies take longer by `link_ns`."""
        return np.maximum(0, used_ns + link_ns - forward_ns) - max(0, used_ns - forward_ns)

    alone_ns = time + exposed(link)
    if score.excess_bytes:
        firsts, seconds = np.arange(len(moves)), np.full(len(moves), -1)
        if score.host_excess_bytes:  # freeing the device by more swap would fill the host
            gains = np.minimum(-host, score.host_excess_bytes) + np.minimum(freed + spare, 0)
        else:
            relief = _relief_bytes(search, assignment, moves)
            relief = relief if (relief > 0).any() else freed  # what exceeds the budget may be no activation
            gains = np.minimum(relief, score.excess_bytes)
    else:
        # Not all kept tensors are alive at the peak, so faster moves are tried even if they seem to exceed the budget.
        fits = np.flatnonzero((freed + spare >= 0) | (time < 0))
        both_ns = time[:, None] + time + exposed(link[:, None] + link)
        is_pair = (freed[:, None] + freed + spare >= 0) & (freed[:, None] <= 0) & (freed > 0)
        a, b = np.nonzero(is_pair)
        gains = -np.append(alone_ns[fits], both_ns[a, b])
        firsts, seconds = np.append(fits, a), np.append(np.full(len(fits), -1), b)
    trials, order_ns = 0, alone_ns[firsts] if score.excess_bytes else gains
    for index in np.lexsort((seconds, firsts, order_ns, -gains)).tolist():
        if search.is_exhausted or trials >= MAX_TRIALS or gains[index] < 0:
            break
        first = moves[firsts[index]]
        changed = first.apply(assignment)
        if seconds[index] >= 0:
            second = moves[seconds[index]]
            if first.overlaps(second):
                continue
            changed = second.apply(changed)
        trials += 1
        if (changed_score := search.score(changed)) < score:
            return changed_score, changed
    return start


def _relief_bytes(search: Search, assignment: np.ndarray, moves: Sequence[DecisionChange]) -> np.ndarray:
    """Return the excess at the simulated peaks that each move frees: int64 bytes of all stages, shape (num_moves,).

    A copy may be in flight at the peak, so a swap relieves it of kept tensors only, and recompute of swapped ones, too.
    """
    costs = search.stage_problem.costs
    excess_bytes, kept_bytes, in_flight_bytes = search.stage_problem.memory_at_peaks(search.timeline(assignment))
    held_bytes = kept_bytes + in_flight_bytes
    is_cell = np.broadcast_to(costs.is_cell, costs.num_groups)
    relief = []
    for layers, group, value, change in moves:
        size_bytes = (held_bytes if value < KEEP else kept_bytes)[:, layers, group]
        if is_cell[group]:  # some of what it made may be read outside, and stays
            size_bytes = np.minimum(size_bytes, costs.freed_bytes[layers, group, max(0, -value)] * costs.num_in_flight)
        freed_bytes = np.minimum(size_bytes.sum(axis=1), excess_bytes).sum()
        relief.append(freed_bytes if value != KEEP else min(0, int(change[0])))
    return np.array(relief, np.int64)


def _moves(assignment: np.ndarray, costs: DecisionCosts) -> Iterator[DecisionChange]:
    """Yield moves: for each group and each of its values, some first or last layers get another value.

    New swaps get the median distance of the group, or of all groups.
    """
    now, distances = costs.of(assignment).sum(axis=2), assignment[assignment > KEEP]
    for group in range(costs.num_groups):
        column = assignment[:, group]
        own = np.unique(column[column > KEEP])
        distance = int(np.median(own if len(own) else distances if len(distances) else 8))
        for target in (KEEP, *range(-1, -costs.freed_bytes.shape[2], -1), distance):
            changed = assignment.copy() if group else np.full_like(assignment, KEEP)
            changed[:, group] = target
            change = costs.of(changed).sum(axis=2) - now
            is_possible = costs.is_possible(changed)[:, group]
            if group and target != KEEP:
                is_possible &= assignment[:, 0] == KEEP
            for value in np.unique(column).tolist():
                if value == target or min(value, target) > KEEP:
                    continue
                for layers in _parts(np.flatnonzero(is_possible & (column == value))):
                    yield DecisionChange(layers, group, target, change[:, layers].sum(axis=1))


def _parts(layers: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the first and the last 1, 2, 4, ... layers, all layers, and each layer if there are few."""
    size = 1
    while size < len(layers):
        yield layers[:size]
        yield layers[-size:]
        size *= 2
    if len(layers):
        yield layers
    if 2 < len(layers) <= 6:
        yield from np.split(layers[1:-1], len(layers) - 2)
