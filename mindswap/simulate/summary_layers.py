"""Per layer: what it keeps, swaps and makes again, and how long it takes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mindswap.policy.model import Layers
from mindswap.policy.words import format_layers
from mindswap.simulate.program import MemoryKind, OpKind
from mindswap.simulate.summary_model import LayerRow
from mindswap.simulate.timeline import StallCause, Timeline


@dataclass(frozen=True)
class EqualLayers:
    """Layers with equal bytes and copies."""

    name: str  # in words: `layers 0-30`
    first: LayerRow  # one of them
    exposed_ns: int  # of all of them


def group_layer_rows(rows: Sequence[LayerRow]) -> list[EqualLayers]:
    """Layers that hold, copy and compute the same as one, in order of their first."""
    groups: dict[tuple[int, ...], list[LayerRow]] = {}
    for row in rows:
        outside = row.stage if row.layer < 0 else -1  # embedding and head are not the same thing
        sizes = row.kept_bytes, row.swapped_bytes, row.recomputed_bytes, row.num_copies, row.out_only_bytes
        times = row.forward_ns, row.backward_ns, row.recompute_ns
        groups.setdefault((outside, *sizes, *times), []).append(row)
    num_stages = len({row.stage for row in rows if row.layer < 0})
    return [
        EqualLayers(_name(group, num_stages), group[0], sum(row.exposed_ns for row in group))
        for group in groups.values()
    ]


def _name(group: Sequence[LayerRow], num_stages: int) -> str:
    if group[0].layer >= 0:
        return format_layers(Layers(tuple(row.layer for row in group)))
    return "outside the layers" + (f", stage {group[0].stage}" if num_stages > 1 else "")


def measure_layers(timeline: Timeline) -> tuple[LayerRow, ...]:
    """One row per layer, then one per stage for what is outside the layers.

    Bytes and times are of the first micro-batch: the others do the same.
    """
    program = timeline.program
    ops, copies, intervals = program.ops, program.copies, program.intervals
    if not len(ops):
        return ()
    op_stage = np.repeat(np.arange(program.num_stages), np.diff(program.stage_starts))
    num_layers = int(ops.layer.max()) + 1
    # A row per layer, then one per stage.
    op_row = np.where(ops.layer >= 0, ops.layer, num_layers + op_stage)
    copy_row = np.where(copies.layer >= 0, copies.layer, num_layers + program.copies_stage)
    interval_row = np.where(intervals.layer >= 0, intervals.layer, num_layers + intervals.stage)
    num_rows = num_layers + program.num_stages

    last = ops.micro_batch.min() + program.num_sequences - 1  # piece of the first micro-batch
    is_first_op = ops.micro_batch <= last
    is_first_copy = copies.micro_batch <= last
    # An interval that begins with a copy in is counted as the copy.
    is_first_interval = (intervals.begin >= 0) & is_first_op[np.maximum(intervals.begin, 0)]

    def total(rows: np.ndarray, values: np.ndarray, chosen: np.ndarray) -> list[int]:
        sums = np.zeros(num_rows, np.int64)
        np.add.at(sums, rows[chosen], values[chosen])
        return sums.tolist()

    def compute_ns(kind: OpKind) -> list[int]:
        return total(op_row, ops.duration_ns, is_first_op & (ops.kind == kind))

    def held_bytes(kind: MemoryKind) -> list[int]:
        return total(interval_row, intervals.size_bytes, is_first_interval & (intervals.kind == kind))

    is_copy_stall = np.isin(timeline.stall_cause, (StallCause.COPY_OUT, StallCause.COPY_IN))
    stalled = np.flatnonzero(is_copy_stall & (ops.kind < OpKind.COLLECTIVE))
    exposed = np.zeros(num_rows, np.int64)
    np.add.at(exposed, copy_row[timeline.stall_copy[stalled]], timeline.stall_ns[stalled])

    stage_of_row = np.arange(num_rows) - num_layers
    stage_of_row[op_row] = op_stage
    returns = copies.in_ns > 0
    columns = {
        "kept_bytes": held_bytes(MemoryKind.KEPT),
        "swapped_bytes": total(copy_row, copies.size_bytes, is_first_copy & returns),
        "recomputed_bytes": held_bytes(MemoryKind.RECOMPUTED),
        "num_copies": total(copy_row, np.ones(len(copies), np.int64), is_first_copy & returns),
        "forward_ns": compute_ns(OpKind.FORWARD),
        "backward_ns": compute_ns(OpKind.BACKWARD),
        "recompute_ns": compute_ns(OpKind.RECOMPUTE),
        "exposed_ns": exposed.tolist(),
        "out_only_bytes": total(copy_row, copies.size_bytes, is_first_copy & ~returns),
    }
    return tuple(
        LayerRow(
            layer=row if row < num_layers else -1,
            stage=int(stage_of_row[row]),
            **{name: column[row] for name, column in columns.items()},
        )
        for row in np.unique(op_row[ops.kind < OpKind.COLLECTIVE]).tolist()
    )
