"""Linear programmes with HiGHS, by hand."""

import numpy as np
import pytest

from mindswap.planner.linear import METHODS, UnsolvedError, solve_linear, to_sparse_rows


def test_whole_numbers_at_the_least_cost(capfd):
    """Two kinds of rows for 5 layers, at least 12 freed: 3 of the dear one (4 each) cost 9, with 2 of the cheap one.

    The solver prints nothing.
    """
    cost = np.array([3.0, 0.0, 100.0])  # the last is what is missing
    sums = to_sparse_rows(np.array([[-4.0, 0.0, -1.0], [1.0, 1.0, 0.0]]))
    found = solve_linear(cost, sums, [-12.0, 5], row_lower=np.array([-np.inf, 5]), num_integers=2)
    assert found.variables.round(6).tolist() == [3, 2, 0]
    assert found.cost == pytest.approx(9)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("method", METHODS)
def test_real_numbers_with_the_price_of_a_limit(method):
    """At least 10 of two, of which the cheap one goes up to 4: six of the dear one at 3 each, and one more for 3."""
    found = solve_linear(
        np.array([1.0, 3.0]), [{0: -1, 1: -1}, {}], [-10, 0], variable_upper=[4, np.inf], solver=method
    )
    assert found.variables.round(6).tolist() == [4, 6]
    assert found.cost == pytest.approx(22)
    assert found.dual_prices.round(6).tolist() == [-3, 0]


@pytest.mark.parametrize("num_integers", [0, 1])
def test_numbers_that_cannot_be_are_none(num_integers):
    assert solve_linear(np.ones(2), [{0: 1}], [2.0], row_lower=np.array([3.0]), num_integers=num_integers) is None


def test_no_answer_is_an_error():
    """Nothing is the least where a cost may fall for ever."""
    with pytest.raises(UnsolvedError):
        solve_linear(np.array([-1.0]), [{0: -1.0}], [0.0])
