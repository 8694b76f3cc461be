"""Discrete-event simulation of a program on the streams of each pipeline stage, in integer nanoseconds.

The streams are compute, communication, receiving, offload (D2H) and prefetch (H2D); each executes its operators or
copies in order. An operator or a copy starts when all its dependencies have ended. All stages share one clock, which
advances from one end of an operator or copy to the next; so every start is decided with all earlier events known,
including copies that slow each other down.

The dependencies are those of the Ascend backend of MindSpore 2.9.0; see `program.Copies`.
"""

import numpy as np

from mindswap.errors import SimulationError
from mindswap.simulator.engine_state import (
    COMMUNICATION,
    COMPUTE,
    IN,
    NEVER,
    NO_COPY,
    OUT,
    RECEIVING,
    EngineState,
    compiled,
    initial_state,
)
from mindswap.simulator.program import NO_OP, Program
from mindswap.simulator.timeline import StallCause, Timeline

WORK_PER_NS = 1000  # a copy of 1 ns is 1000 units of work, so that rates in thousandths stay integers
CAUSE_OUT, CAUSE_IN = int(StallCause.COPY_OUT), int(StallCause.COPY_IN)


def run_program(program: Program) -> Timeline:
    """Simulate one step.

    Args:
        program: a valid program; if `benchmarks/reference/program_check.py` rejects it, the result is undefined.

    Returns:
        Start and end times of all operators and copies, and stalls with their causes.

    Raises:
        SimulationError: if pipeline stages wait for each other.
    """
    state = initial_state(program)
    _run(state, program.contended_permille)
    _raise_deadlock(program, state)
    num_copies = len(program.copies)
    start_ns, end_ns = np.empty((2, 2, num_copies), np.int64)
    for direction in (OUT, IN):
        done = state.copies[direction]
        start_ns[direction, done["copy"]] = done["start_ns"]
        end_ns[direction, done["copy"]] = done["end_ns"]
    op_end_ns = state.ops["end_ns"].copy()
    return Timeline(
        program=program,
        op_start_ns=state.ops["start_ns"].copy(),
        op_end_ns=op_end_ns,
        stall_ns=state.ops["stall_ns"].copy(),
        stall_cause=state.ops["stall_cause"].copy(),
        stall_copy=state.ops["stall_copy"].copy(),
        out_start_ns=start_ns[OUT],
        out_end_ns=end_ns[OUT],
        in_start_ns=start_ns[IN],
        in_end_ns=end_ns[IN],
        release_ns=np.maximum(op_end_ns[program.copies.release_op], end_ns[OUT]),
    )


@compiled
def _run(state: EngineState, contended_permille: int) -> None:
    """Process the stage with the earliest event until no events are left."""
    stages = state.stages
    while True:
        stage = _first_to_wake(stages)
        now = stages[stage].wake_ns
        if now == NEVER:
            return
        stages[stage].wake_ns = NEVER
        _let_copies_run(state, stage, contended_permille, now)
        changed = True
        while changed:
            changed = _start_ops(state, stage, COMPUTE, now)
            changed |= _start_ops(state, stage, COMMUNICATION, now)
            changed |= _start_ops(state, stage, RECEIVING, now)
            changed |= _end_and_start_copies(state, stage, OUT, now)
            changed |= _end_and_start_copies(state, stage, IN, now)
        next_ns = _next_event_ns(state, stage, contended_permille, now)
        stages[stage].wake_ns = min(stages[stage].wake_ns, next_ns)


@compiled
def _first_to_wake(stages: np.ndarray) -> int:
    """Return the stage with the earliest event; the lowest index among equals."""
    first = 0
    for stage in range(1, len(stages)):
        if stages[stage].wake_ns < stages[first].wake_ns:
            first = stage
    return first


@compiled
def _start_ops(state: EngineState, stage: int, kind: int, now: int) -> bool:
    """Start the operators of a stream that can start now; return whether there were any."""
    stages, stream = state.stages, state.streams[stage, kind]
    changed = False
    while stream.next_op < stages[stage].end and stream.free_ns <= now and _has_inputs(state, stream.next_op, now):
        op = state.ops[stream.next_op]
        op.start_ns = now
        op.end_ns = now + op.duration_ns
        if now > stream.free_ns:
            op.stall_ns = now - stream.free_ns
            op.stall_cause, op.stall_copy = _waited_for(state, stream.next_op, now)
        if op.is_awaited:
            for other_stage in range(len(stages)):
                stages[other_stage].wake_ns = min(stages[other_stage].wake_ns, op.end_ns)
        stream.free_ns = op.end_ns
        stream.next_op = op.next_op
        changed = True
    return changed


@compiled
def _has_inputs(state: EngineState, position: int, now: int) -> bool:
    """Return whether all dependencies of an operator have ended."""
    op, copies = state.ops[position], state.copies
    return (
        (op.wait_op == NO_OP or state.ops[op.wait_op].end_ns <= now)
        and (op.outs_needed == 0 or copies[OUT, op.outs_needed - 1].end_ns <= now)
        and (op.ins_needed == 0 or copies[IN, op.ins_needed - 1].end_ns <= now)
    )


@compiled
def _waited_for(state: EngineState, position: int, now: int) -> tuple[int | np.int64, int]:
    """Return cause and copy of a stall that ends now: an operator first, then an offload, then a prefetch."""
    op, copies = state.ops[position], state.copies
    if op.wait_op != NO_OP and state.ops[op.wait_op].end_ns == now:
        return np.int64(op.wait_cause), NO_COPY
    if op.outs_needed > 0 and copies[OUT, op.outs_needed - 1].end_ns == now:
        return CAUSE_OUT, copies[OUT, op.outs_needed - 1].copy
    return CAUSE_IN, copies[IN, op.ins_needed - 1].copy


@compiled
def _let_copies_run(state: EngineState, stage: int, contended_permille: int, now: int) -> None:
    """Advance the copies of the stage to the current time."""
    done = _rate(state.links, stage, contended_permille) * (now - state.stages[stage].clock_ns)
    for direction in (OUT, IN):
        state.links[stage, direction].work_left -= done  # unused if no copy runs
    state.stages[stage].clock_ns = now


@compiled
def _rate(links: np.ndarray, stage: int, contended_permille: int) -> int:
    """Return the work per ns of each running copy."""
    return contended_permille if links[stage, OUT].is_copying and links[stage, IN].is_copying else WORK_PER_NS


@compiled
def _end_and_start_copies(state: EngineState, stage: int, direction: int, now: int) -> bool:
    """End the copy that is complete and start the next one that is ready; return whether anything changed."""
    link = state.links[stage, direction]
    changed = False
    while link.next_copy < link.end:
        copy = state.copies[direction, link.next_copy]
        if not link.is_copying:
            is_offloaded = copy.after_out == NO_COPY or state.copies[OUT, copy.after_out].end_ns <= now
            if not is_offloaded or (copy.after_op != NO_OP and state.ops[copy.after_op].end_ns > now):
                break
            copy.start_ns = now
            link.work_left = WORK_PER_NS * copy.duration_ns
            link.is_copying = True
            changed = True
        if link.work_left > 0:
            break
        copy.end_ns = now
        link.is_copying = False
        link.next_copy += 1
        changed = True
    return changed


@compiled
def _next_event_ns(state: EngineState, stage: int, contended_permille: int, now: int) -> int:
    """Return the earliest known end of an operator or copy that the stage depends on; `NEVER` if there is none."""
    event_ns = NEVER
    for kind in (COMPUTE, COMMUNICATION, RECEIVING):
        stream = state.streams[stage, kind]
        if stream.free_ns > now:
            event_ns = min(event_ns, stream.free_ns)
        if stream.next_op < state.stages[stage].end:
            wait = state.ops[stream.next_op].wait_op
            if wait != NO_OP and state.ops[wait].end_ns > now:
                event_ns = min(event_ns, state.ops[wait].end_ns)
    rate = _rate(state.links, stage, contended_permille)
    for direction in (OUT, IN):
        link = state.links[stage, direction]
        if link.is_copying:
            event_ns = min(event_ns, now + (link.work_left + rate - 1) // rate)
    return event_ns


def _raise_deadlock(program: Program, state: EngineState) -> None:
    """Raise if operators have not run, naming the next operator of each blocked stage."""
    next_op = state.streams["next_op"].min(axis=1)
    lines = []
    for stage in np.flatnonzero(next_op < state.stages["end"]):
        op = next_op[stage]
        wait = program.ops.wait_op[op]
        awaited = f" for operator {wait} ({_op_name(program, wait)})" if wait != NO_OP else ""
        lines.append(f"stage {stage} is at operator {op} ({_op_name(program, op)}), which waits{awaited}")
    if lines:
        raise SimulationError("pipeline stages wait for each other: " + "; ".join(lines))


def _op_name(program: Program, op: int) -> str:
    """Return label and micro-batch of an operator, for messages."""
    return f"{program.labels[program.ops.label[op]]}, micro-batch {program.ops.micro_batch[op]}"
