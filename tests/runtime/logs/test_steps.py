from hypothesis import given
from hypothesis import strategies as st

from mindswap.runtime.logs.step_report import ReportedStep, StepScanner, format_step, parse_steps
from tests.runtime.logs.samples import STEP, info, log_text, scan

LINES = [info(STEP.format(step=step)) for step in (1, 2, 3)]


def fed(text, size=1 << 20):
    data, scanner = text.encode(), StepScanner()
    for start in range(0, len(data), size):
        scanner.feed(data[start : start + size])
    return scanner


def test_the_first_step_compiles_and_is_no_measure():
    scanner = fed("".join(LINES))
    assert (scanner.step, scanner.num_steps) == (3, 40)
    assert list(scanner.times_ns) == [309_000_000] * 2


def test_steps_count_over_epochs():
    """Epoch 2 of 3 with 40 steps each: step 5 is number 45 of 120."""
    scanner = fed("{ Epoch:[  2/  3], step:[    5/   40], loss:[1.0/1.0]\n")
    assert (scanner.step, scanner.num_steps) == (45, 120)


def test_a_line_without_an_end_does_not_count_yet():
    text = "".join(LINES)
    assert fed(text[:-1]).step == 2


@given(st.integers(1, 400))
def test_blocks_of_any_size_give_the_same(size):
    text = "".join(["noise " * 60 + "\n", *LINES, "x" * 10_000 + "\n", *LINES])
    assert list(fed(text, size).times_ns) == [309_000_000] * 5


def test_a_report_while_training_is_the_peak():
    text = log_text(end=[info("mindswap: peak memory 1000 bytes used, 3000 bytes reserved"),
                         info("mindswap: peak memory 2000 bytes used, 2500 bytes reserved")])  # fmt: skip
    memory = scan(text).memory
    assert (memory.used_peak_bytes, memory.actual_peak_bytes) == (2000, 3000)


# The line that a worker logs for each step, written and read.


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
