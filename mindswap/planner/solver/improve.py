"""Local search: change an assignment step by step as long as its simulated score improves.

Small problems are searched again from assignments with a few decisions changed at random (iterated local search).

Source:
    Aarts and Lenstra, "Local Search in Combinatorial Optimization" (1997); Lourenço, Martin and Stützle, "Iterated
    Local Search" (2003).
"""

import functools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mindswap.planner.solver.distances import Start, retune
from mindswap.planner.solver.search import Search
from mindswap.planner.stage_problem import KEEP, DecisionCosts

# Limit of simulations in one round.
MAX_TRIALS = 60
# Problems with at most this many decisions are searched decision by decision, and from perturbed starts.
SMALL_PROBLEM_DECISIONS = 24
NUM_PERTURBATIONS = 12
NUM_PERTURBED_DECISIONS = 3


@dataclass(frozen=True, eq=False)
class _Move:
    """A change of some decisions of an assignment to one value."""

    mask: np.ndarray  # bool, shape of the assignment: the changed decisions
    value: int  # their new value
    freed_bytes: int  # estimated change of freed memory
    time_ns: int  # estimated change of recompute time

    def apply(self, assignment: np.ndarray) -> np.ndarray:
        changed = assignment.copy()
        changed[self.mask[:, 0]] = KEEP  # under full recompute a layer has no other decisions
        changed[self.mask] = self.value
        return changed


def improve(
    search: Search,
    forward_ns: int,
    starts: Sequence[np.ndarray] = (),
    first: Sequence[np.ndarray] = (),
) -> None:
    """Improve the best assignment of a search until a local optimum or the limit of simulations.

    Small problems, where each decision matters, are also searched from perturbed assignments. In others, layers also
    exchange their layer assignments, and groups get other prefetch distances.

    Args:
        search: search with at least one simulation.
        forward_ns: forward time of a micro-batch, which hides offloads.
        starts: further assignments to start from, best first.
        first: assignments to start from before the best one.
    """
    for start in first:
        _climb(search, start, forward_ns)
    for start in (search.nearest, *starts):
        _climb(search, start, forward_ns)
    chance = random.Random(0)
    if search.nearest.size > SMALL_PROBLEM_DECISIONS:
        if search.fits and _rearrange(search, chance):
            _climb(search, search.nearest, forward_ns)
        return
    for _ in range(NUM_PERTURBATIONS):
        if search.is_exhausted:
            return
        _climb(search, _perturb(search.nearest, search.stage_problem.costs, chance), forward_ns)


def _perturb(assignment: np.ndarray, costs: DecisionCosts, chance: random.Random) -> np.ndarray:
    """Return the assignment with a few decisions changed at random."""
    perturbed = assignment.copy()
    decisions = [(int(layer), int(group)) for layer, group in np.argwhere(costs.freed_bytes.max(axis=2) > 0)]
    for layer, group in chance.sample(decisions, min(NUM_PERTURBED_DECISIONS, len(decisions))):
        path_indices = np.flatnonzero(costs.freed_bytes[layer, group] > 0)
        perturbed[layer, group] = chance.choice(
            [KEEP, *(-int(path_index) if path_index else chance.choice((1, 4)) for path_index in path_indices)]
        )
    perturbed[perturbed[:, 0] < KEEP, 1:] = KEEP
    return perturbed


def _climb(search: Search, assignment: np.ndarray, forward_ns: int) -> None:
    """Climb to a local optimum."""
    score = search.score(assignment)
    while not search.is_exhausted:
        improved = _change(search, retune(search, (assignment, score)), forward_ns)
        if improved[1] >= score:
            return
        assignment, score = improved


def _rearrange(search: Search, chance: random.Random) -> bool:
    """Permute layer assignments and scale distances while that is better; return whether anything was.

    The order of the layer assignments decides when copies are on the link: permutations differ by a tenth in step time.
    """
    first = start = (search.nearest, search.score(search.nearest))
    is_better = True
    while is_better:
        is_better = False
        moves = _permutation_moves(start[0])
        for sources, permille in chance.sample(moves, min(MAX_TRIALS, len(moves))):
            if search.is_exhausted:
                break
            changed = start[0][sources]
            changed = np.where(changed > KEEP, np.maximum(1, changed * permille // 1000), changed)
            changed = np.where(search.stage_problem.costs.is_possible(changed), changed, KEEP)
            score = search.score(changed)
            if is_better := score < start[1]:
                start = retune(search, (changed, score))
                break
    return start is not first


def _permutation_moves(assignment: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return moves: source layer of each layer, and scaling of the distances of each group in thousandths.

    Two layers with different layer assignments exchange them, a layer takes the one of the nearest layer with another,
    or the prefetch distances of a group are scaled in all layers.
    """

    def changed(array: np.ndarray, place: int | list[int], value: int | list[int]) -> np.ndarray:
        other = array.copy()
        other[place] = value
        return other

    layers, unscaled = np.arange(len(assignment)), np.full(assignment.shape[1], 1000)
    class_of = np.unique(np.minimum(assignment, 1), axis=0, return_inverse=True)[1].ravel()
    moves = []
    for layer, other in np.argwhere(class_of[:, None] != class_of).tolist():
        if layer < other:
            moves.append((changed(layers, [layer, other], [other, layer]), unscaled))
        equal_layers = np.flatnonzero(class_of == class_of[other])
        if other == equal_layers[np.abs(equal_layers - layer).argmin()]:
            moves.append((changed(layers, layer, other), unscaled))
    for group in np.flatnonzero((assignment > KEEP).any(axis=0)).tolist():
        moves += [(layers, changed(unscaled, group, permille)) for permille in (500, 700, 1400, 2000)]
    return moves


def _change(search: Search, start: Start, forward_ns: int) -> Start:
    """Return the first better assignment by a single or paired move, in the order of estimated gain."""
    assignment, score = start
    costs = search.stage_problem.costs
    moves = list(_moves(assignment, costs))
    if not moves:
        return start
    in_flight = costs.num_in_flight
    freed = np.array([move.freed_bytes for move in moves], np.int64) * in_flight
    time = np.array([move.time_ns for move in moves], np.int64)
    link = np.array([_link_ns(move, assignment, costs) for move in moves], np.int64)
    used_ns = int(costs.copy_ns[assignment > KEEP].sum())
    spare = search.stage_problem.budget_bytes - score.peak_bytes
    exposed = functools.partial(_exposed_ns, used_ns=used_ns, forward_ns=forward_ns)

    is_small = assignment.size <= SMALL_PROBLEM_DECISIONS
    if score.excess_bytes:
        gains, firsts, seconds = freed, np.arange(len(moves)), np.full(len(moves), -1)
        if score.host_excess_bytes:  # freeing the device by more swap would fill the host
            host = np.array([_host_bytes(move, assignment, costs) for move in moves], np.int64) * in_flight
            gains = np.minimum(-host, score.host_excess_bytes) + np.minimum(freed + spare, 0)
    else:
        # Not all kept tensors are alive at the peak, so faster moves are tried even if they seem to exceed the budget.
        fits = np.flatnonzero((freed + spare >= 0) | (time < 0) | is_small)
        both_ns = time[:, None] + time[None, :] + exposed(link[:, None] + link[None, :])
        ok = (freed[:, None] + freed[None, :] + spare >= 0) & (freed[:, None] <= 0) & (freed[None, :] > 0)
        a, b = np.nonzero(ok | is_small)
        gains = -np.append((time + exposed(link))[fits], both_ns[a, b])
        firsts, seconds = np.append(fits, a), np.append(np.full(len(fits), -1), b)
    trials = 0
    # In small problems every move is tried, single moves first, because there are few.
    is_late = (seconds >= 0) & is_small
    for index in np.lexsort((seconds, firsts, -gains, is_late)):
        if search.is_exhausted or (trials >= MAX_TRIALS and not is_small):
            return start
        if gains[index] < 0 and not is_small:
            return start
        first_move = moves[firsts[index]]
        if seconds[index] >= 0:
            second_move = moves[seconds[index]]
            if (first_move.mask & second_move.mask).any():
                continue
            changed = second_move.apply(first_move.apply(assignment))
        else:
            changed = first_move.apply(assignment)
        trials += 1
        changed_score = search.score(changed)
        if changed_score < score:
            return changed, changed_score
    return start


def _exposed_ns(link_ns: np.ndarray, used_ns: int, forward_ns: int) -> np.ndarray:
    """Return the additional exposed copy time if copy time increases by `link_ns` from `used_ns`."""
    return np.maximum(0, used_ns + link_ns - forward_ns) - max(0, used_ns - forward_ns)


def _link_ns(move: _Move, assignment: np.ndarray, costs: DecisionCosts) -> int:
    was = int(costs.copy_ns[move.mask & (assignment > KEEP)].sum())
    return (int(costs.copy_ns[move.mask].sum()) if move.value > KEEP else 0) - was


def _host_bytes(move: _Move, assignment: np.ndarray, costs: DecisionCosts) -> int:
    """Return the change of the swapped bytes by a move."""
    size_bytes = costs.freed_bytes[:, :, 0]
    was = int(size_bytes[move.mask & (assignment > KEEP)].sum())
    return (int(size_bytes[move.mask].sum()) if move.value > KEEP else 0) - was


def _moves(assignment: np.ndarray, costs: DecisionCosts) -> Iterator[_Move]:
    """Yield moves: for each group and each of its values, some first or last layers get another value."""
    is_small = assignment.size <= SMALL_PROBLEM_DECISIONS
    usual = int(np.median(assignment[assignment > KEEP])) if (assignment > KEEP).any() else 8
    freed_now, time_now = costs.freed_bytes_of(assignment), costs.recompute_ns_of(assignment)
    for group in range(costs.num_groups):
        column = assignment[:, group]
        distances = np.unique(column[column > KEEP])
        usual_of_group = int(np.median(distances)) if len(distances) else usual
        targets = [KEEP, *(-w for w in range(1, costs.freed_bytes.shape[2]))]
        targets += [1, 2, 3, 4, 6, 8, usual_of_group] if is_small else [usual_of_group]
        for value in np.unique(column):
            for target in dict.fromkeys(targets):
                if target == value:
                    continue
                if value > KEEP and target > KEEP and not is_small:
                    continue
                path_index = max(-target, 0)
                possible = (column == value) & ((target == KEEP) | (costs.freed_bytes[:, group, path_index] > 0))
                if group and target != KEEP:
                    possible &= assignment[:, 0] == KEEP
                for layers in _parts(np.flatnonzero(possible)):
                    mask = np.zeros(assignment.shape, bool)
                    mask[layers, group] = True
                    freed = np.zeros(len(layers), np.int64)
                    if target != KEEP:
                        freed = costs.freed_bytes[layers, group, path_index]
                    time = costs.recompute_ns[layers, group, path_index]
                    before_bytes, before_ns = freed_now[layers, group], time_now[layers, group]
                    if group == 0 and target < KEEP:
                        before_bytes, before_ns = freed_now[layers].sum(axis=1), time_now[layers].sum(axis=1)
                    yield _Move(mask, int(target), int((freed - before_bytes).sum()), int((time - before_ns).sum()))


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
        for layer in layers[1:-1]:
            yield np.array([layer])
