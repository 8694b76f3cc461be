"""Copies laid over compute and communication, by hand."""

import pytest

from mindswap.training.proof.overlap import Overlap, measure_overlap


def test_a_copy_is_hidden_exposed_and_beside_communication():
    # Copy 0-100. Compute 0-30 and 20-40: 40 of it. Communication 35-60: 20 of it without compute. 40 are left.
    overlap = measure_overlap([(0, 100)], [(0, 30), (20, 40)], [(35, 60)], 4096)
    assert overlap == Overlap(1, 4096, copy_ns=100, hidden_ns=40, communication_ns=20, compute_ns=40)
    assert overlap.exposed_ns == 40
    assert overlap.hidden_permille == 400


def test_two_copies_at_once_count_both():
    # 10 and 20 ns, of which compute 5-15 covers 5 and 10.
    overlap = measure_overlap([(0, 10), (0, 20)], [(5, 15)], [])
    assert (overlap.copy_ns, overlap.hidden_ns, overlap.exposed_ns) == (30, 15, 15)


@pytest.mark.parametrize("compute", [[(0, 10)], [(20, 30)], []])
def test_compute_before_or_after_a_copy_hides_nothing(compute):
    assert measure_overlap([(10, 20)], compute, []).hidden_ns == 0


def test_without_copies_there_is_no_share():
    overlap = measure_overlap([], [(0, 10)], [])
    assert overlap.hidden_permille is None and overlap.compute_ns == 10
