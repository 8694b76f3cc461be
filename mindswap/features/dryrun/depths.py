"""Depths of a dry run: all layers, or two reduced models to extrapolate from; and the number of micro-batches.

A reduction keeps each layer in its chunk of its pipeline stage. From the first model to the second, and from the second
to the full one, the layers of each class increase by the same numbers in each chunk, or by a multiple of them.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mindswap.config.pipeline_layout import Cell
from mindswap.config.step_settings import StepSettings
from mindswap.errors import LaunchError
from mindswap.features.dryrun.phases import extrapolate_peak, find_simulated_phase_peaks
from mindswap.policy.equivalence import retained_layers
from mindswap.policy.model import ENTRY_FIELDS, Policy
from mindswap.simulator.layout import build_stage_layout
from mindswap.simulator.report_data import SimulationReport

# Stages with at most this many layers run all of them.
MAX_EXACT_LAYERS = 16
# All layers run if that takes at most this long, extrapolated from the reduced models.
MAX_EXACT_S = 180.0
# A reduction is used only if the simulated extrapolation is closer than this to the simulated full model.
MAX_ERROR = 0.01
# Of the reductions with the fewest layers, so many are simulated to find one.
NUM_CANDIDATES = 8
# With more micro-batches than this, fewer are run if their simulated peaks are the same within the tolerance: a step
# with many takes long, and MindSpore compiles distant swaps only up to `MAX_INLINED_MICRO_BATCHES`.
MAX_MICRO_BATCHES, PEAK_TOLERANCE = 32, 1e-3
# Simulates the step with these layers of the model, or with all of them (None); None if it cannot be simulated.
Simulate = Callable[[tuple[int, ...] | None], SimulationReport | None]


@dataclass(frozen=True)
class DryRunOptions:
    """Options of a dry run.

    Attributes:
        ranks: ranks to run; empty for the first rank of each pipeline stage.
        layers: numbers of layers to run: one, or two to extrapolate linearly; empty to choose them.
        is_full: run all layers.
        num_jobs: number of concurrent processes.
        folder: folder that keeps logs and tables; None deletes them.
    """

    ranks: tuple[int, ...] = ()
    layers: tuple[int, ...] = ()
    is_full: bool = False
    num_jobs: int = 1
    folder: Path | None = None


@dataclass(frozen=True)
class ReducedModel:
    """A model with some of the layers, or with all of them.

    Attributes:
        layer_indices: index in the full model of each layer.
        stage_layers: number of layers of each stage.
    """

    layer_indices: tuple[int, ...]
    stage_layers: tuple[int, ...]

    @property
    def num_layers(self) -> int:
        """Number of layers of the model that is run."""
        return len(self.layer_indices)


@dataclass(frozen=True)
class Reduction:
    """Two reduced models to extrapolate from.

    Attributes:
        low: the model with fewer layers.
        high: the model with more layers.
        num_steps: how many times the difference of the two is missing in the second one; a fraction only if requested.
        error: largest error of a stage when the simulated models are extrapolated, as a fraction of its simulated peak;
            None if they were not simulated.
    """

    low: ReducedModel
    high: ReducedModel
    num_steps: float
    error: float | None = None

    @property
    def is_accepted(self) -> bool:
        """Return whether the error is known and small."""
        return self.error is not None and self.error < MAX_ERROR

    def estimated_s(self, low_s: float, high_s: float) -> float:
        """Return the time of the full model in seconds, from those of the reduced models."""
        return high_s + max(0.0, high_s - low_s) * self.num_steps


def full_model(settings: StepSettings, num_layers: int) -> ReducedModel:
    """Return the model with all layers."""
    cells = list(settings.pipeline.layout(num_layers).cells())
    return _model(cells, [cell.layers for cell in cells], settings.pipeline.num_stages)


def requested_models(settings: StepSettings, num_layers: int, requested: Sequence[int]) -> list[ReducedModel]:
    """Return models with the requested numbers of layers, each spread evenly over stages and chunks, shortest first.

    Raises:
        LaunchError: a number of layers cannot be distributed evenly over stages and chunks.
    """
    cells = list(settings.pipeline.layout(num_layers).cells())
    limit = min(len(cell.layers) for cell in cells) * len(cells)
    models = []
    for number in sorted(requested):
        if number == num_layers:
            models.append(full_model(settings, num_layers))
            continue
        if number % len(cells) or number > limit:
            multiple = f"a multiple of {len(cells)} up to {limit}" if len(cells) > 1 else f"1 to {limit}"
            raise LaunchError(
                f"--layers {number}: every stage and chunk needs as many layers\n"
                f"    allowed: {multiple}, or {num_layers}, which is all of them"
            )
        count = number // len(cells)
        kept = [[cell.layers[index] for index in retained_layers(len(cell.layers), count)] for cell in cells]
        models.append(_model(cells, kept, settings.pipeline.num_stages))
    return models


def requested_reduction(models: Sequence[ReducedModel], full: ReducedModel, simulate: Simulate) -> Reduction | None:
    """Return two requested models as a reduction; None if there is one, or one is the full model."""
    if len(models) < 2 or full in models:
        return None
    low, high = models
    num_steps = (full.num_layers - high.num_layers) / (high.num_layers - low.num_layers)
    return _with_error(Reduction(low, high, num_steps), simulate)


def choose_reduction(
    settings: StepSettings, layer_classes: Sequence[Hashable], simulate: Simulate, num_long_layers: int
) -> Reduction | None:
    """Return the reduction with the fewest layers whose simulated error is accepted, else the best of them.

    Args:
        settings: settings of the step.
        layer_classes: class of each layer of the full model.
        simulate: simulates a model.
        num_long_layers: every stage with more layers must differ in the two models.

    Returns:
        The reduction; None if there is none.
    """
    best: Reduction | None = None
    reductions = find_reductions(settings, layer_classes, num_long_layers)
    for reduction in sorted(reductions, key=lambda each: each.low.num_layers + each.high.num_layers)[:NUM_CANDIDATES]:
        candidate = _with_error(reduction, simulate)
        if candidate.is_accepted:
            return candidate
        if best is None or (candidate.error is not None and candidate.error < (best.error or 1.0)):
            best = candidate
    return best


def find_reductions(
    settings: StepSettings, layer_classes: Sequence[Hashable], num_long_layers: int = 0
) -> Iterator[Reduction]:
    """Yield reductions with the same increments of each layer class in each chunk; arguments as `choose_reduction`."""
    cells = [cell for cell in settings.pipeline.layout(len(layer_classes)).cells() if cell.layers]
    groups = [_group_layers(cell.layers, layer_classes) for cell in cells]
    full = full_model(settings, len(layer_classes))
    min_layers = 2 if len(cells) == 1 else 1
    yielded = set()
    for num_increments in range(2, max(len(cell.layers) for cell in cells)):
        models = []
        for number in range(num_increments):
            kept = [
                _keep(group, cell.layers, num_increments, number) for cell, group in zip(cells, groups, strict=True)
            ]
            if min(map(len, kept)) >= min_layers:
                models.append(_model(cells, kept, settings.pipeline.num_stages))
            if len(models) == 2:
                break
        else:
            continue
        low, high = models
        stages = zip(low.stage_layers, high.stage_layers, full.stage_layers, strict=True)
        is_growing = all(few < more or total <= num_long_layers for few, more, total in stages)
        if is_growing and 3 * (low.num_layers + high.num_layers) <= 2 * full.num_layers and (low, high) not in yielded:
            yielded.add((low, high))
            yield Reduction(low, high, num_increments - number)


def _group_layers(layers: Iterable[int], layer_classes: Sequence[Hashable]) -> Mapping[Hashable, list[int]]:
    groups: dict[Hashable, list[int]] = {}
    for layer in layers:
        groups.setdefault(layer_classes[layer], []).append(layer)
    return groups


def _keep(
    groups: Mapping[Hashable, Sequence[int]], layers: Sequence[int], num_increments: int, number: int
) -> list[int]:
    """Return the layers of a chunk after `number` of `num_increments` increments up to the full model."""
    kept: list[int] = []
    for group in groups.values():
        increment, rest = divmod(len(group), num_increments)
        count = rest + number * increment
        is_last = count == 1 and group[-1] == layers[-1] and group[0] != layers[0]
        kept += [group[-1]] if is_last else [group[index] for index in retained_layers(len(group), count)]
    return sorted(kept)


def _model(cells: Sequence[Cell], kept: Sequence[Sequence[int]], num_stages: int) -> ReducedModel:
    stage_layers = [0] * num_stages
    for cell, layers in zip(cells, kept, strict=True):
        stage_layers[cell.stage] += len(layers)
    return ReducedModel(tuple(layer for layers in kept for layer in layers), tuple(stage_layers))


def _with_error(reduction: Reduction, simulate: Simulate) -> Reduction:
    """Return the reduction with the error of its simulated extrapolation."""
    low, high, full = (
        simulate(indices) for indices in (reduction.low.layer_indices, reduction.high.layer_indices, None)
    )
    if low is None or high is None or full is None:
        return reduction
    errors = []
    for stage in range(len(full.stages)):
        low_peaks, high_peaks, full_peaks = (find_simulated_phase_peaks(each, stage) for each in (low, high, full))
        full_bytes = max(peak.live_bytes for peak in full_peaks.values())
        errors.append(extrapolate_peak(low_peaks, high_peaks, reduction.num_steps).peak_bytes / full_bytes - 1)
    return Reduction(reduction.low, reduction.high, reduction.num_steps, max(map(abs, errors)))


def layer_classes_of(policy: Policy, layer_map: Sequence[int]) -> list[Hashable]:
    """Return the class of each layer: its compiled representative, and the entries of the policy that list it."""
    layer_sets = [entry.layers for name in ENTRY_FIELDS for entry in getattr(policy, name)]
    layer_sets += [policy.layer_recompute, policy.output_recompute]
    return [(number, tuple(layer in layers for layers in layer_sets)) for layer, number in enumerate(layer_map)]


def choose_micro_batches(
    settings: StepSettings, num_layers: int, simulate: Callable[[int | None], SimulationReport | None]
) -> int | None:
    """Choose a smaller number of micro-batches with the same simulated peaks.

    Args:
        settings: settings of the step.
        num_layers: layers of the model.
        simulate: simulates the step with a number of micro-batches; None for all.

    Returns:
        The number of micro-batches; None if all have to be run.
    """
    is_long = settings.pipeline.num_stages > 1 and settings.num_micro_batches > MAX_MICRO_BATCHES
    if not is_long:
        return None
    layout = build_stage_layout(settings.pipeline, num_layers, settings.num_micro_batches, settings.num_sequences)
    counts = {layout.short_of(number) for number in (2 * layout.num_stages, MAX_MICRO_BATCHES)}
    full_report = simulate(None)
    for count in sorted(counts - {settings.num_micro_batches}):
        if full_report is None or (short_report := simulate(count)) is None:
            return None
        pairs = zip(full_report.stages, short_report.stages, strict=True)
        if all(abs(short.peak_bytes - full.peak_bytes) <= PEAK_TOLERANCE * full.peak_bytes for full, short in pairs):
            return count
    return None
