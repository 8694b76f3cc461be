"""Column generation: how many layers get which row, so that least time runs again for so much memory and link.

Equal layers of a good choice have few different rows: the linear programme that asks how many layers get which row has
three limits, memory, link and host, so three rows are enough. Dual prices of the limits say which further rows (columns
of the programme) would help.

Source:
    Gilmore and Gomory, "A linear programming approach to the cutting-stock problem" (Operations Research, 1961).
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from mindswap.planner.linear import METHODS, UnsolvedError, solve_linear, to_sparse_rows
from mindswap.planner.stage_problem import KEEP, Figures, Space, Worth

# For kinds of layers that are a smaller part of all, only the rows of independent items are made; they take what they
# can of the rows of others.
LEAST_PART = 8
# What a byte costs that is over the budget, as so many times the dearest.
MISSING_FACTOR = 100
# Changes of the best row that are tried in each round: so many in any case, and more until one is better.
NUM_CHANGES = 4
MAX_CHANGES = 24
# Rows that are tried for all choices together: most are new blocks, which take time to make. Few searches come near.
MAX_TRIED = 1000
# Whole numbers of layers: steps of the search, and how near to the best they must come.
MAX_NODES = 20
# as a part, and of the time that a layer can run again
NEAR = 1e-2
# DualPrices of memory, link and host.
DualPrices = np.ndarray
# A row with what it comes to.
Entry = tuple[np.ndarray, Worth]


def front_loaded(rows: Sequence[Entry]) -> list[Entry]:
    """What is on the link longest goes first, so that nothing is behind when backward begins."""
    return sorted(rows, key=lambda entry: -entry[1].copy_ns)


def interleaved(rows: Sequence[Entry]) -> list[Entry]:
    """Equal rows at even distances, so that the copies of each have the time of the others.

    Of those that come equally often what is on the link longest goes first, so that little is behind at the end.
    """
    number = Counter(row.tobytes() for row, _ in rows)
    heaviest = list(dict.fromkeys(row.tobytes() for row, _ in front_loaded(rows)))
    shift = {key: place / max(1, len(heaviest) - 1) for place, key in enumerate(heaviest)}
    seen: Counter[bytes] = Counter()
    placed = []
    for position, entry in enumerate(front_loaded(rows)):
        key = entry[0].tobytes()
        placed.append(((seen[key] + shift[key]) / number[key], position, entry))
        seen[key] += 1
    return [entry for *_, entry in sorted(placed, key=lambda one: one[:2])]


class ColumnGeneration:
    """The layers of a space as kinds of equal ones, and the rows known for each kind.

    Args:
        space: whose layers.
        unswappable: bool, shape of a choice: what is not swapped, as its copy would be on the device at the peak.
        arrange: order of the rows in the layers.
        has_whole: layers may be recomputed whole, for which all of one is back at once.
        rows: to begin with.
        is_apart: nothing is swapped that recomputed operators read.
        enough_ns: time that runs again in all layers for which no further rows are looked for.
    """

    def __init__(
        self,
        space: Space,
        unswappable: np.ndarray | None = None,
        arrange: Callable[[Sequence[Entry]], list[Entry]] = front_loaded,
        has_whole: bool = True,
        rows: Iterable[np.ndarray] = (),
        is_apart: bool = False,
        enough_ns: float = 0,
    ):
        self.space = space
        self.arrange = arrange
        self.has_whole = has_whole
        self.is_apart = is_apart
        self.enough_ns = enough_ns
        figures = space.figures
        self.unswappable = (
            np.zeros((figures.num_layers, figures.num_items), bool) if unswappable is None else unswappable
        )
        alike = [
            table.reshape(figures.num_layers, -1)
            for table in (
                figures.freed_bytes, figures.recompute_ns, figures.copy_ns, figures.all_conflicts, self.unswappable,
            )
        ]  # fmt: skip
        _, first, kind_of = np.unique(np.concatenate(alike, axis=1), axis=0, return_index=True, return_inverse=True)
        self.layers = [np.flatnonzero(kind_of.ravel() == kind) for kind in range(len(first))]
        self.rows: list[dict[bytes, Entry]] = [{} for _ in self.layers]
        self.num_tried = 0
        self._asked = ""  # the programme of which `_answer` is the answer
        self._answer: list[list[int]] = []
        whole = np.zeros(figures.num_items, np.int64)
        whole[0] = -1 if has_whole else KEEP
        for row in (np.zeros(figures.num_items, np.int64), whole, *rows):
            self._add(row)

    def with_unswappable(self, unswappable: np.ndarray) -> "ColumnGeneration":
        """The same with more that is not swapped; it begins with the rows known.

        What one layer does not swap none of them does: every other pattern would be a kind of its own.
        """
        every = self.unswappable | unswappable
        alike = np.logical_and.outer(every.any(axis=1), every.any(axis=0))
        return self.changed(unswappable=alike)

    def changed(self, **settings: Any) -> "ColumnGeneration":
        """The same with other settings; it begins with the rows known, if no others are given."""
        own: dict[str, Any] = {
            name: getattr(self, name) for name in ("unswappable", "arrange", "has_whole", "is_apart", "enough_ns")
        }
        own["rows"] = [row for known in self.rows for row, _ in known.values()]
        found = ColumnGeneration(self.space, **(own | settings))
        found.num_tried = self.num_tried
        return found

    def choice(self, freed_bytes: int, copy_ns: float, host_bytes: float) -> np.ndarray:
        """A choice that frees so much in all layers together, per micro-batch; swaps have distance 1.

        Args:
            freed_bytes: how much; as much as there is, if that is less.
            copy_ns: time on the link that may be taken.
            host_bytes: host memory that may be taken.
        """
        limits = np.array([-freed_bytes, copy_ns, host_bytes], float)
        numbers = self._generate(limits)
        choice = np.zeros((self.space.figures.num_layers, self.space.figures.num_items), np.int64)
        for layers, known, own in zip(self.layers, self.rows, numbers, strict=True):
            entries = [entry for entry, number in zip(known.values(), own, strict=True) for _ in range(number)]
            for layer, (row, _) in zip(layers, self.arrange(entries), strict=True):
                choice[layer] = row
        return choice

    def _generate(self, limits: np.ndarray) -> list[list[int]]:
        """Adds rows as long as they help; how many layers of each kind get which."""
        dual_prices, again_ns = self._solve(limits)
        while again_ns > self.enough_ns and self._add_rows(dual_prices):
            dual_prices, again_ns = self._solve(limits)
        while self._settle(numbers := self._numbers(limits)):
            pass
        return numbers

    def _settle(self, numbers: list[list[int]]) -> bool:
        """Rows that are used become what the compiler makes of them, which takes long to ask; whether any changed."""
        is_changed = False
        for layers, known, own in zip(self.layers, self.rows, numbers, strict=True):
            for (key, (row, _)), number in zip(list(known.items()), own, strict=True):
                found = self.space.effective(int(layers[0]), row) if number else row
                if not np.array_equal(found, row):
                    known[key], is_changed = (found, self.space.worth(int(layers[0]), found)), True
        return is_changed

    def _solve(self, limits: np.ndarray) -> tuple[DualPrices, float]:
        """DualPrices of the limits, and the time that runs again, where parts of layers may get rows."""
        cost, sums, row_lower, row_upper, unit_ns, scale = self._programme(limits)
        for method in METHODS:
            with contextlib.suppress(UnsolvedError):
                found = solve_linear(cost, sums, row_upper, row_lower=row_lower, solver=method)
                if found is None:  # what is missing is a variable, so there is always a choice
                    raise AssertionError("an infeasible program in spite of its slack variable")
                return -found.dual_prices[: len(limits)] * unit_ns / scale, found.cost * unit_ns
        return np.zeros(len(limits)), 0.0  # no further rows: those that are known serve

    def _numbers(self, limits: np.ndarray) -> list[list[int]]:
        """How many layers of each kind get which of the rows known."""
        cost, sums, row_lower, row_upper, *_ = self._programme(limits)
        asked = repr((cost.tolist(), sums, row_lower.tolist(), row_upper.tolist()))
        if asked != self._asked:  # of two loads, or before and behind a look for rows, most often it is the same
            self._asked, self._answer = asked, self._whole_numbers(cost, sums, row_lower, row_upper)
        return self._answer

    def _whole_numbers(
        self, cost: np.ndarray, sums: list[dict[int, float]], row_lower: np.ndarray, row_upper: np.ndarray
    ) -> list[list[int]]:
        """The same for a programme of `_programme`."""
        steps: dict[str, Any] = {"mip_max_nodes": MAX_NODES, "mip_rel_gap": NEAR, "mip_abs_gap": NEAR}
        try:
            found = solve_linear(cost, sums, row_upper, row_lower=row_lower, num_integers=len(cost) - 1, **steps)
        except UnsolvedError:  # so few steps were too few to find any choice
            found = solve_linear(cost, sums, row_upper, row_lower=row_lower, num_integers=len(cost) - 1)
        if found is None:
            raise AssertionError("an infeasible program in spite of its slack variable")
        numbers = np.rint(found.variables[:-1]).astype(np.int64)
        ends = np.cumsum([len(known) for known in self.rows])[:-1]
        return [part.tolist() for part in np.split(numbers, ends)]

    def _programme(
        self, limits: np.ndarray
    ) -> tuple[np.ndarray, list[dict[int, float]], np.ndarray, np.ndarray, float, np.ndarray]:
        """Columns are the rows of each kind, and what is missing; in units near 1.

        Returns:
            Time that runs again; sums of memory, link and host, and of the layers of each kind, with their least and
            greatest; the units of time and of the limits.
        """
        entries = [(kind, worth) for kind, known in enumerate(self.rows) for _, worth in known.values()]
        table = np.array([(w.recompute_ns, w.freed_bytes, w.copy_ns, w.host_bytes) for _, w in entries], float)
        recompute_ns, freed, copy_ns, host = table.T
        unit, unit_ns = max(1.0, freed.max()), max(1.0, recompute_ns.max())
        scale = np.array([unit, unit_ns, unit])
        limited = np.column_stack([np.stack([-freed, copy_ns, host]) / scale[:, None], [-1, 0, 0]])
        kind_of = np.array([*(kind for kind, _ in entries), -1])
        kinds, sizes = kind_of == np.arange(len(self.layers))[:, None], [len(layers) for layers in self.layers]
        return (
            np.append(recompute_ns / unit_ns, MISSING_FACTOR),
            to_sparse_rows(np.vstack([limited, kinds])),
            np.append(np.full(len(limits), -np.inf), sizes),
            np.append(limits / scale, sizes),
            unit_ns,
            scale,
        )

    def _add_rows(self, dual_prices: DualPrices) -> bool:
        """Adds the rows that are best at some prices; whether any was new."""
        is_new = False
        for kind in range(len(self.layers)):
            for row in self._best_rows(kind, dual_prices):
                is_new |= self._add(row)
        return is_new

    def _best_rows(self, kind: int, dual_prices: DualPrices) -> Iterator[np.ndarray]:
        """The best row if its items were independent, and without cells, which are not independent of what is in them;
        what a change of one item makes better of the best one known.
        """
        layer, figures = int(self.layers[kind][0]), self.space.figures
        ranked = [
            sorted(
                _options(figures, layer, item, self.unswappable[layer, item]),
                key=lambda value, item=item: _item_price(figures, layer, item, value, dual_prices),  # type: ignore[misc]
            )
            for item in range(1, figures.num_items)
        ]
        alone = np.array([KEEP, *(values[0] for values in ranked)])
        yield alone
        if (figures.is_cell & (alone != KEEP)).any():
            yield np.where(figures.is_cell, KEEP, alone)
        if len(self.layers[kind]) * LEAST_PART < figures.num_layers:
            return
        # A layer that is recomputed whole leaves nothing to change.
        known = [entry for entry in self.rows[kind].values() if entry[0][0] == KEEP]
        best, worth = min(known, key=lambda entry: _price(entry[1], dual_prices))
        changes = []
        for item, values in enumerate(ranked, 1):
            own_ns = _item_price(figures, layer, item, int(best[item]), dual_prices)
            changes += [
                (_item_price(figures, layer, item, value, dual_prices) - own_ns, item, value)
                for value in values
                if value != best[item]
            ]
        is_better = False  # those that promise most first
        for number, (_, item, value) in enumerate(sorted(changes)[:MAX_CHANGES]):
            if (is_better and number >= NUM_CHANGES) or self.num_tried >= MAX_TRIED:
                return
            self.num_tried += 1
            changed = best.copy()
            changed[item] = value
            if _price(self.space.worth(layer, changed), dual_prices) < _price(worth, dual_prices):
                is_better = True
                yield changed

    def _add(self, row: np.ndarray) -> bool:
        """Adds a row to every kind that can have it; whether it was new to any."""
        figures, is_new = self.space.figures, False
        for layers, known in zip(self.layers, self.rows, strict=True):
            layer = int(layers[0])
            can = [
                value in _options(figures, layer, item, self.unswappable[layer, item])
                for item, value in enumerate(row.tolist())
            ]
            own = np.where(can, row, KEEP)
            if self.is_apart:
                own = np.where(figures.swapped_recompute_inputs(own, layer), KEEP, own)
            if own.tobytes() not in known:
                known[own.tobytes()] = (own, self.space.worth(layer, own))
                is_new = True
        return is_new


def _options(figures: Figures, layer: int, item: int, is_unswappable: bool) -> list[int]:
    """What may become of an item: kept, recomputed in some way, swapped."""
    ways = np.flatnonzero(figures.freed_bytes[layer, item] > 0).tolist()
    return [KEEP, *(-way if way else 1 for way in ways if way or not is_unswappable)]


def _item_price(figures: Figures, layer: int, item: int, value: int, dual_prices: DualPrices) -> float:
    if value == KEEP:
        return 0.0
    size = int(figures.freed_bytes[layer, item, max(-value, 0)])
    is_swap = value > KEEP
    copy_ns, host_bytes = (int(figures.copy_ns[layer, item]), size) if is_swap else (0, 0)
    return _price(Worth(size, int(figures.recompute_ns[layer, item, max(-value, 0)]), copy_ns, host_bytes), dual_prices)


def _price(worth: Worth, dual_prices: DualPrices) -> float:
    memory, link, host = dual_prices.tolist()
    return worth.recompute_ns - memory * worth.freed_bytes + link * worth.copy_ns + host * worth.host_bytes
