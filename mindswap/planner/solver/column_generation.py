"""Column generation: decide how many layers use each layer assignment, minimizing recompute time.

A column is an assignment of one layer with its cost. A small linear program (the master problem) decides how many
layers use each column, subject to three limits: bytes to free, copy time and host memory. So an optimal solution uses
about three different columns for each class of equal layers. The dual prices of the limits show which new columns could
improve it; these are added until none does.

Source:
    Gilmore and Gomory, "A linear programming approach to the cutting-stock problem" (Operations Research, 1961).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from mindswap.planner.linear import UnsolvedError, solve_linear, to_sparse_rows
from mindswap.planner.stage_problem import KEEP, AssignmentCost, DecisionCosts, StageProblem

# Cost of a missing byte relative to the largest cost of a column.
MISSING_FACTOR = 100
# Changes of the best column evaluated in each round: at least NUM_CHANGES, more until one is better.
NUM_CHANGES = 4
MAX_CHANGES = 24
# Branch and bound for integer numbers of layers: gap, relative and in largest recompute times.
INTEGER_GAP = 1e-2

# A column with its cost.
Entry = tuple[np.ndarray, AssignmentCost]


class _MasterProgram(NamedTuple):
    cost: np.ndarray  # float64, shape (num_columns + 1,): recompute time of each column, cost of missing bytes
    rows: list[dict[int, float]]  # sums with limits: memory, link, host, then the number of layers of each class
    row_lower: np.ndarray  # float64, shape (num_rows,)
    row_upper: np.ndarray  # float64, shape (num_rows,)
    unit_ns: float  # unit of `cost`
    scale: np.ndarray  # float64, shape (3,): units of the limits


class MasterProblem:
    """The master problem: classes of equal layers, and the columns known for each class.

    Args:
        stage_problem: decisions of the layers.
        costs: costs of possible decisions.
        enough_ns: recompute time of all layers below which no further columns are added.
        columns: initial columns, each int64 of shape (num_groups,).
    """

    def __init__(
        self,
        stage_problem: StageProblem,
        costs: DecisionCosts,
        enough_ns: float = 0,
        columns: Iterable[np.ndarray] = (),
    ):
        self.stage_problem, self.costs, self.enough_ns = stage_problem, costs, enough_ns
        tables = (costs.freed_bytes, costs.recompute_ns, costs.copy_ns)
        signatures = np.concatenate([table.reshape(costs.num_layers, -1) for table in tables], axis=1)
        _, first, class_of = np.unique(signatures, axis=0, return_index=True, return_inverse=True)
        self.layers = [np.flatnonzero(class_of.ravel() == layer_class) for layer_class in range(len(first))]
        self.columns: list[dict[bytes, Entry]] = [{} for _ in self.layers]
        full_recompute = -np.eye(1, costs.num_groups, dtype=np.int64)[0]
        for column in (np.zeros(costs.num_groups, np.int64), full_recompute, *columns):
            self._add(column)

    def without_swaps(self, excluded: np.ndarray) -> "MasterProblem":
        """Return a copy without some swaps, bool of shape (num_layers, num_groups); it starts from the known columns.

        A group that is excluded in one layer is excluded in all of them: otherwise each pattern of exclusions would
        make a class of its own.
        """
        freed_bytes = self.costs.freed_bytes.copy()
        freed_bytes[:, :, 0][np.logical_and.outer(excluded.any(axis=1), excluded.any(axis=0))] = 0
        columns = [column for class_columns in self.columns for column, _ in class_columns.values()]
        costs = replace(self.costs, freed_bytes=freed_bytes)
        return MasterProblem(self.stage_problem, costs, self.enough_ns, columns)

    def without_full_recompute(self) -> "MasterProblem":
        """Return a new problem in which no layer is recomputed as a whole."""
        freed_bytes = self.costs.freed_bytes.copy()
        freed_bytes[:, 0] = 0
        return MasterProblem(self.stage_problem, replace(self.costs, freed_bytes=freed_bytes), self.enough_ns)

    def solve(self, freed_bytes: int, copy_ns: float, host_bytes: float) -> np.ndarray:
        """Return the assignment of least recompute time that frees the given bytes; swaps have distance 1.

        If branch and bound fails, each class gets the known column that frees most: neither is recompute time least,
        nor do the limits of copies and host memory hold. The simulated score shows whether it fits.

        Args:
            freed_bytes: bytes to free; if so much cannot be freed, the maximum is.
            copy_ns: limit of the copy time.
            host_bytes: limit of the host memory.
        """
        limits = np.array([-freed_bytes, copy_ns, host_bytes], float)
        dual_prices, recompute_ns = self._solve(limits)
        while recompute_ns > self.enough_ns and self._add_columns(dual_prices):
            dual_prices, recompute_ns = self._solve(limits)
        while self._make_effective(counts := self._solve_counts(limits)):
            pass
        assignment = np.zeros(self.costs.copy_ns.shape, np.int64)
        for layers, class_columns, class_counts in zip(self.layers, self.columns, counts, strict=True):
            entries = [
                entry for entry, number in zip(class_columns.values(), class_counts, strict=True) for _ in range(number)
            ]
            assignment[layers] = [column for column, _ in interleaved(entries)]
        return assignment

    def _make_effective(self, counts: list[list[int]]) -> bool:
        """Replace used columns by their effective form, which is slow to compute; return whether any changed."""
        is_changed = False
        for layers, class_columns, class_counts in zip(self.layers, self.columns, counts, strict=True):
            layer = int(layers[0])
            for (key, (column, _)), number in zip(list(class_columns.items()), class_counts, strict=True):
                effective = self.stage_problem.effective(layer, column) if number else column
                if not np.array_equal(effective, column):
                    class_columns[key] = effective, self.stage_problem.assignment_cost(layer, effective)
                    is_changed = True
        return is_changed

    def _solve(self, limits: np.ndarray) -> tuple[np.ndarray, float]:
        """Solve the linear relaxation; return the dual prices of the limits and the recompute time in ns."""
        cost, sums, row_lower, row_upper, unit_ns, scale = self._linear_program(limits)
        try:
            solution = solve_linear(cost, sums, row_upper, row_lower=row_lower)
        except UnsolvedError:
            return np.zeros(len(limits)), 0.0  # no dual prices, so no further columns are added
        if solution is None:  # missing bytes are a variable, so a solution always exists
            raise AssertionError("an infeasible program in spite of its slack variable")
        return -solution.dual_prices[: len(limits)] * unit_ns / scale, solution.cost * unit_ns

    def _solve_counts(self, limits: np.ndarray) -> list[list[int]]:
        """Return how many layers of each class use each known column (integers).

        If the solver gives up, all layers use the column that frees most: local search gives back what is too much.
        """
        cost, sums, row_lower, row_upper, *_ = self._linear_program(limits)
        gaps: dict[str, Any] = {"mip_rel_gap": INTEGER_GAP, "mip_abs_gap": INTEGER_GAP}
        try:
            solution = solve_linear(cost, sums, row_upper, row_lower=row_lower, num_integers=len(cost) - 1, **gaps)
        except UnsolvedError:
            return [_all_on_most_freed(*each) for each in zip(self.layers, self.columns, strict=True)]
        if solution is None:
            raise AssertionError("an infeasible program in spite of its slack variable")
        counts = np.rint(solution.variables[:-1]).astype(np.int64)
        ends = np.cumsum([len(class_columns) for class_columns in self.columns])[:-1]
        return [part.tolist() for part in np.split(counts, ends)]

    def _linear_program(self, limits: np.ndarray) -> _MasterProgram:
        """Build the master problem: a variable for each column and one for missing bytes, in units of about 1."""
        entries = [
            (layer_class, cost)
            for layer_class, class_columns in enumerate(self.columns)
            for _, cost in class_columns.values()
        ]
        freed, recompute_ns, copy_ns, host = np.array([cost for _, cost in entries], float).T
        unit, unit_ns = max(1.0, freed.max()), max(1.0, recompute_ns.max())
        scale = np.array([unit, unit_ns, unit])
        limited = np.column_stack([np.stack([-freed, copy_ns, host]) / scale[:, None], [-1, 0, 0]])
        class_of = np.array([*(layer_class for layer_class, _ in entries), -1])
        is_of_class, sizes = class_of == np.arange(len(self.layers))[:, None], [len(layers) for layers in self.layers]
        return _MasterProgram(
            cost=np.append(recompute_ns / unit_ns, MISSING_FACTOR),
            rows=to_sparse_rows(np.vstack([limited, is_of_class])),
            row_lower=np.append(np.full(len(limits), -np.inf), sizes),
            row_upper=np.append(limits / scale, sizes),
            unit_ns=unit_ns,
            scale=scale,
        )

    def _add_columns(self, dual_prices: np.ndarray) -> bool:
        """Add the best columns at the given dual prices; return whether any was new."""
        classes = range(len(self.layers))
        return any([self._add(column) for each in classes for column in self._price_columns(each, dual_prices)])

    def _price_columns(self, layer_class: int, dual_prices: np.ndarray) -> Iterator[np.ndarray]:
        """Yield columns that may improve the solution.

        First the best one if its groups were independent, and without cells, which are not independent of what they
        contain; then, for the largest class, changes of one group of the best one known. Other classes differ little
        from it, and get its columns, too.
        """
        layer, costs = int(self.layers[layer_class][0]), self.costs
        prices = [_prices(costs, layer, group, dual_prices) for group in range(costs.num_groups)]
        alone = np.array([KEEP, *(min(options, key=options.__getitem__) for options in prices[1:])])
        yield alone
        if (costs.is_cell & (alone != KEEP)).any():
            yield np.where(costs.is_cell, KEEP, alone)
        if len(self.layers[layer_class]) < max(map(len, self.layers)):
            return
        # Under full recompute there is no decision to change.
        class_columns = [entry for entry in self.columns[layer_class].values() if entry[0][0] == KEEP]
        best, cost = min(class_columns, key=lambda entry: price_of(entry[1], dual_prices))
        changes = sorted(
            (price - options.get(int(best[group]), 0.0), group, value)
            for group, options in enumerate(prices[1:], 1)
            for value, price in options.items()
            if value != best[group]
        )
        is_better = False  # changes with the largest predicted gain come first
        for number, (_, group, value) in enumerate(changes[:MAX_CHANGES]):
            if is_better and number >= NUM_CHANGES:
                return
            changed = best.copy()
            changed[group] = value
            new_cost = self.stage_problem.assignment_cost(layer, changed)
            if price_of(new_cost, dual_prices) < price_of(cost, dual_prices):
                is_better = True
                yield changed

    def _add(self, column: np.ndarray) -> bool:
        """Add a column to every class, without impossible decisions; return whether it was new to any."""
        costs, is_new = self.costs, False
        is_possible = costs.is_possible(np.broadcast_to(column, (costs.num_layers, costs.num_groups)))
        for layers, class_columns in zip(self.layers, self.columns, strict=True):
            layer = int(layers[0])
            column_of_class = np.where(is_possible[layer], column, KEEP)
            if (key := column_of_class.tobytes()) not in class_columns:
                class_columns[key] = column_of_class, self.stage_problem.assignment_cost(layer, column_of_class)
                is_new = True
        return is_new


def _prices(costs: DecisionCosts, layer: int, group: int, dual_prices: np.ndarray) -> dict[int, float]:
    """Return the reduced cost in ns of each possible decision of a group alone: keep, swap, each recompute path."""
    prices = {KEEP: 0.0}
    for path_index in np.flatnonzero(costs.freed_bytes[layer, group] > 0).tolist():
        size, is_swap = int(costs.freed_bytes[layer, group, path_index]), not path_index
        recompute_ns, copy_ns = int(costs.recompute_ns[layer, group, path_index]), int(costs.copy_ns[layer, group])
        cost = AssignmentCost(size, recompute_ns, copy_ns * is_swap, size * is_swap)
        prices[-path_index or 1] = price_of(cost, dual_prices)
    return prices


def _all_on_most_freed(layers: np.ndarray, class_columns: dict[bytes, Entry]) -> list[int]:
    """Return the number of layers on each column of a class: all on the one that frees most, with the fewest copies."""
    costs = [cost for _, cost in class_columns.values()]
    best = max(range(len(costs)), key=lambda column: (costs[column].freed_bytes, -costs[column].copy_ns))
    return [len(layers) * (column == best) for column in range(len(costs))]


def price_of(cost: AssignmentCost, dual_prices: np.ndarray) -> float:
    """Return the reduced cost of a column in ns; `dual_prices` are those of memory, link and host."""
    memory, link, host = dual_prices.tolist()
    return cost.recompute_ns - memory * cost.freed_bytes + link * cost.copy_ns + host * cost.host_bytes


def interleaved(columns: Sequence[Entry]) -> list[Entry]:
    """Spread equal columns evenly over the layers, so that copies overlap layers with other columns.

    Of equally frequent columns the one with the longest copy time goes first, so that few copies remain at the end.
    """
    longest_first = sorted(columns, key=lambda entry: -entry[1].copy_ns)
    number = Counter(column.tobytes() for column, _ in longest_first)
    shift = {key: rank / max(1, len(number) - 1) for rank, key in enumerate(number)}
    seen: Counter[bytes] = Counter()
    placed = []
    for position, entry in enumerate(longest_first):
        key = entry[0].tobytes()
        placed.append(((seen[key] + shift[key]) / number[key], position, entry))
        seen[key] += 1
    return [entry for *_, entry in sorted(placed, key=lambda ranked: ranked[:2])]
