"""Distances in groups of layers, by hand."""

import numpy as np

from mindswap.planner.solver.distances import piecewise

# The third of five layers swaps nothing; distances that the copies of the others need.
CHOICE = np.array([[0, 5, 5], [0, 5, -1], [0, 0, -1], [0, 5, 0], [0, 5, 0]])
NEEDED = np.array([[0, 9, 7], [0, 8, 0], [0, 0, 0], [0, 3, 0], [0, 2, 0]])


def test_one_distance_for_all():
    assert piecewise(CHOICE, NEEDED, 1).tolist() == [[0, 9, 9], [0, 9, -1], [0, 0, -1], [0, 9, 0], [0, 9, 0]]


def test_two_pieces_of_equally_many_layers():
    """9 and 8 under 9, 3 and 2 under 3."""
    assert piecewise(CHOICE, NEEDED, 2).tolist() == [[0, 9, 9], [0, 9, -1], [0, 0, -1], [0, 3, 0], [0, 3, 0]]


def test_more_groups_than_layers_and_no_swap():
    assert piecewise(CHOICE, NEEDED, 9)[:, 1].tolist() == [9, 8, 0, 3, 2]
    still = np.minimum(CHOICE, 0)
    assert (piecewise(still, NEEDED, 4) == still).all()


def test_a_distance_is_at_least_one():
    assert piecewise(CHOICE, NEEDED * 0, 1).max() == 1
