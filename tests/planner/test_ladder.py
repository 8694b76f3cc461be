"""The fixed budgets: by hand on the flow of `test_bound`."""

from mindswap.planner.bound import least_budget_bytes, least_step_ns
from mindswap.planner.ladder import NUM_FINE_RUNGS, Rung, knots_of, rungs_below
from mindswap.planner.problem import Allow
from tests.planner.test_bound import PLENTY, facts

RECOMPUTE = Allow(swap=False)


def test_memory_that_a_step_time_needs():
    """10 ns more make the first tensor of one layer again: 100 of 300 bytes."""
    assert least_budget_bytes(facts(), PLENTY, RECOMPUTE, 1010) == 200
    assert least_budget_bytes(facts(), PLENTY, RECOMPUTE, 1000) == 300


def test_knots_from_the_least_to_all():
    """All kept takes 300 bytes and 1000 ns; all made again 0 bytes and 1060 ns: three steps of 2 percent on the way."""
    knots = knots_of(facts(), PLENTY, RECOMPUTE, 1000, 300)
    assert knots[0] == 0
    assert knots[-1] == 300
    assert knots == tuple(sorted(set(knots)))
    # 1020 ns: both first tensors, 100 bytes are left. 1040.4: 20.4 ns of the 40 for the second ones free 51 of 100.
    assert knots[:-1] == (0, least_budget_bytes(facts(), PLENTY, RECOMPUTE, 1040), 100)
    assert least_step_ns(facts(), knots[1], PLENTY, RECOMPUTE) <= 1040


def test_one_knot_where_nothing_can_leave():
    assert knots_of(facts(), PLENTY, Allow(False, False), 1000, 300) == (300,)


def test_the_largest_rung_then_knots():
    """From 0 to 320 a rung is 10 bytes where only the closest is looked at: the third one above 0 is at 30."""
    assert list(rungs_below((0, 320, 640), 39)) == [Rung(30, 0, 3), Rung(0, 0, 0)]
    assert list(rungs_below((0, 320, 640), 319)) == [Rung(310, 0, NUM_FINE_RUNGS - 1), Rung(0, 0, 0)]
    assert list(rungs_below((0, 320, 640), 329)) == [Rung(320, 1, 0), Rung(0, 0, 0)]


def test_every_rung_where_all_are_looked_at():
    """Four times as wide: 40 bytes from one to the next."""
    assert list(rungs_below((0, 320, 640), 100, every=True)) == [Rung(80, 0, 2), Rung(40, 0, 1), Rung(0, 0, 0)]


def test_all_kept_is_the_highest_rung():
    assert next(rungs_below((0, 80), 1000)) == Rung(80, 1, 0)


def test_a_rung_is_within_a_budget_of_its_own_size():
    assert next(rungs_below((0, 320, 640), 30)) == Rung(30, 0, 3)
    assert next(rungs_below((0, 320, 640), 320)) == Rung(320, 1, 0)
