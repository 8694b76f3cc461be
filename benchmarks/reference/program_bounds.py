"""Times that no choice of copies can beat: what a plan is compared with."""

from dataclasses import fields, replace

import numpy as np

from mindswap.simulator.engine import run_program
from mindswap.simulator.program import Copies, Intervals, Program

__all__ = ["compute_only_ns", "link_bound_ns", "lower_bound_ns"]


def compute_only_ns(program: Program) -> np.ndarray:
    """When each stage would end if copies took no time: int64 ns, shape (num_stages,).

    Recompute, communication and the waits of pipeline stages for each other are in it.

    Raises:
        SimulationError: pipeline stages wait for each other.
    """
    no_copies = Copies(**{array.name: getattr(program.copies, array.name)[:0] for array in fields(Copies)})
    no_intervals = Intervals(**{array.name: getattr(program.intervals, array.name)[:0] for array in fields(Intervals)})
    timeline = run_program(replace(program, copies=no_copies, intervals=no_intervals))
    return np.array(
        [
            timeline.op_end_ns[begin:end].max(initial=0)
            for begin, end in zip(program.stage_starts[:-1], program.stage_starts[1:], strict=True)
        ],
        np.int64,
    )


def link_bound_ns(program: Program) -> np.ndarray:
    """Time that the copies of each stage take at least: int64 ns, shape (num_stages,).

    One direction at a time moves one unit of work per unit of time, both together twice the contended rate.
    Every copy counts, because every one has come in before its first user runs.
    """
    out_ns, in_ns = (
        np.bincount(program.copies_stage, weights, minlength=program.num_stages).astype(np.int64)
        for weights in (program.copies.out_ns, program.copies.in_ns)
    )
    together_permille = max(1000, 2 * program.contended_permille)
    return np.maximum(np.maximum(out_ns, in_ns), (out_ns + in_ns) * 1000 // together_permille)


def lower_bound_ns(program: Program) -> int:
    """Step time that this program cannot beat, whatever its release and prefetch positions: int ns.

    Raises:
        SimulationError: pipeline stages wait for each other.
    """
    return int(max(compute_only_ns(program).max(initial=0), link_bound_ns(program).max(initial=0)))
