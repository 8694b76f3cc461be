"""Live bytes and values of the step of `steps`, and what is seen if memory goes too early or comes too late."""

from dataclasses import replace

import numpy as np
import pytest

from mindswap.errors import GraphError
from tests.executed.compare import compare_runs, make_reference
from tests.executed.run import run_step
from tests.executed.steps import ONES, code_of, kernels, swapped_graph
from tests.executed.timetable import make_timetable

KIB = 1024
# While each operator runs: a; a b; a b c; a c d; c g0; g0 g1; g1 g2 and a again; g2 a. The gradient does not count.
CURVE = [1 * KIB, 2 * KIB, 3 * KIB, 3 * KIB, 2 * KIB, 2 * KIB, 3 * KIB, 2 * KIB]


def run(change=lambda timetable: timetable):
    step = swapped_graph(prefetch=1)
    timetable = change(make_timetable(step, ["g3"]))
    return timetable, run_step(step, code_of(step), timetable, {"input": ONES}, kernels)


def moved(lists, what, by):
    """The lists with one entry at another operator."""
    (old,) = (i for i, entries in enumerate(lists) if what in entries)
    new = [tuple(entry for entry in entries if entry != what) for entries in lists]
    new[old + by] = (*new[old + by], what)
    return tuple(new)


def test_the_step_as_it_should_be():
    _, executed = run()
    assert list(executed.curve_bytes) == CURVE
    assert [gradient.tolist() for gradient in executed.gradients] == [[66.0] * 256]
    assert executed.loss.tolist() == [16.0] * 256
    assert executed.misreads == ()
    assert executed.offloaded_bytes == KIB


def test_memory_given_back_one_operator_too_early_spoils_the_gradient_and_names_the_reader():
    _, good = run()
    _, executed = run(lambda t: replace(t, releases=moved(t.releases, "c#0", -1)))
    different, is_loss_equal, is_finite = compare_runs(executed, make_reference(["w"], good))
    assert (different, is_loss_equal, is_finite) == (("w",), True, False)
    (misread,) = executed.misreads
    assert (misread.reader.name, misread.position, misread.buffer, misread.was_taken) == ("g0", 4, "c#0", True)


def test_a_copied_tensor_released_too_early_is_poison_for_forward():
    _, executed = run(lambda t: replace(t, releases=moved(t.releases, "a#0", -3)))
    assert [misread.reader.name for misread in executed.misreads] == ["b"]
    assert np.isnan(executed.loss).all()


def test_a_copy_that_comes_back_after_its_first_user_is_seen():
    # One operator later it is just in time and only the curve tells; two later it is too late.
    def later(by):
        def change(timetable):
            (fetch,) = (fetch for at in timetable.fetches for fetch in at)
            at = [*timetable.fetches, ()]
            at[6], at[6 + by] = (), (fetch,)
            return replace(timetable, fetches=tuple(at))

        return change

    _, executed = run(later(1))
    assert executed.misreads == ()
    assert (executed.curve_bytes[6], CURVE[6]) == (2048, 3072)
    _, executed = run(later(2))
    (misread,) = executed.misreads
    assert (misread.reader.name, misread.was_taken) == ("g3", False)
    assert np.isnan(executed.gradients[0]).all()


def test_a_release_one_operator_late_shows_in_the_curve():
    _, executed = run(lambda t: replace(t, releases=moved(t.releases, "b#0", 1)))
    assert [i for i, (own, other) in enumerate(zip(executed.curve_bytes, CURVE, strict=True)) if own != other] == [3]


def test_a_gradient_that_differs_in_its_last_bit_is_seen():
    _, good = run()
    other = np.nextafter(good.gradients[0], np.float32(0))
    assert compare_runs(replace(good, gradients=(other,)), make_reference(["w"], good)) == (("w",), True, True)
    assert compare_runs(good, make_reference(["w"], good)) == ((), True, True)


def test_memory_is_counted_in_pieces_of_the_pool():
    # Every tensor has 1 KiB, so in pieces of 1536 bytes it takes one, half as much again.
    step = swapped_graph(prefetch=1)
    executed = run_step(step, code_of(step), make_timetable(step, ["g3"]), {"input": ONES}, kernels, 1536)
    assert list(executed.curve_bytes) == [size * 3 // 2 for size in CURVE]


def test_an_operator_before_what_it_reads_is_an_error():
    step = swapped_graph()
    timetable = make_timetable(step, ["g3"])
    operators = (timetable.operators[1], timetable.operators[0], *timetable.operators[2:])
    with pytest.raises(GraphError, match=r"operator 0 \(mlp Double\) reads Double a, which has not run yet"):
        run_step(step, code_of(step), replace(timetable, operators=operators), {"input": ONES}, kernels)
