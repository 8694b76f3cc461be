"""Column generation: decide how many layers use each layer assignment, minimizing recompute time.

A column is an assignment of one layer with its cost. A small linear program (the master problem) decides how many
layers use each column, subject to three limits: bytes to free, copy time and host memory. So an optimal solution uses
about three different columns for each class of equal layers. The dual prices of the limits show which new columns could
improve it; these are added until none does.

Source:
    Gilmore and Gomory, "A linear programming approach to the cutting-stock problem" (Operations Research, 1961).
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from mindswap.planner.linear import METHODS, UnsolvedError, solve_linear, to_sparse_rows
from mindswap.planner.solver.columns import DualPrices, Entry, group_price, interleaved, options_of, price_of
from mindswap.planner.stage_problem import KEEP, StageProblem

# Cost of a missing byte relative to the largest cost of a column.
MISSING_FACTOR = 100
# Changes of the best column evaluated in each round: at least NUM_CHANGES, more until one is better.
NUM_CHANGES = 4
MAX_CHANGES = 24
# Branch and bound for integer numbers of layers: node limit and optimality gap.
MAX_NODES = 20
# relative, and absolute in units of the largest recompute time of a column
INTEGER_GAP = 1e-2


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
        stage_problem: decisions of the layers and their costs.
        allows_full_recompute: whether layers may be recomputed as a whole.
        enough_ns: recompute time of all layers below which no further columns are added.
        unswappable: bool, shape (num_layers, num_groups): groups that are not swapped, because their copies would be on
            the device at the peak; None for none.
        columns: initial columns, each int64 of shape (num_groups,).
    """

    def __init__(
        self,
        stage_problem: StageProblem,
        allows_full_recompute: bool = True,
        enough_ns: float = 0,
        unswappable: np.ndarray | None = None,
        columns: Iterable[np.ndarray] = (),
    ):
        self.stage_problem = stage_problem
        self.allows_full_recompute = allows_full_recompute
        self.enough_ns = enough_ns
        costs = stage_problem.costs
        self.unswappable = np.zeros((costs.num_layers, costs.num_groups), bool) if unswappable is None else unswappable
        tables = (costs.freed_bytes, costs.recompute_ns, costs.copy_ns, costs.all_conflicts, self.unswappable)
        signatures = np.concatenate([table.reshape(costs.num_layers, -1) for table in tables], axis=1)
        _, first, class_of = np.unique(signatures, axis=0, return_index=True, return_inverse=True)
        self.layers = [np.flatnonzero(class_of.ravel() == layer_class) for layer_class in range(len(first))]
        self.columns: list[dict[bytes, Entry]] = [{} for _ in self.layers]
        self._solved_program = ""  # the program that `_solved_counts` solves
        self._solved_counts: list[list[int]] = []
        full_recompute = np.zeros(costs.num_groups, np.int64)
        full_recompute[0] = -1 if allows_full_recompute else KEEP
        for column in (np.zeros(costs.num_groups, np.int64), full_recompute, *columns):
            self._add(column)

    def with_unswappable(self, unswappable: np.ndarray) -> "MasterProblem":
        """Return a copy that excludes swaps; it starts from the known columns.

        A group that is excluded in one layer is excluded in all of them: otherwise each pattern of exclusions would
        make a class of its own.
        """
        excluded = np.logical_and.outer(unswappable.any(axis=1), unswappable.any(axis=0))
        columns = [column for class_columns in self.columns for column, _ in class_columns.values()]
        return MasterProblem(self.stage_problem, self.allows_full_recompute, self.enough_ns, excluded, columns)

    def solve(self, freed_bytes: int, copy_ns: float, host_bytes: float) -> np.ndarray:
        """Return the assignment of least recompute time that frees the given bytes; swaps have distance 1.

        Args:
            freed_bytes: bytes to free; if so much cannot be freed, the maximum is.
            copy_ns: limit of the copy time.
            host_bytes: limit of the host memory.
        """
        limits = np.array([-freed_bytes, copy_ns, host_bytes], float)
        counts = self._generate_columns(limits)
        assignment = np.zeros((self.stage_problem.costs.num_layers, self.stage_problem.costs.num_groups), np.int64)
        for layers, class_columns, class_counts in zip(self.layers, self.columns, counts, strict=True):
            entries = [
                entry for entry, number in zip(class_columns.values(), class_counts, strict=True) for _ in range(number)
            ]
            for layer, (column, _) in zip(layers, interleaved(entries), strict=True):
                assignment[layer] = column
        return assignment

    def _generate_columns(self, limits: np.ndarray) -> list[list[int]]:
        """Add columns while they improve the solution; return the number of layers of each column by class."""
        dual_prices, recompute_ns = self._solve(limits)
        while recompute_ns > self.enough_ns and self._add_columns(dual_prices):
            dual_prices, recompute_ns = self._solve(limits)
        while self._make_effective(counts := self._solve_counts(limits)):
            pass
        return counts

    def _make_effective(self, counts: list[list[int]]) -> bool:
        """Replace used columns by their effective form, which is slow to compute; return whether any changed."""
        is_changed = False
        for layers, class_columns, class_counts in zip(self.layers, self.columns, counts, strict=True):
            for (key, (column, _)), number in zip(list(class_columns.items()), class_counts, strict=True):
                effective = self.stage_problem.effective(int(layers[0]), column) if number else column
                if not np.array_equal(effective, column):
                    class_columns[key], is_changed = (
                        (effective, self.stage_problem.assignment_cost(int(layers[0]), effective)),
                        True,
                    )
        return is_changed

    def _solve(self, limits: np.ndarray) -> tuple[DualPrices, float]:
        """Solve the linear relaxation; return the dual prices of the limits and the recompute time in ns."""
        cost, sums, row_lower, row_upper, unit_ns, scale = self._linear_program(limits)
        for method in METHODS:
            with contextlib.suppress(UnsolvedError):
                solution = solve_linear(cost, sums, row_upper, row_lower=row_lower, solver=method)
                if solution is None:  # missing bytes are a variable, so a solution always exists
                    raise AssertionError("an infeasible program in spite of its slack variable")
                return -solution.dual_prices[: len(limits)] * unit_ns / scale, solution.cost * unit_ns
        return np.zeros(len(limits)), 0.0  # no dual prices, so no further columns are added

    def _solve_counts(self, limits: np.ndarray) -> list[list[int]]:
        """Return how many layers of each class use each known column (integers)."""
        cost, sums, row_lower, row_upper, *_ = self._linear_program(limits)
        program_text = repr((cost.tolist(), sums, row_lower.tolist(), row_upper.tolist()))
        if program_text != self._solved_program:  # consecutive programs are mostly equal
            self._solved_program = program_text
            self._solved_counts = self._solve_integer(cost, sums, row_lower, row_upper)
        return self._solved_counts

    def _solve_integer(
        self, cost: np.ndarray, sums: list[dict[int, float]], row_lower: np.ndarray, row_upper: np.ndarray
    ) -> list[list[int]]:
        """Solve a program of `_linear_program` in integers."""
        steps: dict[str, Any] = {"mip_max_nodes": MAX_NODES, "mip_rel_gap": INTEGER_GAP, "mip_abs_gap": INTEGER_GAP}
        try:
            solution = solve_linear(cost, sums, row_upper, row_lower=row_lower, num_integers=len(cost) - 1, **steps)
        except UnsolvedError:  # the limit of nodes was reached before any solution was found
            solution = solve_linear(cost, sums, row_upper, row_lower=row_lower, num_integers=len(cost) - 1)
        if solution is None:
            raise AssertionError("an infeasible program in spite of its slack variable")
        counts = np.rint(solution.variables[:-1]).astype(np.int64)
        ends = np.cumsum([len(class_columns) for class_columns in self.columns])[:-1]
        return [part.tolist() for part in np.split(counts, ends)]

    def _linear_program(self, limits: np.ndarray) -> _MasterProgram:
        """Build the master problem: a variable for each column and one for missing bytes, in units of about 1."""
        entries = [
            (layer_class, assignment_cost)
            for layer_class, class_columns in enumerate(self.columns)
            for _, assignment_cost in class_columns.values()
        ]
        table = np.array([(w.recompute_ns, w.freed_bytes, w.copy_ns, w.host_bytes) for _, w in entries], float)
        recompute_ns, freed, copy_ns, host = table.T
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

    def _add_columns(self, dual_prices: DualPrices) -> bool:
        """Add the best columns at the given dual prices; return whether any was new."""
        is_new = False
        for layer_class in range(len(self.layers)):
            for column in self._price_columns(layer_class, dual_prices):
                is_new |= self._add(column)
        return is_new

    def _price_columns(self, layer_class: int, dual_prices: DualPrices) -> Iterator[np.ndarray]:
        """Yield columns that may improve the solution.

        First the best one if its groups were independent, and without cells, which are not independent of what they
        contain; then, for the largest class, changes of one group of the best one known. Other classes differ little
        from it, and get its columns, too.
        """
        layer, costs = int(self.layers[layer_class][0]), self.stage_problem.costs
        ranked = [
            sorted(
                options_of(costs, layer, group, self.unswappable[layer, group]),
                key=lambda value, group=group: group_price(costs, layer, group, value, dual_prices),  # type: ignore[misc]
            )
            for group in range(1, costs.num_groups)
        ]
        alone = np.array([KEEP, *(values[0] for values in ranked)])
        yield alone
        if (costs.is_cell & (alone != KEEP)).any():
            yield np.where(costs.is_cell, KEEP, alone)
        if len(self.layers[layer_class]) < max(map(len, self.layers)):
            return
        # Under full recompute there is no decision to change.
        class_columns = [entry for entry in self.columns[layer_class].values() if entry[0][0] == KEEP]
        best, assignment_cost = min(class_columns, key=lambda entry: price_of(entry[1], dual_prices))
        changes = []
        for group, values in enumerate(ranked, 1):
            own_ns = group_price(costs, layer, group, int(best[group]), dual_prices)
            changes += [
                (group_price(costs, layer, group, value, dual_prices) - own_ns, group, value)
                for value in values
                if value != best[group]
            ]
        is_better = False  # changes with the largest predicted gain come first
        for number, (_, group, value) in enumerate(sorted(changes)[:MAX_CHANGES]):
            if is_better and number >= NUM_CHANGES:
                return
            changed = best.copy()
            changed[group] = value
            if price_of(self.stage_problem.assignment_cost(layer, changed), dual_prices) < price_of(
                assignment_cost, dual_prices
            ):
                is_better = True
                yield changed

    def _add(self, column: np.ndarray) -> bool:
        """Add a column to every class, without impossible decisions; return whether it was new to any."""
        costs, is_new = self.stage_problem.costs, False
        for layers, class_columns in zip(self.layers, self.columns, strict=True):
            layer = int(layers[0])
            options = [
                options_of(costs, layer, group, self.unswappable[layer, group]) for group in range(costs.num_groups)
            ]
            is_possible = [value in values for value, values in zip(column.tolist(), options, strict=True)]
            column_of_class = np.where(is_possible, column, KEEP)
            if column_of_class.tobytes() not in class_columns:
                class_columns[column_of_class.tobytes()] = (
                    column_of_class,
                    self.stage_problem.assignment_cost(layer, column_of_class),
                )
                is_new = True
        return is_new
