"""Memory of each pipeline stage from its dry runs, measured with all layers or extrapolated from two models."""

from collections.abc import Mapping
from dataclasses import dataclass

from mindswap.features.dryrun.depths import Reduction
from mindswap.features.dryrun.memory_pool import DryRun
from mindswap.features.dryrun.phases import (
    StepPosition,
    extrapolate,
    extrapolate_peak,
    find_phase_peaks,
    find_positions,
)
from mindswap.simulator.memory_parts import STATIC_PARTS, MemoryPart
from mindswap.simulator.report_data import SimulationReport, StageReport
from mindswap.units import format_bytes


@dataclass(frozen=True, eq=False)
class StageRun:
    """Memory of a pipeline stage with all its layers, measured or extrapolated. Sizes in bytes.

    Attributes:
        stage: index of the pipeline stage.
        num_layers: layers of the stage in the full model.
        runs: number of layers of the stage that ran -> dry run.
        used_peak_bytes: peak memory without fragmentation.
        actual_peak_bytes: peak memory with fragmentation; None if extrapolated, because fragmentation cannot be.
        position: position of the peak in the longest run.
        part_bytes: live memory at the peak by part; the sum is the peak.
        error: error of the simulated extrapolation from the same depths, as a fraction; None if the memory is exact, or
            nothing was simulated.
    """

    stage: int
    num_layers: int
    runs: Mapping[int, DryRun]
    used_peak_bytes: int
    actual_peak_bytes: int | None
    position: StepPosition
    part_bytes: Mapping[MemoryPart, int]
    error: float | None = None

    @property
    def is_exact(self) -> bool:
        """Return whether all layers of the stage ran."""
        return self.num_layers in self.runs

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
    def actual_peak_bytes(self) -> int | None:
        """Highest peak of all ranks in bytes, with fragmentation; None if a rank was extrapolated."""
        sizes = [stage.actual_peak_bytes for stage in self.stages]
        return None if None in sizes else max(size for size in sizes if size is not None)

    def workspace_bytes(self, stage: StageRun) -> int:
        """Return the simulated workspace of a stage in bytes, because a dry run has none; 0 if not simulated."""
        simulated = self.simulated_stage(stage)
        return simulated.static_parts[MemoryPart.WORKSPACE] if simulated else 0

    def simulated_stage(self, stage: StageRun) -> StageReport | None:
        """Return the simulated stage; None if the step was not simulated."""
        return self.simulated.stages[stage.stage] if self.simulated else None

    def simulated_part_bytes(self, stage: StageRun) -> dict[MemoryPart, int]:
        """Return the simulated memory of a stage at its peak by part, without workspace; empty if not simulated."""
        simulated = self.simulated_stage(stage)
        return {**simulated.parts, MemoryPart.WORKSPACE: 0} if simulated else {}

    @property
    def peak_bytes(self) -> int:
        """Peak to compare with the budget, in bytes: with workspace, and with fragmentation if it counts."""
        return max(
            ((self.counts_fragments and stage.actual_peak_bytes) or stage.used_peak_bytes) + self.workspace_bytes(stage)
            for stage in self.stages
        )

    @property
    def fits(self) -> bool:
        """Return whether `peak_bytes` is within the budget."""
        return self.budget_bytes is None or self.peak_bytes <= self.budget_bytes


def stage_run(stage: int, num_layers: int, runs: Mapping[int, DryRun], reduction: Reduction | None = None) -> StageRun:
    """Return the memory of a stage: measured in its longest run, or extrapolated.

    Args:
        stage: index of the stage.
        num_layers: layers of the stage in the full model.
        runs: number of layers of the stage -> dry run.
        reduction: the two models to extrapolate from, if none of the runs has all layers.
    """
    longest = runs[max(runs)]
    if reduction is None or num_layers in runs:
        return StageRun(
            stage=stage,
            num_layers=num_layers,
            runs=runs,
            used_peak_bytes=longest.used_peak_bytes,
            actual_peak_bytes=longest.actual_peak_bytes,
            position=find_positions(longest)[longest.peak_tick],
            part_bytes=longest.part_bytes(),
        )
    low, high = (runs[model.stage_layers[stage]] for model in (reduction.low, reduction.high))
    low_peaks, high_peaks, num_steps = find_phase_peaks(low), find_phase_peaks(high), reduction.num_steps
    phase, peak_bytes = extrapolate_peak(low_peaks, high_peaks, num_steps)
    low_part_bytes = low.part_bytes(low_peaks[phase].tick)
    high_part_bytes = high.part_bytes(high_peaks[phase].tick)
    return StageRun(
        stage=stage,
        num_layers=num_layers,
        runs=runs,
        used_peak_bytes=peak_bytes,
        actual_peak_bytes=None,
        position=find_positions(high)[high_peaks[phase].tick],
        part_bytes=scale_parts(
            {part: extrapolate(low_part_bytes[part], high_part_bytes[part], num_steps) for part in MemoryPart},
            peak_bytes,
        ),
        error=reduction.error,
    )


def scale_parts(part_bytes: Mapping[MemoryPart, int], peak_bytes: int) -> dict[MemoryPart, int]:
    """Return parts that add up to the peak: extrapolated parts below 0 are 0, and those that are not static scaled."""
    parts = {part: max(0, size_bytes) for part, size_bytes in part_bytes.items()}
    static_bytes = sum(parts[part] for part in STATIC_PARTS)
    varying = [part for part in parts if part not in STATIC_PARTS]
    varying_bytes = sum(parts[part] for part in varying)
    target_bytes = max(0, peak_bytes - static_bytes)
    for part in varying:
        parts[part] = parts[part] * target_bytes // max(1, varying_bytes)
    parts[MemoryPart.OTHER] += peak_bytes - sum(parts.values())  # rounding, or memory of no part
    return parts
