"""Distances that groups of layers have together, by hand."""

import numpy as np

from mindswap.planner.solver.distances import by_layer_assignment, uniform

# The third of five layers swaps nothing; distances that the copies of the others need.
CHOICE = np.array([[0, 5, 5], [0, 5, -1], [0, 0, -1], [0, 5, 0], [0, 5, 0]])
NEEDED = np.array([[0, 9, 7], [0, 8, 0], [0, 0, 0], [0, 3, 0], [0, 2, 0]])


def test_one_distance_for_all():
    assert uniform(CHOICE, NEEDED).tolist() == [[0, 9, 9], [0, 9, -1], [0, 0, -1], [0, 9, 0], [0, 9, 0]]
    still = np.minimum(CHOICE, 0)
    assert (uniform(still, NEEDED) == still).all()


def test_a_distance_is_at_least_one():
    assert uniform(CHOICE, NEEDED * 0).max() == 1


def test_one_distance_for_each_item_of_equal_rows():
    """Layers 3 and 4 are alike and need 3 and 2; layers 0 and 1 differ in what runs again."""
    expected = [[0, 9, 7], [0, 8, -1], [0, 0, -1], [0, 3, 0], [0, 3, 0]]
    assert by_layer_assignment(CHOICE, NEEDED).tolist() == expected
    assert by_layer_assignment(CHOICE, NEEDED * 0).max() == 1
