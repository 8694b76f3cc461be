"""The assignment of a stage for the layers of another one, by hand."""

import numpy as np

from mindswap.planner.stage_problem import KEEP, DecisionCosts
from mindswap.planner.stages import resample


def test_a_choice_for_other_layers():
    """Four layers of one stage to two of another: its first and its third; item 1 cannot be swapped there."""
    freed = np.zeros((2, 2, 2), np.int64)
    freed[:, :, 1] = 5
    freed[:, 0, 0] = 5
    costs = DecisionCosts(freed, np.zeros_like(freed), np.zeros((2, 2), np.int64))
    assignment = np.array([[4, 4], [5, 5], [6, -1], [7, 7]])
    assert resample(assignment, costs).tolist() == [[4, KEEP], [6, -1]]
