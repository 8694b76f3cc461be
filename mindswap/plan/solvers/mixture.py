"""How many layers get which row, so that least time runs again for so much memory on so much of the link. Pure.

Equal layers of a good choice have few different rows: the linear programme that asks how many layers get which row has
three limits, memory, link and host, so three rows are enough. Prices of the limits say which further rows would help.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from scipy.optimize import linprog

from mindswap.plan.space import KEEP, Figures, Space, Worth

__all__ = ["Mixture", "in_front", "spread"]

MAX_ROUNDS = 12
# Rows are made for kinds of layers that are at least this part of all; the others take what they can of them.
LEAST_PART = 8
# What a byte costs that is over the budget, as so many times the dearest.
MISSING_FACTOR = 100
# Values of an item that may be tried in the best row, and changes of it that are, in each round.
NUM_VALUES = 2
NUM_CHANGES = 6
# Prices of memory, link and host.
Prices = np.ndarray
# A row with what it comes to.
Entry = tuple[np.ndarray, Worth]


def in_front(rows: Sequence[Entry]) -> list[Entry]:
    """What is on the link longest goes first, so that nothing is behind when backward begins."""
    return sorted(rows, key=lambda entry: -entry[1].copy_ns)


def spread(rows: Sequence[Entry]) -> list[Entry]:
    """Equal rows at even distances, so that the copies of each have the time of the others."""
    number = Counter(row.tobytes() for row, _ in rows)
    seen: Counter[bytes] = Counter()
    placed = []
    for position, (row, worth) in enumerate(in_front(rows)):
        key = row.tobytes()
        placed.append(((seen[key] + 0.5) / number[key], -worth.copy_ns, position, (row, worth)))
        seen[key] += 1
    return [entry for *_, entry in sorted(placed, key=lambda one: one[:3])]


class Mixture:
    """The layers of a space as kinds of equal ones, and the rows known for each kind.

    Args:
        space: whose layers.
        num_still: last layers that swap nothing: their copies would be on their way back at once.
        arrange: order of the rows in the layers.
        has_whole: layers may be recomputed whole, for which all of one is back at once.
    """

    def __init__(
        self,
        space: Space,
        num_still: int = 0,
        arrange: Callable[[Sequence[Entry]], list[Entry]] = in_front,
        has_whole: bool = True,
    ):
        self.space = space
        self.arrange = arrange
        self.has_whole = has_whole
        figures = space.figures
        is_still = np.arange(figures.num_layers) >= figures.num_layers - num_still
        alike = [
            table.reshape(figures.num_layers, -1)
            for table in (figures.freed_bytes, figures.recompute_ns, figures.copy_ns, figures.all_conflicts, is_still)
        ]
        _, first, kind_of = np.unique(np.concatenate(alike, axis=1), axis=0, return_index=True, return_inverse=True)
        self.layers = [np.flatnonzero(kind_of.ravel() == kind) for kind in range(len(first))]
        self.is_still = [bool(is_still[layer]) for layer in first]
        self.rows: list[dict[bytes, Entry]] = [{} for _ in self.layers]
        self._add(np.zeros(figures.num_items, np.int64))
        whole = np.zeros(figures.num_items, np.int64)
        whole[0] = -1 if has_whole else KEEP
        self._add(whole)

    def choice(self, freed_bytes: int, copy_ns: float, host_bytes: float) -> np.ndarray:
        """A choice that frees so much in all layers together, per micro-batch; swaps have distance 1.

        Args:
            freed_bytes: how much; as much as there is, if that is less.
            copy_ns: time on the link that may be taken.
            host_bytes: host memory that may be taken.
        """
        limits = np.array([freed_bytes, copy_ns, host_bytes], float)
        for _ in range(MAX_ROUNDS):
            counts, prices = self._solve(limits)
            if not self._add_rows(prices):
                break
        choice = np.zeros((self.space.figures.num_layers, self.space.figures.num_items), np.int64)
        for layers, known, parts in zip(self.layers, self.rows, counts, strict=True):
            rows = self.arrange(list(_whole(list(known.values()), parts, len(layers))))
            for layer, (row, _) in zip(layers, rows, strict=True):
                choice[layer] = row
        return choice

    def _solve(self, limits: np.ndarray) -> tuple[list[np.ndarray], Prices]:
        """How many layers of each kind get which of the rows known, in parts of layers; prices of the limits."""
        entries = [(kind, worth) for kind, known in enumerate(self.rows) for _, worth in known.values()]
        kinds = np.array([kind for kind, _ in entries])
        table = np.array([(w.again_ns, w.freed_bytes, w.copy_ns, w.host_bytes) for _, w in entries], float)
        again_ns, freed, copy_ns, host = table.T
        unit, unit_ns = max(1.0, freed.max()), max(1.0, again_ns.max())
        missing = np.array([MISSING_FACTOR])  # of bytes
        limited = np.stack([-freed / unit, copy_ns / unit_ns, host / unit])
        scale = np.array([unit, unit_ns, unit])
        found = linprog(
            np.append(again_ns / unit_ns, missing),
            A_ub=np.column_stack([limited, [-1, 0, 0]]),
            b_ub=limits * (-1, 1, 1) / scale,
            A_eq=np.column_stack([kinds == np.arange(len(self.layers))[:, None], np.zeros(len(self.layers))]),
            b_eq=[len(layers) for layers in self.layers],
            method="highs",
        )
        assert found.status == 0, found.message
        prices = -found.ineqlin.marginals * unit_ns / scale
        return [found.x[:-1][kinds == kind] for kind in range(len(self.layers))], prices

    def _add_rows(self, prices: Prices) -> bool:
        """Adds the rows that are best at some prices; whether any was new."""
        is_new = False
        for kind, layers in enumerate(self.layers):
            if len(layers) * LEAST_PART >= self.space.figures.num_layers:
                for row in self._best_rows(kind, prices):
                    is_new |= self._add(row)
        return is_new

    def _best_rows(self, kind: int, prices: Prices) -> Iterator[np.ndarray]:
        """The best row if its items were independent; what a change of one item makes better of the best one known."""
        layer, figures = int(self.layers[kind][0]), self.space.figures
        ranked = [
            sorted(
                _options(figures, layer, item, self.is_still[kind]),
                key=lambda value, item=item: _item_price(figures, layer, item, value, prices),  # type: ignore[misc]
            )
            for item in range(1, figures.num_items)
        ]
        yield np.array([KEEP, *(values[0] for values in ranked)])
        best, worth = min(self.rows[kind].values(), key=lambda entry: _price(entry[1], prices))
        if best[0] < KEEP:
            return  # a layer that is recomputed whole swaps nothing
        # Other rows are new blocks, which take time to make: only the changes that promise most are tried.
        changes = []
        for item, values in enumerate(ranked, 1):
            own_ns = _item_price(figures, layer, item, int(best[item]), prices)
            for value in values[:NUM_VALUES]:
                if value != best[item]:
                    changes.append((_item_price(figures, layer, item, value, prices) - own_ns, item, value))
        for _, item, value in sorted(changes)[:NUM_CHANGES]:
            changed = best.copy()
            changed[item] = value
            if _price(self.space.worth(layer, changed), prices) < _price(worth, prices):
                yield changed

    def _add(self, row: np.ndarray) -> bool:
        """Adds a row to every kind that can have it; whether it was new to any."""
        figures, is_new = self.space.figures, False
        for layers, is_still, known in zip(self.layers, self.is_still, self.rows, strict=True):
            layer = int(layers[0])
            can = [value in _options(figures, layer, item, is_still) for item, value in enumerate(row.tolist())]
            own = np.where(can, row, KEEP)
            if own.tobytes() not in known:
                known[own.tobytes()] = (own, self.space.worth(layer, own))
                is_new = True
        return is_new


def _options(figures: Figures, layer: int, item: int, is_still: bool) -> list[int]:
    """What may become of an item: kept, recomputed in some way, swapped."""
    ways = np.flatnonzero(figures.freed_bytes[layer, item] > 0).tolist()
    return [KEEP, *(-way if way else 1 for way in ways if way or not is_still)]


def _item_price(figures: Figures, layer: int, item: int, value: int, prices: Prices) -> float:
    if value == KEEP:
        return 0.0
    size = int(figures.freed_bytes[layer, item, max(-value, 0)])
    is_swap = value > KEEP
    copy_ns, host_bytes = (int(figures.copy_ns[layer, item]), size) if is_swap else (0, 0)
    return _price(Worth(size, int(figures.recompute_ns[layer, item, max(-value, 0)]), copy_ns, host_bytes), prices)


def _price(worth: Worth, prices: Prices) -> float:
    memory, link, host = prices.tolist()
    return worth.again_ns - memory * worth.freed_bytes + link * worth.copy_ns + host * worth.host_bytes


def _whole(rows: Sequence[Entry], parts: np.ndarray, num_layers: int) -> Iterator[Entry]:
    """Rows for whole layers: as many as the parts say; what is left over goes to the largest rests."""
    counts = np.floor(parts + 1e-6).astype(np.int64)
    left = num_layers - int(counts.sum())
    for position in np.argsort(counts - parts, kind="stable")[:left]:
        counts[position] += 1
    for entry, count in zip(rows, counts.tolist(), strict=False):  # rows may have come since
        yield from [entry] * count
