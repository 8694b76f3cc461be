"""Parts of a `SimulationReport` from a timeline.

Stalls by cause, memory of each stage at its peak, and saved, swapped and recomputed bytes of each layer.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from mindswap.policy.model import Layers
from mindswap.policy.wording import format_layers
from mindswap.simulator.cost.static_memory import StaticMemory
from mindswap.simulator.memory import profile_memory
from mindswap.simulator.memory_parts import MemoryPart
from mindswap.simulator.program import MemoryKind, OpKind, Program
from mindswap.simulator.report_data import Cause, LayerRow, Moment, PeakContributor, StageReport
from mindswap.simulator.timeline import MemoryProfile, StallCause, Timeline, find_waits

# Host memory of swapped activations.


def peak_host_bytes(timeline: Timeline, copies: np.ndarray) -> int:
    """Return the peak host memory of copies: allocated when an offload starts, freed when the prefetch ends.

    Assumed: without a prefetch it is freed with the device memory, because no operator reads it on the host.

    Args:
        timeline: a simulated step.
        copies: copies to count: positions, or a mask of shape (num_copies,).

    Returns:
        Bytes.
    """
    size_bytes, in_ns = timeline.program.copies.size_bytes[copies], timeline.program.copies.in_ns[copies]
    free_ns = np.where(in_ns > 0, timeline.in_end_ns[copies], timeline.release_ns[copies])
    times = np.concatenate([timeline.out_start_ns[copies], free_ns])
    changes = np.concatenate([size_bytes, -size_bytes])
    in_order = np.lexsort((changes, times))  # at equal times, frees precede allocations
    return int(np.cumsum(changes[in_order]).max(initial=0))


def host_bytes_per_node(stage_host_bytes: Sequence[int], num_cards: int, num_cards_per_node: int) -> int:
    """Return the pinned host memory of the node that needs most, with ranks assigned stage by stage as in MindSpore.

    Pinned memory is not freed between uses, so the peaks of all cards of a node add up.

    Args:
        stage_host_bytes: peak host memory of one card, for each stage.
        num_cards: cards of the job.
        num_cards_per_node: cards of one node.
    """
    cards_per_stage = max(1, num_cards // len(stage_host_bytes))
    per_card = [size_bytes for size_bytes in stage_host_bytes for _ in range(cards_per_stage)]
    nodes = (per_card[first : first + num_cards_per_node] for first in range(0, len(per_card), num_cards_per_node))
    return max(map(sum, nodes), default=0)


COPY_CAUSES = (StallCause.COPY_OUT, StallCause.COPY_IN)


def measure_stages(timeline: Timeline, static: Sequence[StaticMemory]) -> tuple[StageReport, ...]:
    """Compute compute time, stalls and memory of each stage.

    Args:
        timeline: a simulated step.
        static: static memory of each stage.
    """
    memory = (profile_memory(timeline, stage) for stage in range(timeline.program.num_stages))
    return tuple(
        _measure_stage(timeline, profile, stage_static) for profile, stage_static in zip(memory, static, strict=True)
    )


def _measure_stage(timeline: Timeline, memory: MemoryProfile, static: StaticMemory) -> StageReport:
    program, stage = timeline.program, memory.stage
    ops_of_stage = np.arange(program.stage_starts[stage], program.stage_starts[stage + 1])
    compute = ops_of_stage[program.ops.kind[ops_of_stage] < OpKind.COLLECTIVE]
    duration_ns = program.ops.duration_ns[compute]
    compute_ns = int(duration_ns.sum())
    _, begin_ns, end_ns, cause = find_waits(timeline, stage)
    copy_out_ns, copy_in_ns, communication_ns = (
        int((end_ns - begin_ns)[cause == wait_cause].sum())
        for wait_cause in (StallCause.COPY_OUT, StallCause.COPY_IN, StallCause.COMMUNICATION)
    )
    copies = np.flatnonzero(program.copies_stage == stage)
    return StageReport(
        stage=stage,
        static_parts=static.parts,
        parts=_peak_parts(program, memory, static),
        memory=memory,
        moment=_find_moment(timeline, compute, memory.peak_ns),
        holders=_find_holders(timeline, memory),
        compute_ns=compute_ns,
        recompute_ns=int(duration_ns[program.ops.kind[compute] == OpKind.RECOMPUTE].sum()),
        # The remainder, so that the parts always add up to the step time.
        bubble_ns=timeline.step_time_ns - compute_ns - copy_out_ns - copy_in_ns - communication_ns,
        copy_out_ns=copy_out_ns,
        copy_in_ns=copy_in_ns,
        communication_ns=communication_ns,
        swapped_bytes=int(program.copies.size_bytes[copies].sum()),
        offload_busy_ns=int((timeline.out_end_ns[copies] - timeline.out_start_ns[copies]).sum()),
        prefetch_busy_ns=int((timeline.in_end_ns[copies] - timeline.in_start_ns[copies]).sum()),
        host_bytes=static.host_bytes + peak_host_bytes(timeline, copies),
    )


def _find_moment(timeline: Timeline, compute: np.ndarray, peak_ns: int) -> Moment:
    """Return the operator that runs, or ran last, on the compute stream at the peak."""
    ops = timeline.program.ops
    op = compute[max(0, int(np.searchsorted(timeline.op_start_ns[compute], peak_ns, side="right")) - 1)]
    return Moment(
        time_ns=peak_ns,
        phase=OpKind(ops.kind[op]).name.lower(),
        layer=int(ops.layer[op]),
        micro_batch=int(ops.micro_batch[op]) // timeline.program.num_sequences,
        label=str(timeline.program.labels[ops.label[op]]),
    )


def _peak_parts(program: Program, memory: MemoryProfile, static: StaticMemory) -> dict[MemoryPart, int]:
    """Return the bytes of all parts at the peak of a stage, static memory included."""
    parts = dict.fromkeys(MemoryPart, 0) | static.parts
    live = program.intervals.rows(memory.holders)
    for part in MemoryPart:
        parts[part] += int(live.size_bytes[live.part == part].sum())
    if parts[MemoryPart.OPTIMIZER_TEMPORARIES] and program.closing_parts:
        # One interval, which replaces memory of other parts.
        parts[MemoryPart.OPTIMIZER_TEMPORARIES] = 0
        for part, size_bytes in program.closing_parts[memory.stage].items():
            parts[part] += size_bytes
    return parts


class _HolderKey(NamedTuple):
    label: int
    kind: int
    part: int


def _find_holders(timeline: Timeline, memory: MemoryProfile) -> tuple[PeakContributor, ...]:
    intervals, labels = timeline.program.intervals, timeline.program.labels
    groups: dict[_HolderKey, list[int]] = {}
    for position in memory.holders.tolist():
        columns = (intervals.label, intervals.kind, intervals.part)
        groups.setdefault(_HolderKey(*(int(column[position]) for column in columns)), []).append(position)
    holders = [
        PeakContributor(
            label=str(labels[key.label]),
            kind=MemoryKind(key.kind),
            part=MemoryPart(key.part),
            size_bytes=int(intervals.size_bytes[positions].sum()),
            num_tensors=len(positions),
            layers=tuple(np.unique(intervals.layer[positions]).tolist()),
        )
        for key, positions in groups.items()
    ]
    return tuple(sorted(holders, key=lambda holder: -holder.size_bytes))


def find_causes(timeline: Timeline) -> tuple[Cause, ...]:
    """Return the copies that the compute stream waited for, longest exposed time first."""
    program, copies = timeline.program, timeline.program.copies
    waited: dict[tuple[int, int], tuple[int, set[int]]] = {}
    is_compute = program.ops.kind < OpKind.COLLECTIVE
    is_copy = is_compute & np.isin(timeline.stall_cause, COPY_CAUSES) & (timeline.stall_ns > 0)
    for op in np.flatnonzero(is_copy).tolist():
        copy = timeline.stall_copy[op]
        key = int(copies.label[copy]), int(timeline.stall_cause[op])
        exposed_ns, layers = waited.get(key, (0, set()))
        waited[key] = exposed_ns + int(timeline.stall_ns[op]), layers | {int(copies.layer[copy])}
    causes = [
        Cause(str(program.labels[label]), StallCause(cause), tuple(sorted(layers)), exposed_ns)
        for (label, cause), (exposed_ns, layers) in waited.items()
    ]
    return tuple(sorted(causes, key=lambda cause: -cause.exposed_ns))


def group_layer_rows(rows: Sequence[LayerRow]) -> list[tuple[str, LayerRow]]:
    """Group layers with equal rows, apart from the exposed time.

    Returns:
        (name, row) of each group in order of its first layer; the row has the mean exposed time of its layers.
    """
    groups: dict[LayerRow, list[LayerRow]] = {}
    for row in rows:
        outside = row.stage if row.layer < 0 else -1  # embedding and head are never one group
        groups.setdefault(replace(row, layer=0, stage=outside, exposed_ns=0), []).append(row)
    num_stages = len({row.stage for row in rows if row.layer < 0})
    return [
        (_name(group, num_stages), replace(group[0], exposed_ns=sum(row.exposed_ns for row in group) // len(group)))
        for group in groups.values()
    ]


def _name(group: Sequence[LayerRow], num_stages: int) -> str:
    if group[0].layer >= 0:
        return format_layers(Layers(tuple(row.layer for row in group)))
    return "outside the layers" + (f", stage {group[0].stage}" if num_stages > 1 else "")


def measure_layers(timeline: Timeline) -> tuple[LayerRow, ...]:
    """Compute one row per layer, then one per stage for the operators outside the layers.

    Bytes and times are those of the first micro-batch, which represents all others.
    """
    program = timeline.program
    ops, copies, intervals = program.ops, program.copies, program.intervals
    op_stage = np.repeat(np.arange(program.num_stages), np.diff(program.stage_starts))
    num_layers = int(ops.layer.max()) + 1
    # Row numbers: layers, then stages.
    op_row = np.where(ops.layer >= 0, ops.layer, num_layers + op_stage)
    copy_row = np.where(copies.layer >= 0, copies.layer, num_layers + program.copies_stage)
    interval_row = np.where(intervals.layer >= 0, intervals.layer, num_layers + intervals.stage)
    num_rows = num_layers + program.num_stages

    last = ops.micro_batch.min() + program.num_sequences - 1  # piece of the first micro-batch
    is_first_op = ops.micro_batch <= last
    is_first_copy = copies.micro_batch <= last
    # An interval that begins with a prefetch is counted as a copy.
    is_first_interval = (intervals.begin >= 0) & is_first_op[np.maximum(intervals.begin, 0)]

    def total(rows: np.ndarray, values: np.ndarray, chosen: np.ndarray) -> list[int]:
        sums = np.zeros(num_rows, np.int64)
        np.add.at(sums, rows[chosen], values[chosen])
        return sums.tolist()

    def compute_ns(kind: OpKind) -> list[int]:
        return total(op_row, ops.duration_ns, is_first_op & (ops.kind == kind))

    def held_bytes(kind: MemoryKind) -> list[int]:
        return total(interval_row, intervals.size_bytes, is_first_interval & (intervals.kind == kind))

    is_copy_stall = np.isin(timeline.stall_cause, COPY_CAUSES)
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
