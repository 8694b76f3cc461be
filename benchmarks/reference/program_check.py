"""Checks of a program, before it runs. Vectorised, so that checking costs less than running."""

from dataclasses import fields

import numpy as np

from mindswap.errors import SimulationError
from mindswap.simulator.program import NO_OP, MemoryKind, OpKind, Program

__all__ = ["check_program"]


def check_program(program: Program) -> None:
    """Looks for contradictions.

    A program that passes can only fail to run where pipeline stages wait for each other.

    Raises:
        SimulationError: names the first operator, copy or interval that is wrong, and why.
    """
    _check_shapes(program)
    if not 1 <= program.contended_permille <= 1000:
        raise SimulationError(f"contended_permille is {program.contended_permille}; allowed: 1 to 1000")
    _check_ops(program)
    _check_copies(program)
    _check_intervals(program)
    for subject, part in (("operator", program.ops), ("copy", program.copies), ("interval", program.intervals)):
        _refuse(_is_outside(part.label, 0, len(program.labels)), subject, "its label is not in labels")


def _refuse(wrong: np.ndarray, subject: str, why: str) -> None:
    """Raises for the first entry that is wrong."""
    if wrong.any():
        raise SimulationError(f"{subject} {int(np.argmax(wrong))}: {why}")


def _check_shapes(program: Program) -> None:
    for part in (program.ops, program.copies, program.intervals):
        for array in fields(part):
            column = getattr(part, array.name)
            shape = np.shape(column)
            if column is not None and shape != (len(part),):  # a table may lack an optional column
                name = f"{type(part).__name__}.{array.name}"
                raise SimulationError(f"{name} has shape {shape}; expected {(len(part),)}")
    starts = np.asarray(program.stage_starts)
    if len(starts) < 2 or starts[0] != 0 or starts[-1] != len(program.ops) or (np.diff(starts) < 0).any():
        raise SimulationError(f"stage_starts is {starts.tolist()}; expected to rise from 0 to {len(program.ops)}")


def _check_ops(program: Program) -> None:
    ops = program.ops
    num_ops = len(ops)
    _refuse(ops.duration_ns < 0, "operator", "its duration is negative")
    _refuse((ops.kind < 0) | (ops.kind >= len(OpKind)), "operator", "its kind is no OpKind")
    _refuse(_is_outside(ops.wait_op, NO_OP, num_ops), "operator", "wait_op is no operator")
    position = np.arange(num_ops)
    is_later = ops.wait_op >= position
    if is_later.any():
        is_same_stage = _stage_of(program, ops.wait_op) == _stage_of(program, position)
        _refuse(is_later & is_same_stage, "operator", "it waits for itself or a later operator of its stage")


def _check_copies(program: Program) -> None:
    copies = program.copies
    num_ops = len(program.ops)
    for name in ("size_bytes", "out_ns", "in_ns"):
        _refuse(getattr(copies, name) < 0, "copy", f"{name} is negative")
    for name in ("producer_op", "release_op", "prefetch_op", "first_user_op"):
        lowest = NO_OP if name == "prefetch_op" else 0
        positions = getattr(copies, name)
        _refuse(_is_outside(positions, lowest, num_ops), "copy", f"{name} is no operator")
        is_elsewhere = (_stage_of(program, positions) != program.copies_stage) & (positions != NO_OP)
        _refuse(is_elsewhere, "copy", f"{name} and producer_op are in different stages")
    _refuse(copies.release_op < copies.producer_op, "copy", "release_op comes before producer_op")
    _refuse(copies.first_user_op <= copies.producer_op, "copy", "first_user_op does not come after producer_op")
    _refuse(copies.prefetch_op >= copies.first_user_op, "copy", "prefetch_op does not come before first_user_op")


def _check_intervals(program: Program) -> None:
    intervals, copies = program.intervals, program.copies
    num_ops, num_copies = len(program.ops), len(copies)
    begin, end = np.asarray(intervals.begin), np.asarray(intervals.end)
    _refuse(intervals.size_bytes < 0, "interval", "its size is negative")
    _refuse(_is_outside(intervals.kind, 0, len(MemoryKind)), "interval", "its kind is no MemoryKind")
    _refuse(_is_outside(begin, -num_copies, num_ops), "interval", "it begins at no operator and no copy")
    _refuse(_is_outside(end, -num_copies, num_ops), "interval", "it ends at no operator and no copy")
    _refuse((begin < 0) & (end < 0), "interval", "it begins when a copy comes in and ends when one goes out")
    # What an operator or a copy is compared with: for a copy that comes in, the operator that needs it; for
    # one that goes out, the operator that makes it.
    if num_copies:
        begin = np.where(begin < 0, copies.first_user_op[~np.minimum(begin, -1)], begin)
        end = np.where(end < 0, copies.producer_op[~np.minimum(end, -1)], end)
    _refuse(begin > end, "interval", "it ends before it begins")
    for positions in (begin, end):
        is_elsewhere = _stage_of(program, positions) != intervals.stage
        _refuse(is_elsewhere, "interval", "it begins or ends in another stage than its own")


def _is_outside(values: np.ndarray, lowest: int, behind: int) -> np.ndarray:
    return (values < lowest) | (values >= behind)


def _stage_of(program: Program, positions: np.ndarray) -> np.ndarray:
    return np.searchsorted(program.stage_starts, positions, side="right") - 1
