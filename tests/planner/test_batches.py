import pytest

from mindswap.errors import PlanError
from mindswap.planner.strategies import Batch, list_batches, pareto_front

FIELDS = ("size", "count")


def test_a_step_keeps_its_samples_and_the_own_batch_comes_first():
    found = list_batches(Batch(4, 3), None, None, True)
    assert found[0] == Batch(4, 3)
    assert set(found) == {Batch(1, 12), Batch(2, 6), Batch(3, 4), Batch(4, 3), Batch(6, 2), Batch(12, 1)}
    assert list_batches(Batch(4, 3), (2, 6), None, True) == (Batch(6, 2), Batch(2, 6))
    assert list_batches(Batch(4, 3), None, (6,), True) == (Batch(2, 6),)
    assert list_batches(Batch(4, 3), (2,), (3,), True) == ()


def test_what_does_not_divide_is_an_error_with_what_does():
    with pytest.raises(PlanError) as error:
        list_batches(Batch(4, 3), (5, 2), (8,), True)
    text = str(error.value)
    assert text.startswith("5, 8: does not divide the 12 samples") and "allowed: 1, 2, 3, 4, 6, 12" in text


def test_without_a_global_batch_to_keep_all_pairs_come_into_question():
    assert set(list_batches(Batch(2, 4), (1, 5), (7,), False)) == {Batch(1, 7), Batch(5, 7)}
    sizes = {one.size for one in list_batches(Batch(2, 4), None, (4,), False)}
    assert sizes == {1, 2, 4, 8}


def test_larger_micro_batches_come_first_behind_the_own_batch():
    found = list_batches(Batch(3, 4), None, None, True)
    assert found == (Batch(3, 4), Batch(12, 1), Batch(6, 2), Batch(4, 3), Batch(2, 6), Batch(1, 12))
    # Not to keep the samples: up to 4 times as many, or a quarter, and at least one.
    sizes, counts = ({getattr(one, name) for one in list_batches(Batch(3, 8), None, None, False)} for name in FIELDS)
    assert (sizes, counts) == ({1, 3, 6, 12}, {2, 4, 8, 16, 32})


def test_the_front_has_what_nothing_else_beats():
    # The second is slower than the first in more memory, the last as fast as the third in more.
    assert pareto_front([(10.0, 100), (9.0, 120), (5.0, 50), (5.0, 60)]) == (True, False, True, False)
    assert pareto_front([(5.0, 50), (5.0, 50)]) == (True, True)
    assert pareto_front([(5.0, 50), (6.0, 50)]) == (False, True)  # as much memory, but faster
