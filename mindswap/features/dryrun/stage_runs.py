"""Memory of each pipeline stage from its dry runs: measured with all layers, or extrapolated from two short models.

The peak is the maximum over the phases of a step (first half of forward, loss, second half of backward, ...), and the
phase of the peak may change with the number of layers. A line through the two peaks would then be too low, so each
phase is extrapolated linearly by itself. If layers differ, phases that few layers determine cannot be extrapolated:
then the two peaks are extrapolated and corrected by the extrapolation error of the simulation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mindswap.features.dryrun.memory_pool import CATEGORIES, LAYER, DryRun
from mindswap.simulator.program import MemoryKind
from mindswap.simulator.report_data import SimulationReport, StageReport
from mindswap.units import format_bytes

# Category of each part of the simulated memory; gathered weights are recognized by AllGather in their label.
_STATIC_CATEGORIES = {
    "parameters": "weights",
    "optimizer state": "optimizer states",
    "sums of gradients": "gradients",
    "constants": "constants",
}
_HOLDER_CATEGORIES = {
    MemoryKind.KEPT: "saved activations",
    MemoryKind.OFFLOADING: "saved activations",
    MemoryKind.PREFETCHED: "copies back",
    MemoryKind.GRADIENT: "gradients",
}


@dataclass(frozen=True)
class StepPosition:
    """Position of an operator in a step."""

    is_backward: bool  # an operator of the gradient, or recomputed for it
    where: str  # before, in or after the layers, in the order of the pass
    layer: int | None  # layer of the model that ran; None outside the layers and in backward
    operator: str  # name with the names of its cells


@dataclass(frozen=True, eq=False)
class StageRun:
    """Memory of a pipeline stage with all its layers, measured or extrapolated. Sizes in bytes.

    Attributes:
        stage: index of the pipeline stage.
        num_layers: layers of the stage in the full model.
        runs: number of layers of the stage that ran -> dry run; one, or two to extrapolate from.
        used_peak_bytes: peak memory without fragmentation.
        actual_peak_bytes: peak memory with fragmentation.
        position: position of the peak in the longest run.
        category_bytes: live memory at the peak by category.
    """

    stage: int
    num_layers: int
    runs: Mapping[int, DryRun]
    used_peak_bytes: int
    actual_peak_bytes: int
    position: StepPosition
    category_bytes: Mapping[str, int]

    @property
    def run(self) -> DryRun:
        """The dry run with the most layers."""
        return self.runs[max(self.runs)]


@dataclass(frozen=True, eq=False)
class DryRunReport:
    """Memory of a configuration on MindSpore's Ascend backend without a card. There are no times and no values.

    Attributes:
        title: name of the configuration.
        stages: memory of each requested rank.
        simulated: the simulated step for comparison; None if it was not simulated.
        num_layers: layers of the full model.
        depths: layers of the models that ran.
        budget_bytes: memory budget of a card; None for no limit.
        has_cann: whether the real CANN libraries were used.
        notes: caveats for the reader.
        counts_fragments: whether fragmentation counts against the budget; it does if the device's memory pool cannot
            map pages.
        margin_permille: part of the budget that plans keep free.
    """

    title: str
    stages: tuple[StageRun, ...]
    simulated: SimulationReport | None
    num_layers: int
    depths: tuple[int, ...]
    budget_bytes: int | None
    has_cann: bool
    notes: tuple[str, ...] = ()
    counts_fragments: bool = False
    margin_permille: int = 0

    def __repr__(self) -> str:
        verdict = "fits" if self.fits else "does not fit"
        return f"<DryRunReport {self.title}: {format_bytes(self.used_peak_bytes)} without fragments, {verdict}>"

    @property
    def peak_gib(self) -> float:
        """The value of `peak_bytes` in GiB."""
        return self.peak_bytes / 2**30

    @property
    def used_peak_bytes(self) -> int:
        """Highest peak of all ranks in bytes, without fragmentation and workspaces."""
        return max(stage.used_peak_bytes for stage in self.stages)

    @property
    def actual_peak_bytes(self) -> int:
        """Highest peak of all ranks in bytes, with fragmentation."""
        return max(stage.actual_peak_bytes for stage in self.stages)

    def workspace_bytes(self, stage: StageRun) -> int:
        """Return the simulated workspace of a stage in bytes, because a dry run has none; 0 if not simulated."""
        simulated = self.simulated_stage(stage)
        return dict(simulated.static_parts).get("workspace", 0) if simulated else 0

    def simulated_stage(self, stage: StageRun) -> StageReport | None:
        """Return the simulated stage; None if the step was not simulated."""
        return self.simulated.stages[stage.stage] if self.simulated else None

    def simulated_category_bytes(self, stage: StageRun) -> dict[str, int]:
        """Return the simulated memory of a stage at its peak by category, without workspace; empty if not simulated."""
        simulated = self.simulated_stage(stage)
        if self.simulated is None or simulated is None:
            return {}
        sums = dict.fromkeys(CATEGORIES, 0)
        for name, size_bytes in simulated.static_parts:
            if name in _STATIC_CATEGORIES:
                sums[_STATIC_CATEGORIES[name]] += size_bytes
        for holder in simulated.holders:
            category = _HOLDER_CATEGORIES.get(holder.kind, "other")
            is_weight = "AllGather" in holder.label or holder.label in self.simulated.weight_casts
            sums["gathered weights" if is_weight and category != "gradients" else category] += holder.size_bytes
        return sums

    @property
    def peak_bytes(self) -> int:
        """Peak to compare with the budget, in bytes: with workspace, and with fragmentation if it counts."""
        return max(
            (stage.actual_peak_bytes if self.counts_fragments else stage.used_peak_bytes) + self.workspace_bytes(stage)
            for stage in self.stages
        )

    @property
    def fits(self) -> bool:
        """Return whether `peak_bytes` is within the budget."""
        return self.budget_bytes is None or self.peak_bytes <= self.budget_bytes


def stage_run(stage: int, num_layers: int, runs: Mapping[int, DryRun], line_error_bytes: int | None = None) -> StageRun:
    """Return the memory of a stage, extrapolated if it ran with fewer layers.

    Args:
        stage: index of the stage.
        num_layers: layers of the stage in the full model.
        runs: number of layers -> dry run, of one or two models.
        line_error_bytes: simulated error of a line through the two peaks, in bytes, to correct it; None extrapolates
            each phase of the step by itself and takes the maximum.
    """
    longest = runs[max(runs)]
    if num_layers in runs or len(runs) == 1:
        return StageRun(
            stage=stage,
            num_layers=num_layers,
            runs=runs,
            used_peak_bytes=longest.used_peak_bytes,
            actual_peak_bytes=longest.actual_peak_bytes,
            position=find_positions(longest)[longest.peak_tick],
            category_bytes=longest.category_bytes(),
        )
    num_short, num_long = sorted(runs)
    short = runs[num_short]

    def extrapolate(short_bytes: int, long_bytes: int) -> int:
        return long_bytes + (long_bytes - short_bytes) * (num_layers - num_long) // (num_long - num_short)

    short_peaks, long_peaks = find_phase_peaks(short), find_phase_peaks(longest)
    phases = {
        phase: extrapolate(short_peaks[phase].live_bytes, long_peaks[phase].live_bytes)
        for phase in short_peaks.keys() & long_peaks.keys()
    }
    line_bytes = extrapolate(short.used_peak_bytes, longest.used_peak_bytes)
    if line_error_bytes is None:
        phase = max(phases, key=phases.__getitem__)
        used_bytes = max(phases[phase], line_bytes)
    else:
        phase = max(phases, key=lambda each: long_peaks[each].live_bytes)
        used_bytes = line_bytes + line_error_bytes
    short_category_bytes = short.category_bytes(short_peaks[phase].tick)
    long_category_bytes = longest.category_bytes(long_peaks[phase].tick)
    actual_line_bytes = extrapolate(short.actual_peak_bytes, longest.actual_peak_bytes)
    return StageRun(
        stage=stage,
        num_layers=num_layers,
        runs=runs,
        used_peak_bytes=used_bytes,
        actual_peak_bytes=max(used_bytes, actual_line_bytes + (line_error_bytes or 0)),
        position=find_positions(longest)[long_peaks[phase].tick],
        category_bytes={
            name: max(0, extrapolate(short_category_bytes[name], long_category_bytes[name])) for name in CATEGORIES
        },
    )


BEFORE, INSIDE, AFTER = "before the layers", "in the layers", "behind the layers"


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


class PhasePeak(NamedTuple):
    """Peak memory of one phase of a step."""

    tick: int
    live_bytes: int


def find_phase_peaks(run: DryRun) -> dict[tuple[bool, str], PhasePeak]:
    """Return the peak of each phase; a phase is the pass (is it backward) and the segment, layers split in halves."""
    positions = find_positions(run)
    layer_ticks: dict[bool, list[int]] = {False: [], True: []}
    for tick, position in positions.items():
        if position.where == INSIDE:
            layer_ticks[position.is_backward].append(tick)
    middle = {is_backward: ticks[len(ticks) // 2] for is_backward, ticks in layer_ticks.items() if ticks}
    peaks: dict[tuple[bool, str], PhasePeak] = {}
    for tick, live_bytes in run.curve:
        position = positions[tick]
        half = ""
        if position.where == INSIDE:
            half = ", second half" if tick >= middle[position.is_backward] else ", first half"
        phase = position.is_backward, position.where + half
        if phase not in peaks or live_bytes > peaks[phase].live_bytes:
            peaks[phase] = PhasePeak(tick, live_bytes)
    return peaks
