"""Each rule of the backend on a tiny program, with every time worked out by hand."""

import pytest

from mindswap.errors import SimulationError
from mindswap.simulator.engine import run_program
from mindswap.simulator.program import NO_OP
from mindswap.simulator.timeline import StallCause
from tests.simulator.builders import Copy, in_times, op_times, out_times, program_of, stalls


def run(*stages, copies=(), contended_permille=1000):
    return run_program(program_of(*stages, copies=copies, contended_permille=contended_permille))


def test_without_copies_operators_follow_each_other():
    timeline = run("F10 F5 R10 B20")
    assert op_times(timeline) == [(0, 10), (10, 15), (15, 25), (25, 45)]
    assert timeline.step_time_ns == 45
    assert stalls(timeline) == {}


# Release: after `release_op` the compute stream waits for the copy out.


def test_an_early_release_stalls_forward():
    # Out: 10 to 35. Operator 1 may still run, operator 2 waits until 35. In: 45 to 50, so operator 3 waits too.
    timeline = run("F10 F10 F10 B10", copies=[Copy(producer=0, release=1, prefetch=2, user=3, out_ns=25, in_ns=5)])
    assert op_times(timeline) == [(0, 10), (10, 20), (35, 45), (50, 60)]
    assert out_times(timeline) == [(10, 35)]
    assert in_times(timeline) == [(45, 50)]
    assert timeline.release_ns.tolist() == [35]
    assert stalls(timeline) == {2: (15, StallCause.COPY_OUT, 0), 3: (5, StallCause.COPY_IN, 0)}
    assert timeline.exposed_copy_ns == 20


def test_a_later_release_hides_the_copy_and_holds_the_memory():
    # Out: 10 to 35, while operators 1 to 3 run until 40; the memory is free at 40, when operator 3 has ended.
    copies = [Copy(producer=0, release=3, prefetch=3, user=5, out_ns=25, in_ns=5)]
    timeline = run("F10 F10 F10 F10 B10 B10", copies=copies)
    assert op_times(timeline) == [(0, 10), (10, 20), (20, 30), (30, 40), (40, 50), (50, 60)]
    assert out_times(timeline) == [(10, 35)]
    assert timeline.release_ns.tolist() == [40]
    assert stalls(timeline) == {}


def test_release_after_the_producer_itself():
    # backward_prefetch 0: the very next operator waits for the copy, 10 to 15.
    timeline = run("F10 F10 B10", copies=[Copy(producer=0, release=0, prefetch=0, user=2, out_ns=5, in_ns=5)])
    assert op_times(timeline) == [(0, 10), (15, 25), (25, 35)]
    assert timeline.release_ns.tolist() == [15]
    assert stalls(timeline) == {1: (5, StallCause.COPY_OUT, 0)}


def test_release_clamped_to_the_last_operator_stalls_nothing():
    # No operator comes after the release. The memory is held to the end.
    timeline = run("F10 F10 B10", copies=[Copy(producer=0, release=2, prefetch=0, user=2, out_ns=5, in_ns=5)])
    assert op_times(timeline) == [(0, 10), (10, 20), (20, 30)]
    assert out_times(timeline) == [(10, 15)]
    assert in_times(timeline) == [(15, 20)]
    assert timeline.release_ns.tolist() == [30]


def test_a_wait_for_a_copy_in_is_none_for_a_copy_out_that_ends_with_it():
    # No operator waits for a release. Copy 0 goes out 10 to 15 and comes in 20 to 35, when copy 1, 20 to 35, is out.
    # Operator 2 ends at 30, so operator 3 waits 5; copy 1 comes in 45 to 46.
    copies = [
        Copy(producer=0, release=4, prefetch=1, user=3, out_ns=5, in_ns=15),
        Copy(producer=1, release=4, prefetch=3, user=4, out_ns=15, in_ns=1),
    ]
    timeline = run("F10 F10 F10 B10 B10", copies=copies)
    assert (out_times(timeline), in_times(timeline)) == ([(10, 15), (20, 35)], [(20, 35), (45, 46)])
    assert stalls(timeline) == {3: (5, StallCause.COPY_IN, 0), 4: (1, StallCause.COPY_IN, 1)}


def test_release_after_a_collective_holds_the_compute_stream():
    # Release after operator 1, a collective (10 to 15). The next compute operator waits for the copy, 10 to 30;
    # operator 3, a collective that waits for nothing, does not: it follows operator 1 at once.
    copies = [Copy(producer=0, release=1, prefetch=2, user=4, out_ns=20, in_ns=5)]
    timeline = run("F10 C5@0 F10 C5 B10", copies=copies)
    assert op_times(timeline) == [(0, 10), (10, 15), (30, 40), (15, 20), (45, 55)]
    assert stalls(timeline) == {
        1: (10, StallCause.COMPUTE, -1),
        2: (20, StallCause.COPY_OUT, 0),
        4: (5, StallCause.COPY_IN, 0),
    }


def test_a_collective_between_does_not_end_the_wait():
    # Release after operator 0; operator 1 is a collective; operator 2 waits for the copy, 10 to 30.
    copies = [Copy(producer=0, release=0, prefetch=0, user=3, out_ns=20)]
    assert op_times(run("F10 C5 F10 B10", copies=copies)) == [(0, 10), (0, 5), (30, 40), (40, 50)]


# Prefetch: the copy in may start when `prefetch_op` has ended, never before the copy out.


def test_prefetch_in_time():
    # In: 30 to 38, needed at 40.
    copies = [Copy(producer=0, release=1, prefetch=2, user=4, out_ns=5, in_ns=8)]
    timeline = run("F10 F10 F10 B10 B10", copies=copies)
    assert in_times(timeline) == [(30, 38)]
    assert stalls(timeline) == {}
    assert timeline.step_time_ns == 50


def test_prefetch_too_late():
    # In: 30 to 45, needed at 40.
    copies = [Copy(producer=0, release=1, prefetch=2, user=4, out_ns=5, in_ns=15)]
    timeline = run("F10 F10 F10 B10 B10", copies=copies)
    assert in_times(timeline) == [(30, 45)]
    assert stalls(timeline) == {4: (5, StallCause.COPY_IN, 0)}
    assert timeline.step_time_ns == 55


def test_prefetch_after_the_first_operator_waits_for_the_copy_out():
    # Operator 0 ends at 10, the copy out of operator 1 at 50.
    copies = [Copy(producer=1, release=3, prefetch=0, user=4, out_ns=30, in_ns=5)]
    timeline = run("F10 F10 F10 B10 B10", copies=copies)
    assert out_times(timeline) == [(20, 50)]
    assert in_times(timeline) == [(50, 55)]
    assert op_times(timeline) == [(0, 10), (10, 20), (20, 30), (30, 40), (55, 65)]


def test_nothing_holds_back_an_over_large_prefetch():
    # The copy in starts when the copy out ends, at 15, long before it is needed at 40.
    copies = [Copy(producer=0, release=1, prefetch=NO_OP, user=4, out_ns=5, in_ns=5)]
    timeline = run("F10 F10 F10 B10 B10", copies=copies)
    assert in_times(timeline) == [(15, 20)]
    assert stalls(timeline) == {}


def test_a_collective_may_be_the_first_user():
    # In: 20 to 28. The collective waits for it, and operator 3 for the collective: named for what it is.
    copies = [Copy(producer=0, release=0, prefetch=1, user=2, in_ns=8)]
    timeline = run("F10 F10 C5 B10@2", copies=copies)
    assert op_times(timeline) == [(0, 10), (10, 20), (28, 33), (33, 43)]
    assert stalls(timeline) == {2: (28, StallCause.COPY_IN, 0), 3: (13, StallCause.COMMUNICATION, -1)}
    assert timeline.exposed_copy_ns == 0  # only what compute streams waited for directly


# First in, first out.


def test_copies_out_run_in_the_order_of_their_producers():
    # Copy 1 (operator 0): 10 to 35. Copy 0 (operator 1) is ready at 20 and waits until 35.
    copies = [
        Copy(producer=1, release=2, prefetch=3, user=4, out_ns=5),
        Copy(producer=0, release=2, prefetch=3, user=4, out_ns=25),
    ]
    timeline = run("F10 F10 F10 B10 B10", copies=copies)
    assert out_times(timeline) == [(35, 40), (10, 35)]
    # Operator 3 waits for both; the last one, copy 0, is named.
    assert stalls(timeline) == {3: (10, StallCause.COPY_OUT, 0)}


def test_copies_out_of_one_producer_run_in_the_order_given():
    copies = [
        Copy(producer=0, release=1, prefetch=1, user=3, out_ns=5),
        Copy(producer=0, release=1, prefetch=1, user=3, out_ns=3),
    ]
    assert out_times(run("F10 F10 B10 B10", copies=copies)) == [(10, 15), (15, 18)]


def test_copies_in_run_in_the_order_of_their_first_users():
    # Copy 0 is ready at 10, but copy 1 is used first and must not start before 30: 30 to 35, then copy 0.
    copies = [
        Copy(producer=0, release=0, prefetch=NO_OP, user=4, in_ns=5),
        Copy(producer=0, release=0, prefetch=2, user=3, in_ns=5),
    ]
    timeline = run("F10 F10 F10 B10 B10", copies=copies)
    assert in_times(timeline) == [(35, 40), (30, 35)]
    assert op_times(timeline) == [(0, 10), (10, 20), (20, 30), (35, 45), (45, 55)]


def test_copies_in_for_one_user_run_in_the_order_given():
    # 10 to 15 and 15 to 18; the user waits for both.
    copies = [
        Copy(producer=0, release=0, prefetch=NO_OP, user=1, in_ns=5),
        Copy(producer=0, release=0, prefetch=NO_OP, user=1, in_ns=3),
    ]
    timeline = run("F10 B10", copies=copies)
    assert in_times(timeline) == [(10, 15), (15, 18)]
    assert stalls(timeline) == {1: (8, StallCause.COPY_IN, 1)}


# Contention of the two directions.


def test_both_directions_slow_each_other_down():
    # Copy 0 out: 10 to 20 alone. From 20 copy 0 comes in (20 ns of work) and copy 1 goes out (30 ns), at half
    # rate each: copy 0 is in at 60, copy 1 has 10 ns left and the link for itself: 70. Copy 1 in: 70 to 75.
    copies = [
        Copy(producer=0, release=1, prefetch=NO_OP, user=2, out_ns=10, in_ns=20),
        Copy(producer=0, release=1, prefetch=NO_OP, user=2, out_ns=30, in_ns=5),
    ]
    timeline = run("F10 F90 B10", copies=copies, contended_permille=500)
    assert out_times(timeline) == [(10, 20), (20, 70)]
    assert in_times(timeline) == [(20, 60), (70, 75)]


def test_a_contended_copy_ends_at_the_next_whole_nanosecond():
    # Copy 0 out: 10 to 15. At 700 thousandths its 10 ns in take 14.3: 15 to 30. By then copy 1 has done 10.5 of
    # its 30 ns, and takes 19.5 more: 50.
    copies = [
        Copy(producer=0, release=1, prefetch=NO_OP, user=2, out_ns=5, in_ns=10),
        Copy(producer=0, release=1, prefetch=NO_OP, user=2, out_ns=30),
    ]
    timeline = run("F10 F90 B10", copies=copies, contended_permille=700)
    assert out_times(timeline) == [(10, 15), (15, 50)]
    assert in_times(timeline) == [(15, 30), (50, 50)]


def test_stages_do_not_share_a_link():
    copies = [
        Copy(producer=0, release=0, prefetch=NO_OP, user=1, out_ns=20),
        Copy(producer=2, release=2, prefetch=NO_OP, user=3, in_ns=20),
    ]
    timeline = run("F10 B10", "F10 B10", copies=copies, contended_permille=500)
    assert out_times(timeline) == [(10, 30), (10, 10)]
    assert in_times(timeline) == [(30, 30), (10, 30)]


def test_a_later_collective_lets_a_copy_start_while_compute_waits():
    # Copy 0 takes no time to go out; operator 1 waits for copy 1, 20 ns of work from 10 on. Operator 2, a
    # collective issued after it, waits for operator 0 only and ends at 15: copy 0 then comes in with 5 ns of
    # work, at half rate from 15 to 25. So copy 1 has done 5 + 5 of its 20 at 25, and ends at 35.
    copies = [
        Copy(producer=0, release=3, prefetch=2, user=3, in_ns=5),
        Copy(producer=0, release=0, prefetch=2, user=4, out_ns=20),
    ]
    timeline = run("F10 F10 C5@0 B10 B10", copies=copies, contended_permille=500)
    assert out_times(timeline) == [(10, 10), (10, 35)]
    assert in_times(timeline) == [(15, 25), (35, 35)]
    assert op_times(timeline) == [(0, 10), (35, 45), (10, 15), (45, 55), (55, 65)]


# Communication and pipeline.


def test_a_collective_behind_compute_costs_nothing():
    timeline = run("F10 C20@0 F25 B10@1")
    assert op_times(timeline) == [(0, 10), (10, 30), (10, 35), (35, 45)]
    assert stalls(timeline) == {1: (10, StallCause.COMPUTE, -1)}


def test_an_exposed_collective():
    timeline = run("F10 C20@0 F15 B10@1")
    assert op_times(timeline) == [(0, 10), (10, 30), (10, 25), (30, 40)]
    assert stalls(timeline) == {1: (10, StallCause.COMPUTE, -1), 3: (5, StallCause.COMMUNICATION, -1)}


def test_1f1b_on_two_stages():
    # Stage 0: F0 0-10, F1 10-20, then nothing until B0 comes back at 44 (B0 44-64), B1 at 74 (74-94).
    # Stage 1: gets F0 at 12 (12-22), B0 22-42, F1 42-52, B1 52-72. Sends take 2.
    first = "F10 S2@0 F10 S2@2 V0@12 B20@4 V0@15 B20@6"
    second = "V0@1 F10@8 V0@3 B20@9 S2@11 F10@10 B20@13 S2@14"
    timeline = run(first, second)
    assert op_times(timeline)[:8] == [
        (0, 10), (10, 12), (10, 20), (20, 22), (44, 44), (44, 64), (74, 74), (74, 94)
    ]  # fmt: skip
    assert op_times(timeline)[8:] == [
        (12, 12), (12, 22), (22, 22), (22, 42), (42, 44), (42, 52), (52, 72), (72, 74)
    ]  # fmt: skip
    compute = [0, 2, 5, 7, 9, 11, 13, 14]
    assert {op: stall for op, stall in stalls(timeline).items() if op in compute} == {
        5: (24, StallCause.PIPELINE, -1),
        7: (10, StallCause.PIPELINE, -1),
        9: (12, StallCause.PIPELINE, -1),
    }


def test_a_stall_has_the_cause_that_ended_last():
    # Operator 2 waits for the collective until 30 and for the copy until 25.
    copies = [Copy(producer=0, release=0, prefetch=NO_OP, user=2, out_ns=10, in_ns=5)]
    timeline = run("F10 C20@0 B10@1", copies=copies)
    assert stalls(timeline)[2] == (20, StallCause.COMMUNICATION, -1)


def test_a_send_does_not_wait_for_a_receive_that_was_issued_before_it():
    # Each stage receives first and sends then; both sends run at 0, both receives at 1.
    assert op_times(run("V0@3 S1", "V0@1 S1")) == [(1, 1), (0, 1), (1, 1), (0, 1)]


def test_stages_that_wait_for_each_other_are_named():
    with pytest.raises(SimulationError) as error:
        run("V0@3 S1@0", "V0@1 S1@2")
    assert str(error.value) == (
        "pipeline stages wait for each other: "
        "stage 0 is at operator 0 (receive 0, micro-batch 0), which waits for operator 3 (send 3, micro-batch 0); "
        "stage 1 is at operator 2 (receive 2, micro-batch 0), which waits for operator 1 (send 1, micro-batch 0)"
    )


def test_nothing_to_do():
    assert run("").step_time_ns == 0
    assert op_times(run("", "F10")) == [(0, 10)]
