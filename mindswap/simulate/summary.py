"""Timeline -> parts of a SimulationReport: who waited for whom, what fills the memory of each stage at its peak."""

from collections.abc import Sequence

import numpy as np

from mindswap.cost.static_memory import StaticMemory
from mindswap.simulate.host import peak_host_bytes
from mindswap.simulate.memory import profile_memory
from mindswap.simulate.program import MemoryKind, OpKind
from mindswap.simulate.summary_model import Cause, Holder, Moment, StageReport
from mindswap.simulate.timeline import MemoryProfile, StallCause, Timeline
from mindswap.simulate.waits import find_waits

COPY_CAUSES = (StallCause.COPY_OUT, StallCause.COPY_IN)


def measure_stages(timeline: Timeline, static: Sequence[StaticMemory]) -> tuple[StageReport, ...]:
    """What each stage does, waits for and holds; `static` is its memory that is there all the time."""
    memory = (profile_memory(timeline, stage) for stage in range(timeline.program.num_stages))
    return tuple(_measure_stage(timeline, own, parts) for own, parts in zip(memory, static, strict=True))


def _measure_stage(timeline: Timeline, memory: MemoryProfile, static: StaticMemory) -> StageReport:
    program, stage = timeline.program, memory.stage
    own = np.arange(program.stage_starts[stage], program.stage_starts[stage + 1])
    compute = own[program.ops.kind[own] < OpKind.COLLECTIVE]
    duration_ns = program.ops.duration_ns[compute]
    compute_ns = int(duration_ns.sum())
    _, begin_ns, end_ns, cause = find_waits(timeline, stage)
    copy_out_ns, copy_in_ns, communication_ns = (
        int((end_ns - begin_ns)[cause == one].sum())
        for one in (StallCause.COPY_OUT, StallCause.COPY_IN, StallCause.COMMUNICATION)
    )
    copies = np.flatnonzero(program.copies_stage == stage)
    return StageReport(
        stage=stage,
        static_parts=(
            ("parameters", static.parameter_bytes),
            ("sums of gradients", static.gradient_bytes),
            ("optimizer state", static.optimizer_bytes),
            ("workspace", static.workspace_bytes),
            ("constants", static.constant_bytes),
        ),
        memory=memory,
        moment=_find_moment(timeline, compute, memory.peak_ns),
        holders=_find_holders(timeline, memory),
        compute_ns=compute_ns,
        recompute_ns=int(duration_ns[program.ops.kind[compute] == OpKind.RECOMPUTE].sum()),
        # What is left, so that the parts always make the whole.
        bubble_ns=timeline.step_time_ns - compute_ns - copy_out_ns - copy_in_ns - communication_ns,
        copy_out_ns=copy_out_ns,
        copy_in_ns=copy_in_ns,
        communication_ns=communication_ns,
        swapped_bytes=int(program.copies.size_bytes[copies].sum()),
        offload_busy_ns=int((timeline.out_end_ns[copies] - timeline.out_start_ns[copies]).sum()),
        prefetch_busy_ns=int((timeline.in_end_ns[copies] - timeline.in_start_ns[copies]).sum()),
        host_bytes=peak_host_bytes(timeline, copies),
    )


def _find_moment(timeline: Timeline, compute: np.ndarray, peak_ns: int) -> Moment | None:
    """The operator that runs, or ran last, on the compute stream at the peak."""
    if not len(compute):
        return None
    ops = timeline.program.ops
    op = compute[max(0, int(np.searchsorted(timeline.op_start_ns[compute], peak_ns, side="right")) - 1)]
    return Moment(
        time_ns=peak_ns,
        phase=OpKind(ops.kind[op]).name.lower(),
        layer=int(ops.layer[op]),
        micro_batch=int(ops.micro_batch[op]) // timeline.program.num_sequences,
        label=str(timeline.program.labels[ops.label[op]]),
    )


def _find_holders(timeline: Timeline, memory: MemoryProfile) -> tuple[Holder, ...]:
    intervals, labels = timeline.program.intervals, timeline.program.labels
    groups: dict[tuple[int, int], list[int]] = {}
    for position in memory.holders.tolist():
        groups.setdefault((int(intervals.label[position]), int(intervals.kind[position])), []).append(position)
    holders = [
        Holder(
            label=str(labels[label]),
            kind=MemoryKind(kind),
            size_bytes=int(intervals.size_bytes[positions].sum()),
            num_tensors=len(positions),
            layers=tuple(np.unique(intervals.layer[positions]).tolist()),
        )
        for (label, kind), positions in groups.items()
    ]
    return tuple(sorted(holders, key=lambda holder: -holder.size_bytes))


def find_causes(timeline: Timeline) -> tuple[Cause, ...]:
    """Copies that compute waited for, longest first."""
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
