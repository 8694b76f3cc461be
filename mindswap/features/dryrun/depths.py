"""Depths of a dry run: how many layers and micro-batches run of a long model, and the error of the extrapolation."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from mindswap.config.step_settings import StepSettings
from mindswap.errors import LaunchError
from mindswap.policy.equivalence import retained_layers
from mindswap.policy.model import ENTRY_FIELDS, Policy
from mindswap.simulator.layout import build_stage_layout
from mindswap.simulator.report_data import SimulationReport

# Default limit of the layers of a stage; half as many per chunk if there are several stages or chunks.
MAX_SHORT_LAYERS = 6
# With more micro-batches than this, fewer are run if their simulated peaks are the same within the tolerance: a step
# with many takes long, and MindSpore compiles distant swaps only up to `MAX_INLINED_MICRO_BATCHES`.
MAX_MICRO_BATCHES, PEAK_TOLERANCE = 32, 1e-3
# Default limit of the layers of all stages together if fewer micro-batches are run.
MAX_LAYERS_FEW_MICRO_BATCHES = 24
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
class ShortModel:
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


class ChosenDepths(NamedTuple):
    """Models to run.

    Attributes:
        models: the full model, one short model, or two to extrapolate from, shortest first.
        caveat: uncertainty of the extrapolation in words; "" if there is none.
        line_errors_bytes: per stage, the simulated peak of the full model minus the peak that is extrapolated from the
            simulated short models; empty if it was not simulated.
    """

    models: list[ShortModel]
    caveat: str = ""
    line_errors_bytes: tuple[int, ...] = ()


class LineError(NamedTuple):
    """Error of the linear extrapolation in the simulation.

    Attributes:
        num_mixed_stages: stages whose three peaks are not in the same part of the step.
        max_fraction: largest error of a stage as a fraction of its peak.
        stage_bytes: error of each stage in bytes.
    """

    num_mixed_stages: int
    max_fraction: float
    stage_bytes: tuple[int, ...]


def short_model(settings: StepSettings, num_layers: int, per_chunk: int | None = None) -> ShortModel:
    """Return a model with the same number of layers in each chunk of each stage; None for all layers."""
    layer_indices: list[int] = []
    stage_layers = [0] * settings.pipeline.num_stages
    for cell in settings.pipeline.layout(num_layers).cells():
        count = len(cell.layers) if per_chunk is None else per_chunk
        layer_indices += [cell.layers[i] for i in retained_layers(len(cell.layers), count)] if count else []
        stage_layers[cell.stage] += count
    return ShortModel(tuple(layer_indices), tuple(stage_layers))


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


def choose_depths(
    options: DryRunOptions,
    settings: StepSettings,
    num_layers: int,
    policy: Policy,
    simulate: Simulate = lambda indices: None,
    has_few_micro_batches: bool = False,
) -> ChosenDepths:
    """Choose the models to run: those that the options ask for, the full model if it is short, else two short ones.

    The two short models should have layers of each kind in such numbers that linear extrapolation gives those of the
    full model. If no pair does, the simulation chooses the pair with the smallest extrapolation error.

    Args:
        options: options of the dry run.
        settings: settings of the step.
        num_layers: layers of the full model.
        policy: layers with the same entries of the policy are of one kind.
        simulate: simulates a model; called only if no pair fits.
        has_few_micro_batches: fewer micro-batches are run, so that the models can be longer.

    Raises:
        LaunchError: the requested number of layers cannot be distributed evenly over stages and chunks.
    """
    cells = list(settings.pipeline.layout(num_layers).cells())
    min_chunk_layers = min(len(cell.layers) for cell in cells)
    full = short_model(settings, num_layers)
    if options.layers:
        limit = min_chunk_layers * len(cells)
        if wrong := [n for n in options.layers if n != num_layers and (n % len(cells) or n > limit)]:
            multiple = f"a multiple of {len(cells)} up to {limit}" if len(cells) > 1 else f"1 to {limit}"
            raise LaunchError(
                f"--layers {wrong[0]}: every stage and chunk needs as many layers\n"
                f"    allowed: {multiple}, or {num_layers}, which is all of them"
            )
        models = [full if n == num_layers else short_model(settings, num_layers, n // len(cells))
                  for n in options.layers]  # fmt: skip
        pairs = [sorted(models, key=lambda model: model.num_layers)]
    else:
        limit = MAX_SHORT_LAYERS if len(cells) == 1 else MAX_SHORT_LAYERS // 2
        if has_few_micro_batches:
            limit = min(MAX_SHORT_LAYERS, max(limit, MAX_LAYERS_FEW_MICRO_BATCHES // len(cells)))
        limit = min(limit, min_chunk_layers)
        if options.is_full or num_layers <= limit * len(cells) or limit < 2:
            return ChosenDepths([full])
        min_layers = 2 if len(cells) == 1 else 1
        models = [short_model(settings, num_layers, n) for n in range(min_layers, limit + 1)]
        pairs = [[low, high] for high in models for low in models if low.num_layers < high.num_layers]
    if len(pairs[0]) == 1 or pairs[0][-1] is full:
        return ChosenDepths(pairs[0])
    # Of pairs with the same mismatch, the first one: it has the fewest layers.
    mismatches = [_mismatch(pair, full, policy) for pair in pairs]
    best = min(range(len(pairs)), key=mismatches.__getitem__)
    if not mismatches[best]:
        return ChosenDepths(pairs[best])
    if (simulated := simulate(None)) is None:
        return ChosenDepths(pairs[best], f"for {mismatches[best]:.0%} of them the line counts layers of another kind")
    reports = {model.layer_indices: simulate(model.layer_indices) or simulated for model in chain(*pairs)}
    errors = [
        _extrapolation_error(pair, full, [reports[model.layer_indices] for model in pair], simulated) for pair in pairs
    ]
    best = min(range(len(pairs)), key=lambda number: (errors[number].num_mixed_stages, errors[number].max_fraction))
    caveat = f"in the simulation the line is {errors[best].max_fraction:.1%} off the whole model, and corrected by that"
    return ChosenDepths(pairs[best], caveat, errors[best].stage_bytes)


def _extrapolation_error(
    pair: Sequence[ShortModel],
    full: ShortModel,
    reports: Sequence[SimulationReport],
    simulated: SimulationReport,
) -> LineError:
    """Compare the extrapolated peaks of two simulated short models with the simulated full model."""
    num_mixed_stages, max_fraction, stage_bytes = 0, 0.0, []
    for stage, full_stage in enumerate(simulated.stages):
        low, high = (report.stages[stage] for report in reports)
        moments = (each.moment for each in (low, high, full_stage))
        num_mixed_stages += len({(moment.phase == "forward", moment.layer < 0) for moment in moments}) > 1
        num_low, num_high, num_full = (model.stage_layers[stage] for model in (*pair, full))
        steps = (num_full - num_high) / (num_high - num_low)
        above_high_bytes = (high.peak_bytes - low.peak_bytes) * steps
        stage_bytes.append(round(full_stage.peak_bytes - high.peak_bytes - above_high_bytes))
        max_fraction = max(max_fraction, abs(stage_bytes[-1] / full_stage.peak_bytes))
    return LineError(num_mixed_stages, round(max_fraction, 3), tuple(stage_bytes))


def _mismatch(pair: Sequence[ShortModel], full: ShortModel, policy: Policy) -> float:
    """Return the fraction of layers that are of another kind in the extrapolation than in the full model."""
    counts = [_count_layer_classes(model, policy) for model in (*pair, full)]
    num_low, num_high, num_full = (model.num_layers for model in (*pair, full))
    steps = (num_full - num_high) / (num_high - num_low)
    num_wrong = 0.0
    for layer_class in set[tuple[bool, ...]]().union(*counts):
        low, high, expected = (count.get(layer_class, 0) for count in counts)
        num_wrong += abs(high + (high - low) * steps - expected)
    return round(num_wrong / num_full, 3)


def _count_layer_classes(model: ShortModel, policy: Policy) -> Mapping[tuple[bool, ...], int]:
    """Count layers by the entries of the policy that list them."""
    layer_sets = [entry.layers for name in ENTRY_FIELDS for entry in getattr(policy, name)]
    layer_sets += [policy.layer_recompute, policy.output_recompute]
    return Counter(tuple(layer in layers for layers in layer_sets) for layer in model.layer_indices)
