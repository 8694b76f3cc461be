"""Mixes of two choices: some layers as one has them, the others as the other one. Pure.

Layers are alike, so what lies between two good choices for neighbouring budgets is nearly as good for the budgets
between them, down to the memory of a single layer.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from mindswap.planner.space import KEEP, Figures, Score

# The order in which layers go over from one choice to the other.
Order = Sequence[int]


def mixed(lean: np.ndarray, rich: np.ndarray, layers: Sequence[int]) -> np.ndarray:
    """Some layers of one choice, the others of another.

    Args:
        lean, rich: choices of the same shape; `lean` needs less memory.
        layers: those of `lean`.
    """
    choice = rich.copy()
    choice[list(layers)] = lean[list(layers)]
    return choice


def best_mix(
    score: Callable[[np.ndarray], Score], choices: Sequence[np.ndarray], orders: Sequence[Order]
) -> tuple[Score, np.ndarray]:
    """The best of some choices and of their mixes.

    For each pair of one that fits and a faster one that does not, as few layers as possible are taken from the
    first; their number is found by halving.

    Args:
        score: what a choice comes to.
        choices: at least one, all of the same shape.
        orders: from which layers to take them.
    """
    known = [(score(choice), number, choice) for number, choice in enumerate(choices)]
    best, _, chosen = min(known, key=lambda entry: entry[:2])
    for lean, rich in _pairs(known):
        for order in orders:
            low, high = 0, len(order)  # layers of `lean`: too few, enough
            while high - low > 1:
                middle = (low + high) // 2
                choice = mixed(lean, rich, order[:middle])
                found = score(choice)
                low, high = (low, middle) if found.fits else (middle, high)
                if found < best:
                    best, chosen = found, choice
    return best, chosen


def _pairs(known: Sequence[tuple[Score, int, np.ndarray]]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The fastest that fits, with each that does not and is faster."""
    fitting = [entry for entry in known if entry[0].fits]
    if not fitting:
        return
    lean = min(fitting, key=lambda entry: entry[:2])
    for rich in known:
        if not rich[0].fits and rich[0].step_time_ns < lean[0].step_time_ns:
            yield lean[2], rich[2]


def orders_of(stages: Sequence[Sequence[int]], over_bytes: Sequence[int] = ()) -> list[Order]:
    """Orders in which layers can go over: of all stages in turn, from the first or from the last one of each.

    Args:
        stages: layers of each pipeline stage.
        over_bytes: what each stage is over its budget; where some are, also those first that are most.
    """
    forward = [layer for turn in range(max(map(len, stages))) for own in stages for layer in own[turn : turn + 1]]
    backward = [
        layer for turn in range(max(map(len, stages))) for own in stages for layer in own[::-1][turn : turn + 1]
    ]
    fullest = sorted(range(len(over_bytes)), key=lambda stage: -over_bytes[stage])
    by_need = [layer for stage in fullest for layer in stages[stage]] if len(stages) > 1 else []
    return [order for order in (forward, backward, by_need) if order]


def stretched(choice: np.ndarray, figures: Figures) -> np.ndarray:
    """A choice for the layers of one pipeline stage, carried over to those of another.

    Args:
        choice: of other layers; items are the same.
        figures: of the layers that it shall be for; decisions that they do not have are left out.
    """
    num_layers = figures.num_layers
    own = choice[np.arange(num_layers) * len(choice) // max(1, num_layers)]
    return np.where(figures.can(own), own, KEEP)
