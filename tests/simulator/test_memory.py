"""Memory of tiny programs, worked out by hand."""

import pytest

from mindswap.errors import SimulationError
from mindswap.simulator.engine import run_program
from mindswap.simulator.memory import interval_times, peak_memory, profile_memory
from mindswap.simulator.program import MemoryKind
from tests.simulator.builders import Copy, Span, pairs, program_of


def offloaded():
    """Operators 0-10, 10-20, 25-35; the copy goes out 10-15, is released at 20 and comes in 20-25."""
    return run_program(
        program_of(
            "F10 F10 B10",
            copies=[Copy(producer=0, release=1, prefetch=1, user=2, out_ns=5, in_ns=5, size_bytes=50)],
            spans=[
                Span(100, 0, 2, MemoryKind.KEPT),
                Span(30, 1, 1, MemoryKind.TRANSIENT),
                Span(50, 0, ~0, MemoryKind.OFFLOADING),
                Span(50, ~0, 2, MemoryKind.PREFETCHED),
            ],
        )
    )


def test_intervals_begin_and_end_with_operators_and_copies():
    assert pairs(*interval_times(offloaded())) == [(0, 35), (10, 20), (0, 20), (20, 35)]


def test_memory_by_kind_over_time():
    profile = profile_memory(offloaded(), 0)
    assert profile.time_ns.tolist() == [0, 10, 20, 35]
    by_kind = dict(zip(MemoryKind, profile.by_kind_bytes.tolist(), strict=True))
    assert by_kind == {
        MemoryKind.KEPT: [100, 100, 100, 0],
        MemoryKind.OFFLOADING: [50, 50, 0, 0],
        MemoryKind.PREFETCHED: [0, 0, 50, 0],
        MemoryKind.TRANSIENT: [0, 30, 0, 0],
        MemoryKind.RECOMPUTED: [0, 0, 0, 0],
        MemoryKind.GRADIENT: [0, 0, 0, 0],
    }


def test_the_peak_has_a_moment_and_holders():
    # 100 + 50 + 30 while operator 1 runs. At 20 the tensor is freed before it is taken again: not 200.
    profile = profile_memory(offloaded(), 0)
    assert (profile.peak_bytes, profile.peak_ns) == (180, 10)
    assert profile.holders.tolist() == [0, 2, 1]
    assert peak_memory(offloaded()).tolist() == [180]


def test_memory_taken_in_one_operator_and_freed_in_the_next_is_not_counted_twice():
    timeline = run_program(program_of("F10 F10", spans=[Span(40, 0, 0), Span(60, 1, 1)]))
    assert peak_memory(timeline).tolist() == [60]
    profile = profile_memory(timeline, 0)
    assert profile.time_ns.tolist() == [0, 10, 20]
    assert (profile.peak_ns, profile.holders.tolist()) == (10, [1])


def test_a_copy_out_that_takes_long_holds_its_memory():
    # Out: 10 to 40, so the release after operator 1 happens at 40; operator 2 waits for it.
    copies = [Copy(producer=0, release=1, prefetch=2, user=3, out_ns=30)]
    spans = [Span(50, 0, ~0, MemoryKind.OFFLOADING), Span(20, 2, 2)]
    timeline = run_program(program_of("F10 F10 F10 B10", copies=copies, spans=spans))
    assert pairs(*interval_times(timeline)) == [(0, 40), (40, 50)]
    assert peak_memory(timeline).tolist() == [50]


def test_stages_have_their_own_memory():
    spans = [Span(10, 0, 1), Span(20, 1, 1), Span(7, 2, 3, stage=1), Span(8, 3, 3, stage=1)]
    timeline = run_program(program_of("F10 B10", "F30 B10", spans=spans))
    assert peak_memory(timeline).tolist() == [30, 15]
    profile = profile_memory(timeline, 1)
    assert (profile.stage, profile.peak_bytes, profile.peak_ns, profile.holders.tolist()) == (1, 15, 30, [3, 2])


def test_an_operator_that_takes_no_time_holds_nothing():
    timeline = run_program(program_of("F10 F0 F10", spans=[Span(99, 1, 1), Span(10, 0, 0), Span(20, 2, 2)]))
    assert peak_memory(timeline).tolist() == [20]
    assert profile_memory(timeline, 0).peak_bytes == 20


def test_no_memory_at_all():
    profile = profile_memory(run_program(program_of("F10")), 0)
    assert (profile.time_ns.tolist(), profile.peak_bytes, profile.holders.tolist()) == ([0], 0, [])
    assert peak_memory(run_program(program_of("F10"))).tolist() == [0]


def test_memory_freed_before_it_is_taken_is_an_error():
    # Operator 0 ends at 10, operator 1 begins at 10 and operator 2 at 20.
    timeline = run_program(program_of("F10 F10 F10", spans=[Span(10, 2, 0)]))
    message = r"interval 0 \(forward 0\) ends at 10 ns, before it begins at 20 ns"
    with pytest.raises(SimulationError, match=message):
        peak_memory(timeline)
    with pytest.raises(SimulationError, match=message):
        profile_memory(timeline, 0)


def test_memory_is_taken_in_the_order_of_execution_whenever_other_streams_run():
    """A collective at place 1 that runs from 10 to 15; operator 2 does not wait for it, operator 3 does.

    What it makes is there from the end of operator 0 on, what it reads goes when operator 3 begins.
    """
    program = program_of("F10 C5@0 F10 F10@1", spans=[Span(1, 1, 3), Span(2, 0, 1)])
    begin_ns, end_ns = interval_times(run_program(program))
    assert list(zip(begin_ns.tolist(), end_ns.tolist(), strict=True)) == [(10, 30), (0, 20)]


def test_memory_that_only_communication_waits_for_goes_when_it_is_launched():
    """Collective 2 waits for collective 1, the compute stream for collective 2: what 1 reads goes as 1 is launched.

    Operator 0 runs to 10, collective 1 from 10 to 15, collective 2 to 20; operator 3 begins then.
    """
    program = program_of("F10 C5@0 C5@1 F10@2", spans=[Span(2, 0, 1), Span(3, 1, 2)])
    assert pairs(*interval_times(run_program(program))) == [(0, 10), (10, 20)]


def test_a_send_without_a_receive_after_it_on_its_stage_holds_its_tensor_to_the_last_operator():
    """Operator 0 is sent by 1; 2 and 3 of the same stage run 10-30 and 30-60. The next stage begins with a receive."""
    program = program_of("F10 S5@0 F20 F30", "V5@1 F10@4 F10", spans=[Span(2, 0, 1)])
    assert pairs(*interval_times(run_program(program))) == [(0, 30)]


def test_a_send_holds_its_tensor_until_the_compute_stream_waits_for_the_next_receive():
    """Send 1 and receive 2 are one exchange in MindSpore's order; operator 3 runs meanwhile and operator 4 waits."""
    stages = ("F10 S5@0 V5 F20 F10@2 F10", "V5@1 F10@6 S5@7")
    timeline = run_program(program_of(*stages, spans=[Span(2, 0, 1)]))
    ((_, end_ns),) = pairs(*interval_times(timeline))
    assert end_ns == timeline.op_start_ns[4] >= 30


def test_a_stage_receives_the_gradient_of_its_backward_before_it_sends_what_forward_made():
    """Operator 0 is sent by 1; receive 2 is of the backward of operator 3, receive 5 of operator 6, which frees it."""
    first, second = "F10 S5@0 V5 B10@2 F10 V5 B10@5 B10", "V5@1 F10@8 S5@9 F10 S5@11"
    timeline = run_program(program_of(first, second, spans=[Span(2, 0, 1)]))
    ((_, end_ns),) = pairs(*interval_times(timeline))
    assert end_ns == timeline.op_start_ns[6] > timeline.op_start_ns[3]
