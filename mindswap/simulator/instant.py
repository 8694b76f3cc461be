"""The memory curve of a step whose copies take no time: the order of events is decided by the rules alone."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mindswap.simulator.block import Block
from mindswap.simulator.build import build_program
from mindswap.simulator.engine import simulate
from mindswap.simulator.memory import interval_times
from mindswap.simulator.placing import TransferCosts
from mindswap.simulator.program import MemoryKind, OpKind

OPERATOR_NS = 1000


@dataclass(frozen=True)
class InstantCurve:
    """One micro-batch on one stage."""

    ops: tuple[str, ...]  # primitive of each operator in the order in which they run
    is_again: tuple[bool, ...]  # it is a forward operator that backward runs again
    labels: tuple[str, ...]  # what the simulator calls it
    num_forward: int  # operators of forward
    live_bytes: tuple[int, ...]  # activation memory while each operator runs, without gradients of weights


def simulate_instant(blocks: Sequence[Block]) -> InstantCurve:
    """The curve of blocks (as in `build_program`): operators take equally long, copies and collectives no time."""
    program = build_program(blocks, TransferCosts(lambda size: 0, lambda size: 0))
    is_compute = program.ops.kind <= OpKind.RECOMPUTE
    durations = np.where(is_compute, OPERATOR_NS, 0).astype(np.int64)
    timeline = simulate(replace(program, ops=replace(program.ops, duration_ns=durations)))
    begin_ns, end_ns = interval_times(timeline)
    middle = timeline.op_start_ns[is_compute] + OPERATOR_NS // 2
    live = np.zeros(len(middle) + 1, np.int64)
    size_bytes = np.where(program.intervals.kind == MemoryKind.GRADIENT, 0, program.intervals.size_bytes)
    # An interval holds the operators whose middle it covers; those are consecutive.
    np.add.at(live, np.searchsorted(middle, begin_ns), size_bytes)
    np.subtract.at(live, np.searchsorted(middle, end_ns), size_bytes)
    forward = [op for block in blocks for op in block.forward]
    all_ops = [*forward, *(op for block in reversed(blocks) for op in block.backward)]
    computed = [op for op in all_ops if op.kind <= OpKind.RECOMPUTE]
    return InstantCurve(
        tuple(op.op for op in computed),
        tuple(op.kind is OpKind.RECOMPUTE for op in computed),
        tuple(str(op.label) for op in computed),
        sum(op.kind <= OpKind.RECOMPUTE for op in forward),
        tuple(int(size) for size in np.cumsum(live)[:-1]),
    )
