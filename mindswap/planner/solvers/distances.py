"""`backward_prefetch` of what is swapped, from a timeline: as small as copies allow, alike in groups of layers. Pure.

A copy that waits for its release holds memory, and one that is fetched too early holds it again. Layers behind which
the link is late need a greater distance than others; each value that an operator gets is an entry of the policy.
"""

import numpy as np

from mindswap.planner.space import KEEP

MAX_GROUPS = 4


def grouped(choice: np.ndarray, needed: np.ndarray, num_groups: int = MAX_GROUPS) -> np.ndarray:
    """The choice with other distances: in each group of neighbouring layers the same for all items.

    Args:
        choice: what is swapped.
        needed: least distance of each swap, shape of the choice.
        num_groups: how many groups; they are made so that distances are as little above the least as possible.
    """
    layers = np.flatnonzero((choice > KEEP).any(axis=1))
    by_layer = np.maximum(1, np.where(choice > KEEP, needed, 0).max(axis=1))[layers]
    found = choice.copy()
    found[layers] = np.where(choice[layers] > KEEP, _level(by_layer.tolist(), num_groups)[:, None], choice[layers])
    return found


def by_row(choice: np.ndarray, needed: np.ndarray) -> np.ndarray:
    """The choice with other distances: for each item the same in all layers with equal rows.

    Args:
        choice: what is swapped.
        needed: least distance of each swap, shape of the choice.
    """
    _, row_of = np.unique(np.minimum(choice, 1), axis=0, return_inverse=True)
    found = choice.copy()
    for row in range(int(row_of.max()) + 1):
        layers = np.flatnonzero(row_of.ravel() == row)
        found[layers] = np.where(choice[layers] > KEEP, np.maximum(1, needed[layers].max(axis=0)), choice[layers])
    return found


def _level(values: list[int], num_groups: int) -> np.ndarray:
    """Steps above the values, in so many pieces, that are as little above them as possible."""
    num = len(values)
    # cost[i][j]: what one level above values i to j - 1 is above them together.
    cost = [[0] * (num + 1) for _ in range(num + 1)]
    for i in range(num):
        highest = total = 0
        for j in range(i, num):
            highest, total = max(highest, values[j]), total + values[j]
            cost[i][j + 1] = highest * (j + 1 - i) - total
    best: list[tuple[int, list[int]]] = [(cost[0][j], [j]) for j in range(num + 1)]
    for _ in range(num_groups - 1):
        best = [min((best[i][0] + cost[i][j], [*best[i][1], j]) for i in range(j + 1)) for j in range(num + 1)]
    found: list[int] = []
    for end in best[num][1]:
        found += [max(values[len(found) : end], default=0)] * (end - len(found))
    return np.array(found, np.int64)
