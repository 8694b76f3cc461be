"""Dry runs of pipeline stages: of all their layers, or of short models and the straight line through them.

The highest of several lines bends upwards, so a line through two peaks is too low where another moment takes over. So
each part of the step (the first half of forward, the loss, the second half of backward, ...) has a line of its own.
Where layers differ, the lines of parts that few layers decide lead anywhere: there the line through the peaks is taken,
and the simulation says by how much all layers are above such a line.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mindswap.features.dryrun.memory_pool import CATEGORIES, LAYER, DryRun
from mindswap.simulator.program import MemoryKind
from mindswap.simulator.report_data import SimulationReport, StageReport
from mindswap.units import format_bytes

# The parts of a dry run in the simulated memory; what is gathered has AllGather in its label.
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
    """Place of an operator in a step."""

    is_backward: bool  # of the gradient, or computed again for it
    where: str  # before the layers, in the layers or behind them, in the order of the pass
    layer: int | None  # of the model that was run; None outside the layers, and in backward
    operator: str  # its name with its cells


@dataclass(frozen=True, eq=False)
class StageRun:
    """One rank of a dry run, at the depth that was asked for. Sizes in bytes.

    Attributes:
        stage: of the pipeline.
        num_layers: of the stage in the whole model.
        runs: layers of the stage that were run -> what came out; one, or two for a straight line.
        used_peak_bytes: highest use without fragments.
        actual_peak_bytes: the same with fragments.
        place: when that is, in the longest run.
        parts: what is live then, by what it is for.
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
        """The longest run."""
        return self.runs[max(self.runs)]


@dataclass(frozen=True, eq=False)
class DryRunReport:
    """A configuration on MindSpore's Ascend backend, without a card; no times and no values.

    Attributes:
        title: name of the configuration.
        stages: one for each rank that was asked for.
        simulated: the simulated step; None where there is none.
        num_layers: of the model.
        depths: layers of the models that were run.
        budget_bytes: what may be used; None for no limit.
        has_cann: CANN's own libraries were there.
        notes: what a reader has to know.
        margin_permille: of the budget, which plans keep free.
        counts_fragments: they are held against the budget; not where the pool of the device maps pages.
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
        """Peak that is held against the budget, in GiB."""
        return self.peak_bytes / 2**30

    @property
    def used_peak_bytes(self) -> int:
        """Highest device memory of any rank that was run, without fragments and workspaces."""
        return max(stage.used_peak_bytes for stage in self.stages)

    @property
    def actual_peak_bytes(self) -> int:
        """The same with fragments."""
        return max(stage.actual_peak_bytes for stage in self.stages)

    def workspace_bytes(self, stage: StageRun) -> int:
        """Memory of kernels of a stage beside tensors: simulated, a dry run knows none; 0 where it is not known."""
        simulated = self.simulated_stage(stage)
        return dict(simulated.static_parts).get("workspace", 0) if simulated else 0

    def simulated_stage(self, stage: StageRun) -> StageReport | None:
        """The simulated stage; None where nothing is simulated."""
        return self.simulated.stages[stage.stage] if self.simulated else None

    def simulated_category_bytes(self, stage: StageRun) -> dict[str, int]:
        """Memory of the simulated stage at its peak, in the parts of a dry run, without workspace; {} without one."""
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
        """Peak that is held against the budget: with the simulated workspace, and with fragments if they count."""
        return max(
            (stage.actual_peak_bytes if self.counts_fragments else stage.used_peak_bytes) + self.workspace_bytes(stage)
            for stage in self.stages
        )

    @property
    def fits(self) -> bool:
        """True if that is within the budget."""
        return self.budget_bytes is None or self.peak_bytes <= self.budget_bytes


def stage_run(stage: int, num_layers: int, runs: Mapping[int, DryRun], line_error_bytes: int | None = None) -> StageRun:
    """A stage of `num_layers` layers from runs with so many, or fewer, of them.

    `line_error_bytes` is by how much it is above the line through the peaks of two short models; None takes
    the highest line.
    """
    longest = runs[max(runs)]
    if num_layers in runs or len(runs) == 1:
        position = find_positions(longest)[longest.peak_tick]
        used, actual = longest.used_peak_bytes, longest.actual_peak_bytes
        return StageRun(stage, num_layers, runs, used, actual, position, longest.category_bytes())
    short, long = sorted(runs)

    def at(low: int, high: int) -> int:
        return high + (high - low) * (num_layers - long) // (long - short)

    first, last = (find_phase_peaks(runs[depth]) for depth in (short, long))
    lines = {key: at(first[key][1], last[key][1]) for key in first.keys() & last.keys()}
    line_bytes = at(runs[short].used_peak_bytes, longest.used_peak_bytes)
    if line_error_bytes is None:
        key = max(lines, key=lines.__getitem__)
        used = max(lines[key], line_bytes)
    else:
        key = max(lines, key=lambda category: last[category][1])
        used = line_bytes + line_error_bytes
    low, high = runs[short].category_bytes(first[key][0]), longest.category_bytes(last[key][0])
    actual = max(used, at(runs[short].actual_peak_bytes, longest.actual_peak_bytes) + (line_error_bytes or 0))
    category_bytes = {name: max(0, at(low[name], high[name])) for name in CATEGORIES}
    return StageRun(stage, num_layers, runs, used, actual, find_positions(longest)[last[key][0]], category_bytes)


BEFORE, INSIDE, AFTER = "before the layers", "in the layers", "behind the layers"


def find_positions(run: DryRun) -> dict[int, StepPosition]:
    """Tick of each change of the curve -> the operator that runs then.

    Operators that were fused, or made by a pass of the backend, have no cell: they are where the one before them is.
    Layers that are compiled once share the names of their gradients, so a name does not say which layer of backward.
    """
    positions: dict[int, StepPosition] = {}
    ticks = sorted(run.operators)
    tick_index = 0
    now = StepPosition(False, BEFORE, None, "")
    has_layers = {False: False, True: False}
    for tick, _ in run.curve:
        while tick_index < len(ticks) and ticks[tick_index] <= tick:
            name = run.operators[ticks[tick_index]]
            tick_index += 1
            match = LAYER.search(name)
            if match is None and name.count("/") < 2:
                now = StepPosition(now.is_backward, now.where, now.layer, name)
                continue
            is_backward = name.startswith(("Gradients/", "recompute_"))
            has_layers[is_backward] |= match is not None
            where = INSIDE if match else AFTER if has_layers[is_backward] else BEFORE
            now = StepPosition(is_backward, where, int(match[1]) if match and not is_backward else None, name)
        positions[tick] = now
    return positions


def find_phase_peaks(run: DryRun) -> dict[tuple[bool, str], tuple[int, int]]:
    """Part of a step -> the tick at which most is live in it, and how much; the layers are cut into two halves."""
    positions = find_positions(run)
    inside: dict[bool, list[int]] = {False: [], True: []}
    for tick, position in positions.items():
        if position.where == INSIDE:
            inside[position.is_backward].append(tick)
    middle = {side: ticks[len(ticks) // 2] for side, ticks in inside.items() if ticks}
    found: dict[tuple[bool, str], tuple[int, int]] = {}
    for tick, live_bytes in run.curve:
        position = positions[tick]
        half = (
            ""
            if position.where != INSIDE
            else ", second half"
            if tick >= middle[position.is_backward]
            else ", first half"
        )
        key = position.is_backward, position.where + half
        if live_bytes > found.get(key, (0, -1))[1]:
            found[key] = tick, live_bytes
    return found
