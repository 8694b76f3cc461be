from mindswap.runtime.attempt.corrections import correct
from mindswap.runtime.attempt.model import Attempt, Corrections, Outcome, TrainingPlan

MS = 1_000_000


def attempt(predicted_ms, exposed_ms, measured_ms, peaks=(100, None), corrections=None, outcome=Outcome.FINISHED):
    corrections = corrections or Corrections()
    plan = TrainingPlan("k", "", 0, peaks[0], predicted_ms * MS, exposed_ms * MS, corrections)
    return Attempt(1, plan, outcome=outcome, measured_peak_bytes=peaks[1], measured_step_ns=measured_ms * MS)


def test_without_measurements_nothing_changes():
    old = Corrections(5, 900, 800)
    assert correct(old, []) == old


def test_the_offset_is_what_was_measured_beyond_the_model():
    """100 predicted with an offset of 30, so 70 by the model itself; 95 measured: 25."""
    found = correct(Corrections(30), [attempt(0, 0, 0, (100, 95), Corrections(30))])
    assert found.static_offset_bytes == 25


def test_one_attempt_that_exposes_copies_slows_both_alike():
    """10 ms predicted, 20 measured: half the speed."""
    assert correct(Corrections(), [attempt(10, 4, 20)]) == Corrections(0, 500, 500)


def test_without_exposed_copies_the_link_keeps_its_own():
    assert correct(Corrections(0, 1000, 700), [attempt(10, 0, 8)]) == Corrections(0, 1250, 700)


def test_two_attempts_tell_compute_from_copies():
    """Compute takes 2 x, copies 4 x as long: 10 + 0 -> 20; 10 + 5 -> 20 + 20."""
    found = correct(Corrections(), [attempt(10, 0, 20), attempt(15, 5, 40)])
    assert found == Corrections(0, 500, 250)


def test_corrections_that_were_in_the_prediction_do_not_count_twice():
    """20 ms predicted at half speed, 20 measured: still half speed."""
    half = Corrections(0, 500, 500)
    assert correct(half, [attempt(20, 0, 20, corrections=half)]).compute_permille == 500


def test_what_ran_out_of_memory_did_not_come_to_its_peak():
    found = correct(Corrections(7), [attempt(0, 0, 0, (100, 60), outcome=Outcome.OUT_OF_MEMORY)])
    assert found.static_offset_bytes == 7


def test_a_factor_below_nothing_is_no_fit():
    """10 + 0 -> 20 and 10 + 5 -> 15: copies would take -1 times as long; the last says 15 of 15 for both."""
    assert correct(Corrections(), [attempt(10, 0, 20), attempt(15, 5, 15)]) == Corrections(0, 1000, 1000)


def test_a_machine_that_was_busy_counts_so_far_and_no_further():
    assert correct(Corrections(), [attempt(10, 0, 1000)]).compute_permille == 100
    assert correct(Corrections(), [attempt(1000, 0, 1)]).compute_permille == 10_000
