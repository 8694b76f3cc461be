"""Mixes of two choices, by hand."""

import numpy as np
import pytest

from mindswap.planner.stage_problem import KEEP, DecisionCosts, Score
from mindswap.planner.stages import best_mix, mixed, orders_of, resample

LEAN, RICH = np.full((4, 1), -1), np.full((4, 1), KEEP)


def score(assignment, budget_bytes: int) -> Score:
    """Each layer that is kept takes 10 bytes, each that runs again 3 ns on top of 100 ns."""
    peak_bytes = 10 * int((assignment == KEEP).sum())
    step_ns = 100 + 3 * int((assignment < KEEP).sum())
    return Score(max(0, peak_bytes - budget_bytes), step_ns, step_ns, peak_bytes)


def test_some_layers_of_each():
    assert mixed(LEAN, RICH, [0, 3]).ravel().tolist() == [-1, 0, 0, -1]


def test_as_few_lean_layers_as_fit():
    """25 bytes hold two layers, so two run again: 106 ns."""
    found, assignment = best_mix(lambda assignment: score(assignment, 25), [LEAN, RICH], [range(4), range(3, -1, -1)])
    assert (found.step_time_ns, found.peak_bytes) == (106, 20)
    assert assignment.ravel().tolist() == [-1, -1, 0, 0]  # of equal ones the first


@pytest.mark.parametrize(("budget_bytes", "step_ns"), [(39, 103), (30, 103), (29, 106), (10, 109), (9, 112)])
def test_halving_finds_the_number_of_layers(budget_bytes, step_ns):
    """10 bytes for each layer that is kept, 3 ns for each of the others."""
    found, _ = best_mix(lambda assignment: score(assignment, budget_bytes), [LEAN, RICH], [range(4)])
    assert found.step_time_ns == step_ns


def test_what_fits_is_not_mixed():
    assert best_mix(lambda assignment: score(assignment, 40), [LEAN, RICH], [range(4)])[0].step_time_ns == 100


def test_nothing_fits():
    found, assignment = best_mix(lambda assignment: score(assignment, -5), [RICH, LEAN], [range(4)])
    assert found.excess_bytes == 5
    assert (assignment == LEAN).all()


def test_orders_go_through_the_stages_in_turn():
    stages = [[0, 1], [2, 3, 4]]
    assert orders_of(stages) == [[0, 2, 1, 3, 4], [1, 4, 0, 3, 2]]
    assert orders_of(stages, [1, 7])[2] == [2, 3, 4, 0, 1]  # the fuller one first
    assert orders_of([[0, 1]], [5]) == [[0, 1], [1, 0]]


def test_a_choice_for_other_layers():
    """Four layers of one stage to two of another: its first and its third; item 1 cannot be swapped there."""
    freed = np.zeros((2, 2, 2), np.int64)
    freed[:, :, 1] = 5
    freed[:, 0, 0] = 5
    costs = DecisionCosts(freed, np.zeros_like(freed), np.zeros((2, 2), np.int64))
    assignment = np.array([[4, 4], [5, 5], [6, -1], [7, 7]])
    assert resample(assignment, costs).tolist() == [[4, KEEP], [6, -1]]
