"""How many layers get which row, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from mindswap.planner.linear import UnsolvedError, solve_linear
from mindswap.planner.solver import column_generation
from mindswap.planner.solver.column_generation import MasterProblem, _prices, interleaved
from mindswap.planner.stage_problem import AssignmentCost
from tests.planner.builders import Tensor, ToySpace

# Two layers: 100 bytes that take 10 ns to make again, and 50 bytes that take 20 ns and cannot be swapped; a byte takes
# 1 ns on the link.
SPACE = ToySpace([[Tensor(100, 10, 30), Tensor(50, 20, 40, can_swap=False)]] * 2)
PLENTY = 10**9


def test_the_cheapest_bytes_run_again():
    assert MasterProblem(SPACE, SPACE.costs).solve(100, 0, PLENTY).tolist() == [[0, 0, 0], [0, -1, 0]]
    assert MasterProblem(SPACE, SPACE.costs).solve(200, 0, PLENTY).tolist() == [[0, -1, 0]] * 2
    assert MasterProblem(SPACE, SPACE.costs).solve(300, 0, PLENTY).tolist() == [[0, -1, -1]] * 2


def test_more_than_there_is_is_as_much_as_there_is():
    assert MasterProblem(SPACE, SPACE.costs).solve(1000, 0, PLENTY).tolist() == [[0, -1, -1]] * 2


def test_what_the_link_can_take_is_swapped_in_the_first_layers():
    assert MasterProblem(SPACE, SPACE.costs).solve(100, 100, PLENTY).tolist() == [[0, 1, 0], [0, 0, 0]]
    assert MasterProblem(SPACE, SPACE.costs).solve(200, 100, PLENTY).tolist() == [[0, 1, 0], [0, -1, 0]]


def test_no_swap_without_host_memory_or_where_it_is_excluded():
    assert (MasterProblem(SPACE, SPACE.costs).solve(100, 100, 0) <= 0).all()
    everywhere = np.ones((2, 3), bool)
    assert (MasterProblem(SPACE, SPACE.costs).without_swaps(everywhere).solve(100, 100, PLENTY) <= 0).all()


def test_rows_are_for_whole_layers():
    """150 of 300 bytes: halves of layers would do, but one tensor of each size in a layer is 150 exactly, in 30 ns.

    Two layers with the first tensor alone take 20 ns, and are 200 bytes: less time, so they are chosen.
    """
    assert MasterProblem(SPACE, SPACE.costs).solve(150, 0, PLENTY).tolist() == [[0, -1, 0]] * 2


def test_without_a_solution_in_whole_numbers_all_layers_free_most(monkeypatch):
    def give_up(*args, num_integers=0, **options):
        if num_integers:
            raise UnsolvedError
        return solve_linear(*args, **options)

    monkeypatch.setattr(column_generation, "solve_linear", give_up)
    assert MasterProblem(SPACE, SPACE.costs).solve(200, 0, PLENTY).tolist() == [[0, -1, -1]] * 2
    # 100 bytes of each layer leave by swap alone: of 100 on the link and on the host, both layers take 200.
    space = ToySpace([[Tensor(100, 10, 30, can_recompute=False), Tensor(50, 20, 40, can_swap=False)]] * 2)
    assert MasterProblem(space, space.costs).solve(200, 100, 100).tolist() == [[0, 1, -1]] * 2
    monkeypatch.undo()
    assert MasterProblem(space, space.costs).solve(200, 100, 100).tolist() == [[0, 1, -1], [0, 0, -1]]


def test_what_more_time_on_the_link_would_save():
    """100 bytes in 10 ns of compute or 100 ns of the link: a tenth."""
    master = MasterProblem(SPACE, SPACE.costs)
    master.solve(200, 50, PLENTY)
    assert master._solve(np.array([-200.0, 50, PLENTY]))[0][1] == pytest.approx(0.1)
    assert master._solve(np.array([0.0, 50, PLENTY]))[0][1] == 0


def test_equal_columns_are_spread():
    """Two layers of A with 30 ns on the link, four of B with 10 ns.

    In parts of their number A, the longer one, is at 0 and 1/2, B at 1/4, 1/2, 3/4 and 1.
    """
    a, b = ((np.array([value]), AssignmentCost(0, 0, link_ns, 0)) for value, link_ns in ((1, 30), (0, 10)))
    columns = [b, a, b, b, a, b]
    assert [int(column[0]) for column, _ in interleaved(columns)] == [1, 0, 1, 0, 0, 0]
    assert MasterProblem(SPACE, SPACE.costs).solve(200, 100, PLENTY).tolist() == [[0, 1, 0], [0, -1, 0]]


class Faulty(ToySpace):
    """Beside recompute of the second tensor swap of the first would copy for nothing: only the row itself shows it."""

    def effective(self, layer, column):
        return np.where([False, column[2] < 0, False], np.minimum(column, 0), column)


def test_a_row_that_is_used_becomes_what_its_policy_says():
    """Of 300 bytes both layers free 100 by swap and 50 again, as it seems; without these swaps all runs again."""
    stage_problem = Faulty([[Tensor(100, 10, 30), Tensor(50, 20, 40, can_swap=False)]] * 2)
    assert MasterProblem(SPACE, SPACE.costs).solve(300, 200, PLENTY).tolist() == [[0, 1, -1]] * 2
    found = MasterProblem(stage_problem, stage_problem.costs).solve(300, 200, PLENTY)
    assert found.tolist() == [[0, -1, -1]] * 2


def test_no_further_rows_where_what_runs_again_is_little_enough():
    """150 bytes: both tensors of a layer take 30 ns, which are known first; the first one of both layers 20."""
    assert MasterProblem(SPACE, SPACE.costs, enough_ns=30).solve(150, 0, PLENTY).tolist() == [[0, 0, 0], [0, -1, -1]]
    assert MasterProblem(SPACE, SPACE.costs, enough_ns=29).solve(150, 0, PLENTY).tolist() == [[0, -1, 0]] * 2


def test_changes_of_the_best_row_that_make_it_better_come_by_what_they_promise():
    """A byte is worth 1 ns, a ns on the link 0.8: again items 1 and 2 save 5 and 30 ns, by swap 20 and 40.

    Item 3 saves what it costs to make it again.
    """
    stage_problem = ToySpace([[Tensor(100, 95, 1), Tensor(200, 170, 1), Tensor(10, 10, 1, can_swap=False)]])
    master = MasterProblem(stage_problem, stage_problem.costs)
    master._add(np.array([0, -1, -1, 0]))
    found = [column.tolist() for column in master._price_columns(0, np.array([1, 0.8, 0]))]
    assert found == [[0, 1, 1, 0], [0, 1, -1, 0], [0, -1, 1, 0]]


def test_the_best_row_is_tried_without_cells_too():
    """Item 2 is a cell, with item 1 in it: a byte is worth 1 ns, so alone each is worth it."""
    stage_problem = ToySpace([[Tensor(100, 10, 1, can_swap=False), Tensor(150, 20, 1, can_swap=False)]])
    stage_problem.costs = replace(stage_problem.costs, is_cell=np.array([True, False, True]))
    first, second, *_ = MasterProblem(stage_problem, stage_problem.costs)._price_columns(0, np.array([1.0, 0, 0]))
    assert (first.tolist(), second.tolist()) == ([0, -1, -1], [0, -1, 0])
    dear = [
        column.tolist()
        for column in MasterProblem(stage_problem, stage_problem.costs)._price_columns(0, np.array([0.11, 0, 0]))
    ]
    assert dear[0] == [0, -1, 0] and dear.count([0, -1, 0]) == 2  # not once more, but as a change of the empty row


def test_what_may_become_of_a_tensor():
    """Of one byte, which can be swapped and run again, or one of it; a byte is worth 3 ns, one on the link 1."""
    tensors = [Tensor(1, 1, 1), Tensor(1, 1, 1, can_swap=False), Tensor(1, 1, 1, can_recompute=False)]
    costs, dual_prices = ToySpace([tensors]).costs, np.array([3.0, 1.0, 0.0])
    found = [_prices(costs, 0, group, dual_prices) for group in range(4)]
    assert found == [{0: 0}, {0: 0, 1: -2, -1: -2}, {0: 0, -1: -2}, {0: 0, 1: -2}]
