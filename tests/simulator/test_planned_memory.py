"""Addresses that MindSpore plans before a step, worked out by hand."""

import numpy as np
import pytest

from mindswap.simulator.planned_memory import plan_addresses


def plan(*tensors, is_best_fit=True):
    """Size of the plan of tensors (begin, end, bytes), in the order in which they get addresses."""
    begin, end, size_bytes = np.array(tensors).T
    return plan_addresses(np.array((begin, end)), size_bytes, is_best_fit)


def test_tensors_share_addresses_if_one_ends_before_the_other_begins():
    assert plan((0, 2, 4), (2, 4, 4)) == 4
    assert plan((0, 3, 4), (2, 4, 4)) == 8


def test_a_small_tensor_fits_below_a_large_one_only_in_a_gap():
    assert plan((0, 4, 8), (0, 4, 4), (0, 4, 2)) == 14
    # 8 at 0 to 8, 6 at 8 to 14, 4 at 0 to 4 when 8 has gone, 2 next to it
    assert plan((0, 2, 8), (0, 4, 6), (2, 4, 4), (2, 4, 2)) == 14


@pytest.mark.parametrize(("is_best_fit", "size"), [(True, 24), (False, 32)])
def test_the_best_gap_keeps_the_large_one(is_best_fit, size):
    # At the end two gaps are left: 8 at the address 0, and 5 at 11 to 16; then tensors of 5 and of 8.
    tensors = [(0, 2, 8), (0, 9, 3), (0, 2, 5), (0, 9, 8), (2, 9, 5), (2, 9, 8)]
    assert plan(*tensors, is_best_fit=is_best_fit) == size


def test_a_plan_may_need_more_than_is_live_at_any_time():
    # Live are at most 6 + 3. 6 is at 0 to 6, 5 at 0 to 5, 3 at 6 to 9: 2 finds one byte between 5 and 3, so it is at 9.
    tensors = [(0, 1, 6), (4, 5, 5), (0, 4, 3), (3, 6, 2)]
    assert plan(*tensors) == plan(*tensors, is_best_fit=False) == 11
