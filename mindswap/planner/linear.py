"""Linear programs, solved by HiGHS through `highspy`.

`scipy.optimize` has HiGHS, too, but takes half a second to import, and its `milp` prints to the terminal in some
solutions, whatever it is told (github.com/jump-dev/HiGHS.jl, issue 312).

Source:
    Huangfu and Hall, "Parallelizing the dual revised simplex method" (Mathematical Programming Computation, 2018).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np

# Sums of variables: for each, variable -> factor.
SparseRows = Sequence[Mapping[int, float]]
# Tried in order until one solves a program of real numbers: the default fails about once in thousands of programs.
METHODS = ("choose", "simplex", "ipm")


class UnsolvedError(Exception):
    """HiGHS finds neither a solution nor that there is none."""


@dataclass(frozen=True)
class Solution:
    """An optimal solution."""

    cost: float
    variables: np.ndarray  # shape (variables,)
    dual_prices: (
        np.ndarray
    )  # change of the cost for each further unit of a limit, shape (limits,); of real numbers only


def to_sparse_rows(table: np.ndarray) -> list[dict[int, float]]:
    """Convert a matrix of factors, shape (num_limits, num_variables), to sparse sums."""
    return [{int(at): float(row[at]) for at in np.flatnonzero(row)} for row in table]


def solve_linear(
    cost: np.ndarray,
    rows: SparseRows,
    row_upper: Sequence[float] | np.ndarray,
    *,
    row_lower: np.ndarray | None = None,
    variable_upper: Sequence[float] | None = None,
    num_integers: int = 0,
    **options: Any,
) -> Solution | None:
    """Minimize a linear cost over non-negative variables; return None if the program is infeasible.

    Args:
        cost: of a unit of each variable, shape (variables,).
        rows: that have limits.
        row_upper: of each sum.
        row_lower: of each sum; none by default.
        variable_upper: of each variable; none by default.
        num_integers: so many variables, the first, are whole numbers.
        options: of HiGHS.

    Raises:
        UnsolvedError: no method solves the program.
    """
    program, num_variables, num_rows = highspy.HighsLp(), len(cost), len(rows)
    program.num_col_, program.num_row_ = num_variables, num_rows
    program.col_cost_ = np.asarray(cost, float)
    program.col_lower_ = np.zeros(num_variables)
    program.col_upper_ = np.full(num_variables, np.inf) if variable_upper is None else np.array(variable_upper, float)
    program.row_lower_ = np.full(num_rows, -np.inf) if row_lower is None else row_lower
    program.row_upper_ = np.array(row_upper, float)
    program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    program.a_matrix_.start_ = np.cumsum([0, *map(len, rows)])
    program.a_matrix_.index_ = np.array([at for row in rows for at in row], np.int32)
    program.a_matrix_.value_ = np.array([factor for row in rows for factor in row.values()], float)
    if num_integers:
        variable_types = highspy.HighsVarType
        program.integrality_ = [variable_types.kInteger] * num_integers + [variable_types.kContinuous] * (
            num_variables - num_integers
        )
    for method in METHODS[: 1 if num_integers else None]:
        solver = highspy.Highs()
        for name, value in {"output_flag": False, "solver": method, **options}.items():
            solver.setOptionValue(name, value)
        solver.passModel(program)
        solver.run()
        if (status := solver.getModelStatus()) == highspy.HighsModelStatus.kInfeasible:
            return None
        info, solution = solver.getInfo(), solver.getSolution()
        is_feasible = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        if is_feasible and (num_integers or status == highspy.HighsModelStatus.kOptimal):
            return Solution(info.objective_function_value, np.array(solution.col_value), np.array(solution.row_dual))
    raise UnsolvedError
