"""What holds for any program, and agreement with a second simulator, event by event."""

import itertools
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from reference.program_bounds import compute_only_ns, lower_bound_ns

from mindswap.simulator.engine import run_program
from mindswap.simulator.memory import interval_times, peak_memory, profile_memory
from mindswap.simulator.program import NO_OP, MemoryKind, OpKind, Program
from mindswap.simulator.timeline import StallCause, Timeline
from tests.simulator.builders import in_times, op_times, out_times
from tests.simulator.reference import tick_through
from tests.simulator.strategies import programs, swap_steps
from tests.strength import examples

many = settings(max_examples=examples(40, 300))


def stream_of_each_op(program: Program) -> np.ndarray:
    """A number for each stream of each stage: shape (num_ops,)."""
    stage = np.searchsorted(program.stage_starts, np.arange(len(program.ops)), side="right") - 1
    kind = program.ops.kind
    return 3 * stage + np.where(kind == OpKind.RECEIVE, 2, kind >= OpKind.COLLECTIVE)


def with_copies(program: Program, **arrays) -> Program:
    return replace(program, copies=replace(program.copies, **arrays))


@many
@given(programs())
def test_a_second_simulator_agrees_on_every_event(program):
    timeline = run_program(program)
    ops, outs, backs = tick_through(program)
    assert op_times(timeline) == [(job.start, job.end) for job in ops]
    assert out_times(timeline) == [(job.start, job.end) for job in outs]
    assert in_times(timeline) == [(job.start, job.end) for job in backs]


@many
@given(programs())
def test_a_stream_never_runs_two_things_and_keeps_its_order(program):
    timeline = run_program(program)
    stream = stream_of_each_op(program)
    for number in np.unique(stream):
        own = np.flatnonzero(stream == number)
        assert (timeline.op_start_ns[own][1:] >= timeline.op_end_ns[own][:-1]).all()
    copies = program.copies
    directions = (
        (copies.producer_op, timeline.out_start_ns, timeline.out_end_ns),
        (copies.first_user_op, timeline.in_start_ns, timeline.in_end_ns),
    )
    for key, start_ns, end_ns in directions:
        for stage in range(program.num_stages):
            own = np.flatnonzero(program.copies_stage == stage)
            own = own[np.argsort(key[own], kind="stable")]
            assert (start_ns[own][1:] >= end_ns[own][:-1]).all()


@many
@given(programs())
def test_nothing_starts_before_its_inputs(program):
    timeline = run_program(program)
    ops, copies = program.ops, program.copies
    assert (timeline.op_end_ns - timeline.op_start_ns == ops.duration_ns).all()
    waiting = np.flatnonzero(ops.wait_op != NO_OP)
    assert (timeline.op_start_ns[waiting] >= timeline.op_end_ns[ops.wait_op[waiting]]).all()
    assert (timeline.op_start_ns[copies.first_user_op] >= timeline.in_end_ns).all()
    assert (timeline.out_start_ns >= timeline.op_end_ns[copies.producer_op]).all()
    held = copies.prefetch_op != NO_OP
    assert (timeline.in_start_ns[held] >= timeline.op_end_ns[copies.prefetch_op[held]]).all()
    is_compute = ops.kind < OpKind.COLLECTIVE
    for copy, release in enumerate(copies.release_op):
        end_of_stage = program.stage_starts[program.copies_stage[copy] + 1]
        after = np.flatnonzero(is_compute[release + 1 : end_of_stage]) + release + 1
        assert (timeline.op_start_ns[after] >= timeline.out_end_ns[copy]).all()


@many
@given(programs())
def test_every_copied_byte_leaves_and_returns_once(program):
    timeline = run_program(program)
    copies = program.copies
    out_ns, in_ns = timeline.out_end_ns - timeline.out_start_ns, timeline.in_end_ns - timeline.in_start_ns
    for needed_ns, taken_ns in ((copies.out_ns, out_ns), (copies.in_ns, in_ns)):
        assert (taken_ns >= needed_ns).all()
        assert (taken_ns * program.contended_permille < (needed_ns + 1) * 1000).all()  # at the contended rate
    assert (timeline.in_start_ns >= timeline.out_end_ns).all()
    assert (timeline.release_ns >= timeline.out_end_ns).all()
    # In the books of memory: what OFFLOADING gives back is what PREFETCHED takes.
    begin_ns, end_ns = interval_times(timeline)
    intervals = program.intervals
    leaves, returns = np.flatnonzero(intervals.end < 0), np.flatnonzero(intervals.begin < 0)
    assert sorted(~intervals.end[leaves]) == sorted(~intervals.begin[returns]) == list(range(len(copies)))
    assert intervals.size_bytes[leaves].sum() == intervals.size_bytes[returns].sum() == copies.size_bytes.sum()
    assert (end_ns[leaves] >= timeline.release_ns[~intervals.end[leaves]]).all()
    # Its memory is taken when it is launched, however late the link is free.
    assert (begin_ns[returns] <= timeline.in_start_ns[~intervals.begin[returns]]).all()


@many
@given(programs())
def test_stalls_and_work_fill_each_stream(program):
    timeline = run_program(program)
    stream = stream_of_each_op(program)
    for number in np.unique(stream):
        own = np.flatnonzero(stream == number)
        assert (timeline.stall_ns[own] + program.ops.duration_ns[own]).sum() == timeline.op_end_ns[own].max()
    assert ((timeline.stall_ns > 0) == (timeline.stall_cause != StallCause.NONE)).all()
    is_copy = (timeline.stall_cause == StallCause.COPY_OUT) | (timeline.stall_cause == StallCause.COPY_IN)
    assert (is_copy == (timeline.stall_copy >= 0)).all()
    for op in np.flatnonzero(is_copy):
        is_out = timeline.stall_cause[op] == StallCause.COPY_OUT
        ends_ns = timeline.out_end_ns if is_out else timeline.in_end_ns
        assert ends_ns[timeline.stall_copy[op]] == timeline.op_start_ns[op]


@many
@given(programs())
def test_memory_is_never_negative_and_zero_at_the_end(program):
    timeline = run_program(program)
    begin_ns, end_ns = interval_times(timeline)
    intervals = program.intervals
    for stage in range(program.num_stages):
        profile = profile_memory(timeline, stage)
        assert (profile.by_kind_bytes >= 0).all()
        assert (profile.by_kind_bytes[:, -1] == 0).all()
        assert (np.diff(profile.time_ns) > 0).all()
        # Against the definition, at every moment.
        for moment, by_kind_bytes in zip(profile.time_ns, profile.by_kind_bytes.T, strict=True):
            alive = (begin_ns <= moment) & (moment < end_ns) & (intervals.stage == stage)
            for kind in MemoryKind:
                assert intervals.size_bytes[alive & (intervals.kind == kind)].sum() == by_kind_bytes[kind]
        assert intervals.size_bytes[profile.holders].sum() == profile.peak_bytes
        assert peak_memory(timeline)[stage] == profile.peak_bytes == profile.by_kind_bytes.sum(axis=0).max()


@many
@given(programs(copies_on_compute=True))
def test_copies_that_take_no_time_cost_nothing(program):
    free = np.zeros_like(program.copies.out_ns)
    timeline = run_program(with_copies(program, out_ns=free, in_ns=free))
    starts = program.stage_starts
    ends = [timeline.op_end_ns[begin:end].max() for begin, end in itertools.pairwise(starts)]
    assert ends == compute_only_ns(program).tolist()


@pytest.mark.long
@many
@given(programs())
def test_the_lower_bound_is_never_beaten(program):
    assert run_program(program).step_time_ns >= lower_bound_ns(program)


@settings(max_examples=examples(60, 1000))
@given(swap_steps())
def test_unlimited_prefetch_never_lowers_the_peak(program):
    """Where copies of both directions keep their rates: sooner in is later out where they slow each other."""
    program = replace(program, contended_permille=1000)
    unlimited = with_copies(program, prefetch_op=np.full_like(program.copies.prefetch_op, NO_OP))
    assert peak_memory(run_program(unlimited))[0] >= peak_memory(run_program(program))[0]


@many
@given(programs())
def test_the_same_program_gives_the_same_timeline(program):
    first, second = run_program(program), run_program(program)
    for array in fields(Timeline):
        if array.name != "program":
            assert (getattr(first, array.name) == getattr(second, array.name)).all()
