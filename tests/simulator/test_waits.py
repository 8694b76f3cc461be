"""Waits of the compute stream, in ns by hand."""

import numpy as np

from mindswap.simulator.engine import simulate
from mindswap.simulator.timeline import StallCause, find_waits
from tests.simulator.builders import program_of


def waits(*stages, stage=1):
    rows = np.array(find_waits(simulate(program_of(*stages)), stage)).T.tolist()
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
