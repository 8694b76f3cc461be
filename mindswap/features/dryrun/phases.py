"""Phases of a step, and the peak memory of a full model extrapolated from two reduced ones.

The peak is the maximum over the phases (first half of forward, loss, second half of backward, ...), and its phase may
change with the number of layers. Each phase is therefore extrapolated linearly by itself. Dry runs and simulated steps
are extrapolated by the same function, so that the error of the simulated extrapolation applies to the dry runs.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mindswap.features.dryrun.block_roles import LAYER
from mindswap.features.dryrun.memory_pool import DryRun
from mindswap.simulator.memory_parts import MemoryPart
from mindswap.simulator.program import OpKind
from mindswap.simulator.report_data import SimulationReport

BEFORE, INSIDE, AFTER = "before the layers", "in the layers", "after the layers"
# After the last operator of backward: clipping and the optimizer.
OPTIMIZER = (True, "optimizer")
# A pass (is it backward) and a segment of it; layers are split in halves.
Phase = tuple[bool, str]


@dataclass(frozen=True)
class StepPosition:
    """Position of an operator in a step."""

    is_backward: bool  # an operator of the gradient, or recomputed for it
    where: str  # before, in or after the layers, in the order of the pass
    layer: int | None  # layer of the model that ran; None outside the layers and in backward
    operator: str  # name with the names of its cells


class PhasePeak(NamedTuple):
    """Peak memory of one phase of a step."""

    tick: int
    live_bytes: int


PhasePeaks = Mapping[Phase, PhasePeak]


class ExtrapolatedPeak(NamedTuple):
    """Peak memory of the full model."""

    phase: Phase
    peak_bytes: int


def extrapolate_peak(low: PhasePeaks, high: PhasePeaks, num_steps: float) -> ExtrapolatedPeak:
    """Return the extrapolated peak of the full model.

    Args:
        low: phases of the model with fewer layers.
        high: phases of the model with more layers.
        num_steps: how many times the difference of the two models is missing in the second one.
    """
    peaks = {
        phase: extrapolate(low[phase].live_bytes, high[phase].live_bytes, num_steps) for phase in low.keys() & high
    }
    phase = max(peaks, key=peaks.__getitem__)
    return ExtrapolatedPeak(phase, peaks[phase])


def extrapolate(low: int, high: int, num_steps: float) -> int:
    """Continue the line through two values by `num_steps` times their difference."""
    return round(high + (high - low) * num_steps)


def find_positions(run: DryRun) -> dict[int, StepPosition]:
    """Map each tick at which memory changes to the position of the running operator.

    Operators without cells (fused, or inserted by a pass of the backend) get the position of the previous operator.
    In backward the layer is not known: layers that are compiled once share the operator names of their gradients.
    """
    positions: dict[int, StepPosition] = {}
    ticks = sorted(run.operators)
    tick_index = 0
    current = StepPosition(False, BEFORE, None, "")
    has_layers = {False: False, True: False}
    for tick, _ in run.curve:
        while tick_index < len(ticks) and ticks[tick_index] <= tick:
            name = run.operators[ticks[tick_index]]
            tick_index += 1
            match = LAYER.search(name)
            if match is None and name.count("/") < 2:
                current = StepPosition(current.is_backward, current.where, current.layer, name)
                continue
            is_backward = name.startswith(("Gradients/", "recompute_"))
            has_layers[is_backward] |= match is not None
            where = INSIDE if match else AFTER if has_layers[is_backward] else BEFORE
            current = StepPosition(is_backward, where, int(match[1]) if match and not is_backward else None, name)
        positions[tick] = current
    return positions


def find_phase_peaks(run: DryRun) -> dict[Phase, PhasePeak]:
    """Return the peak of each phase of a dry run."""
    positions = find_positions(run)
    gradients = [tick for tick, name in run.operators.items() if name.startswith("Gradients/")]
    end = max(gradients, default=max(run.operators, default=0))

    def phase_of(tick: int) -> Phase:
        return OPTIMIZER if tick > end else (positions[tick].is_backward, positions[tick].where)

    return _phase_peaks(run.curve, phase_of)


def find_simulated_phase_peaks(report: SimulationReport, stage: int) -> dict[Phase, PhasePeak]:
    """Return the peak of each phase of a simulated stage, without workspace; ticks are ns.

    The optimizer is no operator of the program: its memory is that of the last operator of backward.
    """
    program, memory = report.timeline.program, report.stages[stage].memory
    stage_ops = np.arange(program.stage_starts[stage], program.stage_starts[stage + 1])
    ops = stage_ops[program.ops.kind[stage_ops] < OpKind.COLLECTIVE]
    start_ns = report.timeline.op_start_ns[ops]
    has_layers = {False: False, True: False}
    phases: list[Phase] = []
    for kind, layer in zip(program.ops.kind[ops].tolist(), program.ops.layer[ops].tolist(), strict=True):
        is_backward = kind != OpKind.FORWARD
        has_layers[is_backward] |= layer >= 0
        phases.append((is_backward, INSIDE if layer >= 0 else AFTER if has_layers[is_backward] else BEFORE))
    phases[-1] = OPTIMIZER
    running = np.maximum(0, np.searchsorted(start_ns, memory.time_ns, side="right") - 1)
    phase_of = dict(zip(memory.time_ns.tolist(), running.tolist(), strict=True))
    static_bytes = report.stages[stage].static_bytes - report.stages[stage].static_parts[MemoryPart.WORKSPACE]
    live_bytes = memory.by_kind_bytes.sum(axis=0) + static_bytes
    curve = zip(memory.time_ns.tolist(), live_bytes.tolist(), strict=True)
    return _phase_peaks(list(curve), lambda time_ns: phases[phase_of[time_ns]])


def _phase_peaks(curve: Iterable[tuple[int, int]], phase_of: Callable[[int], Phase]) -> dict[Phase, PhasePeak]:
    """Return the highest point of a curve in each phase.

    Args:
        curve: (tick, live bytes), in order.
        phase_of: returns pass and segment at a tick.
    """
    points = [(phase_of(tick), PhasePeak(tick, live_bytes)) for tick, live_bytes in curve]
    layer_ticks: dict[bool, list[int]] = {False: [], True: []}
    for (is_backward, where), point in points:
        if where == INSIDE:
            layer_ticks[is_backward].append(point.tick)
    middle = {is_backward: ticks[len(ticks) // 2] for is_backward, ticks in layer_ticks.items() if ticks}
    peaks: dict[Phase, PhasePeak] = {}
    for (is_backward, where), point in points:
        half = ""
        if where == INSIDE:
            half = ", second half" if point.tick >= middle[is_backward] else ", first half"
        phase = is_backward, where + half
        if phase not in peaks or point.live_bytes > peaks[phase].live_bytes:
            peaks[phase] = point
    return peaks
