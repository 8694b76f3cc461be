"""The line that a worker logs for each step, written and read."""

from mindswap.training.logs.step_report import ReportedStep, format_step, parse_steps


def test_the_line_has_every_digit_of_the_loss():
    assert format_step(ReportedStep(3, 5.269820213317871, 43_123_456)) == (
        "mindswap: step 3: loss 5.269820213317871, 43123456 ns"
    )


def test_steps_are_read_from_between_other_lines():
    log = [
        "2026-01-01 10:00:00,000 - mindformers[step_report.py:40] - INFO - mindswap: step 2: loss 0.1, 7 ns\n",
        "mindswap: peak memory 5 bytes used, 6 bytes reserved\n",
        "... mindswap: step 1: loss 1e-05, 9 ns\n",
        "again: mindswap: step 1: loss 3.0, 10 ns\n",
    ]
    assert parse_steps(log) == (ReportedStep(1, 1e-05, 9), ReportedStep(2, 0.1, 7))


def test_a_loss_that_is_no_number_is_read_as_such():
    (step,) = parse_steps([format_step(ReportedStep(1, float("nan"), 1))])
    assert step.loss != step.loss


def test_a_line_that_is_cut_off_is_no_step():
    assert parse_steps(["mindswap: step 1: loss 5.26, 431"]) == ()
