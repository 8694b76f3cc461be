"""Waits of the compute stream, in ns by hand."""

import numpy as np

from mindswap.simulator.engine import run_program
from mindswap.simulator.timeline import StallCause, exposed_reduction_ns, find_waits, repeated_reduction_ns
from tests.simulator.builders import program_of


def waits(*stages, stage=1):
    rows = np.array(find_waits(run_program(program_of(*stages)), stage)).T.tolist()
    return sorted((op, begin, end, StallCause(cause).name) for op, begin, end, cause in rows)


def test_a_collective_that_had_to_wait_for_another_stage_is_bubble_until_it_starts():
    # Stage 0 works for 100 ns and sends; stage 1 receives, gathers for 20 ns, computes.
    assert waits("F100 S0@0", "V0@1 C20@2 F5@3") == [(4, 0, 100, "PIPELINE"), (4, 100, 120, "COMMUNICATION")]


def test_a_wait_for_what_another_stage_sends_is_bubble():
    assert waits("F100 S0@0", "V0@1 F5@2") == [(3, 0, 100, "PIPELINE")]


def test_a_collective_that_waits_for_compute_is_none():
    # The collective starts with the wait.
    assert waits("F1", "F10 C20@1 F5@2") == [(3, 10, 30, "COMMUNICATION")]


def test_collectives_one_behind_the_other():
    # Two of 20 and 30 ns behind a receive at 100: the compute operator waits for the second.
    found = waits("F100 S0@0", "V0@1 C20@2 C30 F5@4")
    assert found == [(5, 0, 100, "PIPELINE"), (5, 100, 120, "COMMUNICATION"), (5, 120, 150, "COMMUNICATION")]


def test_a_wait_that_begins_in_the_middle():
    # Compute is busy until 40: the bubble is from there to 100.
    found = waits("F100 S0@0", "V0@1 F40 C20@2 F5@4")
    assert found == [(5, 40, 100, "PIPELINE"), (5, 100, 120, "COMMUNICATION")]


def test_a_wait_that_begins_in_the_middle_has_no_part_of_a_collective_that_was_over():
    # A collective of 5 ns at the begin of stage 1; compute is busy until 40.
    found = waits("F100 S0@0", "C5 V0@1 F40 C20@3 F5@5")
    assert found == [(6, 40, 100, "PIPELINE"), (6, 100, 120, "COMMUNICATION")]


# Exchange of gradients beside backward, times counted by hand.


# Each of 8 layers takes 10 ns.
BACKWARD = [0, *[10] * 8, 0]


def exchange(**durations: int) -> list[int]:
    """Durations by section: `s3=5` for the section of layer 2."""
    return [durations.get(f"s{segment}", 0) for segment in range(len(BACKWARD))]


def test_what_is_complete_at_the_end_of_backward_is_exposed():
    # Layers 4 and 2 are done 40 and 20 ns before the end, and sent by then; 30 + 30 ns follow the end.
    assert exposed_reduction_ns(exchange(s0=30, s1=30, s3=5, s5=5), BACKWARD) == 60


def test_backward_hides_what_is_sent_in_time():
    assert exposed_reduction_ns(exchange(s5=30), BACKWARD) == 0
    assert exposed_reduction_ns(exchange(), BACKWARD) == 0


def test_one_after_the_other():
    # 45 ns from 40 ns before the end, then 5.
    assert exposed_reduction_ns(exchange(s3=5, s5=45), BACKWARD) == 10


def test_every_micro_batch_waits_for_what_forward_does_not_hide():
    # Alone: 60 ns behind backward. Beside 40 ns of forward 20 are left when the next backward begins; its first
    # gradients are there after 30 ns, so they wait for nothing.
    sizes = exchange(s0=30, s1=30, s3=5, s5=5)
    assert repeated_reduction_ns(sizes, BACKWARD, forward_ns=40, num_micro_batches=3) == 60
    # 200 ns for each, and 120 ns of forward and backward. They begin with the last layer, 10 ns after backward does:
    # 130 ns are left behind the first. 40 ns are hidden by forward, so the next begin 90 ns after backward does, and
    # 210 are left; then 170, and 290.
    assert repeated_reduction_ns(exchange(s8=200), BACKWARD, forward_ns=40, num_micro_batches=1) == 130
    assert repeated_reduction_ns(exchange(s8=200), BACKWARD, forward_ns=40, num_micro_batches=2) == 210
    assert repeated_reduction_ns(exchange(s8=200), BACKWARD, forward_ns=40, num_micro_batches=3) == 290
