"""Inputs of the lower bound, from the step without any policy: memory and time at the peak, and work of each stage."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np

from mindswap.planner.lower_bound.liveness_points import Liveness, LivenessPoint, alive_bytes, compute_liveness
from mindswap.planner.lower_bound.pass_chains import COMPUTE, PassKey, PassTimes, StepPasses, pass_times
from mindswap.planner.lower_bound.tensor_graph import TensorGraph, build_tensor_graphs
from mindswap.simulator.placing import TransferCosts
from mindswap.simulator.program import OpKind
from mindswap.simulator.schedules.rounds import PassWork
from mindswap.simulator.step_model import SimulatedStep, StepModel
from mindswap.simulator.timeline import Timeline


@dataclass(frozen=True)
class StageLayers:
    """Equal layers of a stage, at the peak of the stage."""

    kind: int  # index of the compiled layer that represents them
    in_flight: int = 1  # micro-batches whose activations are on the device
    num_begun: int = 0  # micro-batches whose backward has begun
    num_waiting: int = 0  # micro-batches whose forward of the layer has ended, and whose backward has not begun
    is_sent: bool = False  # another pass reads the output: the next layer is on another stage, or of another chunk


@dataclass(frozen=True, eq=False)
class Stage:
    """One pipeline stage if everything is kept, up to its peak memory before the end of its first backward."""

    peak_bytes: int  # device memory at the peak
    layers: Mapping[StageLayers, int]  # number of layers of each kind
    window_ns: int  # time from the first operator of the micro-batches in flight to the peak
    work_ns: int  # time of one micro-batch on the compute stream, with exposed communication of its passes
    # time that the compute stream waits before the first backward for other stages and for all-gathered weights, and
    # additional time of the first forward, for operators that run once in a step. A policy shortens it at most by the
    # stores that forward avoids: the longest path through operators and communication gets shorter only by the
    # operators on it.
    idle_ns: int = 0
    backward_ns: int = 0  # compute time of backward of one micro-batch; with split sequences, of the shortest piece
    num_chunks: int = 1  # virtual chunks
    is_past_forward: bool = False  # forward of all layers ends before the peak
    # for stages that alternate forward and backward of each micro-batch: `window_ns` of each further micro-batch. The
    # first one may wait for all-gathered weights
    later_windows_ns: tuple[int, ...] = ()
    liveness_points: tuple[LivenessPoint, ...] = ()  # further points at which the budget may be exceeded


@dataclass(frozen=True, eq=False)
class BoundInputs:
    """Inputs of the lower bound, of the step that keeps everything."""

    tensor_graphs: tuple[TensorGraph, ...]  # of the compiled layers
    stages: tuple[Stage, ...]  # pipeline stages
    transfers: TransferCosts  # durations of copies
    num_micro_batches: int = 1  # micro-steps of the step: each sequence piece counts
    step_overhead_ns: int = 0  # time after backward
    gradients_ns: int = 0  # part of the overhead that a longer backward would hide
    num_gradient_reductions: int = 1  # backward passes that would hide it
    passes: StepPasses | None = None  # passes of the pipeline; None for one stage, or if the schedule splits backward


def collect_bound_inputs(model: StepModel, keep: SimulatedStep) -> BoundInputs:
    """Collect the inputs of the lower bound.

    Args:
        model: step model.
        keep: simulation without swap and recompute; a step of fewer micro-batches is sufficient.
    """
    # A longer backward hides more of the gradient reduction.
    exposed_ns = model.exposed_reduction_ns(keep.timeline)
    num_micro_steps = 1 + int(keep.timeline.program.ops.micro_batch.max())
    liveness = compute_liveness(model.with_swap(), num_micro_steps // model.layout.num_sequences)
    tensor_graphs, times, stages = build_tensor_graphs(model), pass_times(model), range(model.layout.num_stages)
    smallest_bytes = min(size for tensor_graph in tensor_graphs for size in tensor_graph.sizes_bytes)
    is_split = any(entry.work is PassWork.WEIGHT_GRADIENT for entry in model.layout.passes(0))
    return BoundInputs(
        tensor_graphs=tensor_graphs,
        stages=tuple(_collect_stage(model, keep.timeline, liveness, stage, times, smallest_bytes) for stage in stages),
        transfers=model.transfers,
        num_micro_batches=model.layout.num_micro_steps,
        step_overhead_ns=sum(term.duration_ns for term in model.terms(keep.timeline)),
        gradients_ns=max(exposed_ns - model.weights.min_reduction_ns, 0),
        num_gradient_reductions=model.settings.num_gradient_reductions,
        passes=None
        if is_split or len(stages) == 1
        else StepPasses(model.layout, _min_times(model, times, tensor_graphs)),
    )


def _min_times(
    model: StepModel, times: Mapping[PassKey, PassTimes], tensor_graphs: Sequence[TensorGraph]
) -> dict[PassKey, PassTimes]:
    """Return minimum times of passes under any policy, without recompute: forward may avoid stores and copies."""
    layer_map = model.captured.sample.layer_map
    avoided_ns = [0, *(tensor_graphs[kind].avoided_forward_ns for kind in layer_map), 0]  # of each section

    def shortened(key: PassKey, pass_time: PassTimes) -> PassTimes:
        stage, chunk, is_forward, _ = key
        return pass_time.shortened(
            is_forward * sum(avoided_ns[segment] for segment in model.layout.chunks[stage][chunk])
        )

    return {key: shortened(key, pass_time) for key, pass_time in times.items()}


def _collect_stage(
    model: StepModel,
    timeline: Timeline,
    liveness: Liveness,
    stage: int,
    times: Mapping[PassKey, PassTimes],
    smallest_bytes: int,
) -> Stage:
    program, ops = timeline.program, timeline.program.ops
    begin, end = int(program.stage_starts[stage]), int(program.stage_starts[stage + 1])
    positions = np.arange(begin, end)
    kind, micro_batch, layer = ops.kind[begin:end], ops.micro_batch[begin:end], ops.layer[begin:end]
    is_backward = kind == OpKind.BACKWARD
    first_backward = int(positions[is_backward][0])
    is_first_micro_step = is_backward & (micro_batch == ops.micro_batch[first_backward])
    # With several chunks the first backward pass ends where the next forward begins.
    later_forward = positions[(kind == OpKind.FORWARD) & (positions > first_backward)]
    last = int(positions[is_first_micro_step & (positions < min(later_forward, default=end))][-1])

    intervals = program.intervals
    of_stage = intervals.stage == stage
    alive = alive_bytes(
        intervals.begin[of_stage] - begin, intervals.end[of_stage] - begin, intervals.size_bytes[of_stage], end - begin
    )
    peak_op = begin + int(np.argmax(alive[: last + 1 - begin]))
    pairs = _pairs_alive(timeline, stage, peak_op)
    is_alive = np.array([pair in pairs for pair in zip(layer.tolist(), micro_batch.tolist(), strict=True)])
    first = int(positions[is_alive][0]) if is_alive.any() else begin
    has_begun = {
        (int(ops.layer[op]), int(ops.micro_batch[op]))
        for op in positions[is_backward & (positions >= first) & (positions <= peak_op)]
    }

    is_after_peak = (kind == OpKind.FORWARD) & (positions >= peak_op)
    still_in_forward = set(zip(layer[is_after_peak].tolist(), micro_batch[is_after_peak].tolist(), strict=True))
    in_flight, num_begun, num_waiting = (
        Counter(layer for layer, _ in alive_pairs)
        for alive_pairs in (pairs, has_begun, pairs - has_begun - still_in_forward)
    )
    layer_map, chunks = model.captured.sample.layer_map, model.layout.chunks[stage]
    layers_of_segments = {
        segment - 1: StageLayers(
            layer_map[segment - 1],
            in_flight[segment - 1],
            num_begun[segment - 1],
            num_waiting[segment - 1],
            is_sent=segment + 1 not in chunk,
        )
        for chunk in chunks
        for segment in chunk
        if 1 <= segment <= len(layer_map)
    }
    static_bytes = model.static[stage].total_bytes
    liveness_points = (
        *liveness.liveness_points(stage, static_bytes, layers_of_segments),
        *_closing_points(model, stage, static_bytes),
    )
    return Stage(
        peak_bytes=int(alive[peak_op - begin]) + static_bytes,
        layers=Counter(layers_of_segments.values()),
        num_chunks=len(chunks),
        window_ns=int(timeline.op_start_ns[peak_op] - timeline.op_start_ns[first]),
        **_work_of(model, timeline, stage, first_backward, times),
        is_past_forward=not (is_after_peak & (layer >= 0)).any(),
        later_windows_ns=_later_windows_ns(model, timeline, stage, alive, peak_op, smallest_bytes),
        liveness_points=liveness_points,
    )


def _closing_points(model: StepModel, stage: int, static_bytes: int) -> tuple[LivenessPoint, ...]:
    """Return the end of backward of a stage, when the optimizer needs the gradients: no policy changes that memory."""
    fixed_bytes = model.layout.closing_bytes[stage] if model.layout.closing_bytes else 0
    return (LivenessPoint(fixed_bytes + static_bytes, {}, is_past_forward=True),) if fixed_bytes else ()


def _later_windows_ns(
    model: StepModel, timeline: Timeline, stage: int, alive: np.ndarray, first_peak: int, smallest_bytes: int
) -> tuple[int, ...]:
    """Compute `Stage.later_windows_ns`; empty if passes of micro-batches overlap, or their peaks are elsewhere.

    A later micro-batch may have a lower peak than the first one, at `first_peak`. The difference is memory that late
    copies may use; it is counted as copy time, at the rate of the smallest tensor.

    Args:
        model: step model.
        timeline: simulation without swap and recompute.
        stage: index of the stage.
        alive: bytes at each operator of the stage, int64, shape (num_ops of the stage,).
        first_peak: operator at the peak of the first micro-batch.
        smallest_bytes: size of the smallest tensor.
    """
    layout, ops, start_ns = model.layout, timeline.program.ops, timeline.op_start_ns
    works = [entry.work for entry in layout.passes(stage)]
    is_alternating = works == [PassWork.FORWARD, PassWork.BACKWARD] * (len(works) // 2)
    if not is_alternating or len(layout.chunks[stage]) > 1 or layout.num_sequences > 1:
        return ()
    begin, end = timeline.program.stage_starts[stage : stage + 2].tolist()
    compute, windows = begin + np.flatnonzero(ops.kind[begin:end] < OpKind.COLLECTIVE), []
    for micro_step in range(1, 1 + int(ops.micro_batch[begin:end].max())):
        own = compute[ops.micro_batch[compute] == micro_step]
        peak_op = int(own[np.argmax(alive[own - begin])])
        if (ops.layer[peak_op], ops.kind[peak_op]) != (ops.layer[first_peak], ops.kind[first_peak]):
            return ()
        spare_bytes = max(0, int(alive[first_peak - begin] - alive[peak_op - begin]))
        spare_ns = -(-spare_bytes * model.transfers.copy_out_ns(smallest_bytes) // smallest_bytes)
        windows.append(int(start_ns[peak_op] - start_ns[own[np.argmax(ops.layer[own] >= 0)]]) + spare_ns)
    # Micro-batches that are not simulated get the maximum.
    return (*windows, *[max(windows)] * (layout.num_micro_steps - 1 - len(windows))) if windows else ()


def _work_of(
    model: StepModel, timeline: Timeline, stage: int, first_backward: int, times: Mapping[PassKey, PassTimes]
) -> dict[str, int]:
    """Return the fields of `Stage` that are times; `first_backward` is the first operator of backward."""
    stage_times = {key: pass_time for key, pass_time in times.items() if key[0] == stage}
    num_sequences = model.layout.num_sequences
    num_micro_steps = 1 + int(timeline.program.ops.micro_batch.max())
    order = replace(model.layout, num_micro_batches=num_micro_steps // num_sequences).passes(stage)
    warm_up = list(takewhile(lambda entry: entry.work is PassWork.FORWARD, order))
    idle_ns = int(timeline.op_start_ns[first_backward])
    idle_ns -= sum(
        stage_times[stage, entry.chunk, True, entry.sequence].latencies[COMPUTE].compute_ns for entry in warm_up
    )
    # The wait of the first backward for its own communication is part of its work.
    first = order[len(warm_up)]
    idle_ns -= stage_times[stage, first.chunk, False, first.sequence].latencies[COMPUTE].begin_ns
    backward_ns = Counter[int]()
    for (_, _, is_forward, piece), pass_time in stage_times.items():
        backward_ns[piece] += 0 if is_forward else pass_time.busy_ns
    return {
        "work_ns": sum(pass_time.latencies[COMPUTE].compute_ns for pass_time in stage_times.values()) // num_sequences,
        "idle_ns": idle_ns,
        "backward_ns": min(backward_ns.values()),
    }


def _pairs_alive(timeline: Timeline, stage: int, op: int) -> set[tuple[int, int]]:
    """Return (layer, micro-batch) of the activations that forward has produced and that are live at an operator."""
    intervals, ops = timeline.program.intervals, timeline.program.ops
    is_selected = (intervals.stage == stage) & (intervals.layer >= 0) & (intervals.begin <= op) & (intervals.end >= op)
    is_selected &= ops.kind[intervals.begin] == OpKind.FORWARD
    return set(
        zip(intervals.layer[is_selected].tolist(), ops.micro_batch[intervals.begin[is_selected]].tolist(), strict=True)
    )
