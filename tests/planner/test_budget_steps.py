"""The fixed budgets: by hand on the flow of `test_bound`."""

from mindswap.planner.bound import least_budget_bytes, least_step_ns
from mindswap.planner.budget_steps import breakpoints_of, budgets_below, fixed_budgets
from mindswap.planner.problem import Allow
from tests.planner.test_bound import PLENTY, facts

RECOMPUTE = Allow(swap=False)


def test_memory_that_a_step_time_needs():
    """10 ns more make the first tensor of one layer again: 100 of 300 bytes."""
    assert least_budget_bytes(facts(), PLENTY, RECOMPUTE, 1010) == 200
    assert least_budget_bytes(facts(), PLENTY, RECOMPUTE, 1000) == 300


def test_breakpoints_from_the_least_to_all():
    """All kept takes 300 bytes and 1000 ns; all made again 0 bytes and 1060 ns: three steps of 2 percent on the way."""
    breakpoints = breakpoints_of(facts(), PLENTY, RECOMPUTE, 1000, 300)
    assert breakpoints[0] == 0
    assert breakpoints[-1] == 300
    assert breakpoints == tuple(sorted(set(breakpoints)))
    # 1020 ns: both first tensors, 100 bytes are left. 1040.4: 20.4 ns of the 40 for the second ones free 51 of 100.
    assert breakpoints[:-1] == (0, least_budget_bytes(facts(), PLENTY, RECOMPUTE, 1040), 100)
    assert least_step_ns(facts(), breakpoints[1], PLENTY, RECOMPUTE) <= 1040


def test_breakpoints_where_less_memory_costs_no_time():
    """Copies that backward hides free all 300 bytes: squares of 1/6 to 6/6 of them, closest at the low end."""
    breakpoints = breakpoints_of(facts(window_ns=PLENTY), PLENTY, Allow(), 1000, 300)
    assert breakpoints == (0, *(300 * step**2 // 36 for step in range(1, 7)))


def test_one_breakpoint_where_nothing_can_leave():
    assert breakpoints_of(facts(), PLENTY, Allow(False, False), 1000, 300) == (300,)


def test_the_largest_step_then_breakpoints():
    """From 0 to 320 a step is 10 bytes where only the closest is looked at: the third one above 0 is at 30."""
    assert list(budgets_below((0, 320, 640), 39)) == [30, 0]
    assert fixed_budgets((0, 320, 640)) == list(range(0, 641, 10))
    assert fixed_budgets((0, 320, 640), every=True) == list(range(0, 641, 40))
    assert list(budgets_below((0, 320, 640), 40)) == [40, 0]
    assert list(budgets_below((0, 320, 640), 319)) == [310, 0]
    assert list(budgets_below((0, 320, 640), 329)) == [320, 0]


def test_every_step_where_all_are_looked_at():
    """Four times as wide: 40 bytes from one to the next."""
    assert list(budgets_below((0, 320, 640), 100, every=True)) == [
        80,
        40,
        0,
    ]


def test_all_kept_is_the_highest_step():
    assert next(budgets_below((0, 80), 1000)) == 80


def test_a_step_is_within_a_budget_of_its_own_size():
    assert next(budgets_below((0, 320, 640), 30)) == 30
    assert next(budgets_below((0, 320, 640), 320)) == 320
