"""Choice of the models that a dry run runs: all layers, or reduced models whose memory is extrapolated."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from mindswap.errors import GraphError, SimulationError
from mindswap.features.dryrun.depths import (
    MAX_EXACT_LAYERS,
    DryRunOptions,
    ReducedModel,
    Reduction,
    choose_reduction,
    layer_classes_of,
    requested_reduction,
)
from mindswap.features.dryrun.rank_runs import RankRuns
from mindswap.features.simulate import LoadedStep
from mindswap.policy.model import Policy
from mindswap.simulator.report_data import SimulationReport


@dataclass(eq=False)
class Simulation:
    """The simulated step, loaded and simulated when it is needed, and the reasons why it cannot be simulated."""

    load: Callable[[], LoadedStep] | None
    reasons: dict[str, None] = field(default_factory=dict)
    _step: LoadedStep | None = None
    _reports: dict[tuple[tuple[int, ...] | None, int | None], SimulationReport | None] = field(default_factory=dict)

    def step(self) -> LoadedStep | None:
        """Return the loaded step; None if it cannot be simulated."""
        if self._step is None and self.load is not None and not self.reasons:
            try:
                self._step = self.load()
            except (GraphError, SimulationError) as error:
                self._add_reason(error)
        return self._step

    def simulate(self, layer_indices: tuple[int, ...] | None, count: int | None) -> SimulationReport | None:
        """Simulate the step with some layers and micro-batches, or all of them (None); None if it is not possible."""
        key, step = (layer_indices, count), self.step()
        if key not in self._reports and step is not None:
            try:
                self._reports[key] = step.truncated(layer_indices, count).simulate().report()
            except (GraphError, SimulationError) as error:
                self._add_reason(error)
        return self._reports.get(key)

    def _add_reason(self, error: Exception) -> None:
        self.reasons[f"not simulated: {str(error).splitlines()[0]}"] = None


class ChosenModels(NamedTuple):
    """Models to run."""

    models: tuple[ReducedModel, ...]  # all ranks run these, but those of long stages if there is a reduction
    reduction: Reduction | None
    notes: tuple[str, ...] = ()
    is_requested: bool = False


@dataclass(frozen=True, eq=False)
class ModelChoice:
    """Choice of the models to run."""

    options: DryRunOptions
    runs: RankRuns
    policy: Policy
    simulation: Simulation
    counts_fragments: bool

    def choose(self, requested: list[ReducedModel]) -> ChosenModels:
        """Return the models to run: those that are requested, all layers, or a reduction for long stages."""
        full = self.runs.full
        if requested:
            reduction = requested_reduction(requested, full, self._simulate)
            notes = () if reduction or full in requested else (_truncated_note(requested[0], full),)
            return ChosenModels(tuple(requested), reduction, notes, is_requested=True)
        if self.options.is_full or max(full.stage_layers) <= MAX_EXACT_LAYERS:
            return ChosenModels((full,), None)
        reduction, reason = self._reduction()
        if reason:
            return ChosenModels((full,), None, (f"{reason}: all layers were run",))
        return ChosenModels((full,), reduction)

    def _reduction(self) -> tuple[Reduction | None, str]:
        """Return an accepted reduction, or the reason why there is none."""
        if self.counts_fragments:
            return None, "fragmentation cannot be extrapolated"
        step = self.simulation.step()
        if step is None:
            return None, "without a simulation no extrapolation can be checked"
        self.runs.report_status("simulating reduced models, to choose those to run")
        layer_classes = layer_classes_of(self.policy, step.model.captured.sample.layer_map)
        reduction = choose_reduction(self.runs.settings, layer_classes, self._simulate, MAX_EXACT_LAYERS)
        if reduction is None or reduction.error is None:
            return None, "no two short models have the layers of each class in the same proportions"
        models = (reduction.low, reduction.high)
        if not reduction.is_accepted:
            depths = " and ".join(str(model.num_layers) for model in models)
            return None, f"the simulator's best extrapolation, from {depths} layers, is {reduction.error:.1%} off"
        if not all(self.runs.has_same_policy(model, self.policy) for model in models):
            return None, "a shorter configuration would swap or recompute differently"
        return reduction, ""

    def _simulate(self, layer_indices: tuple[int, ...] | None) -> SimulationReport | None:
        return self.simulation.simulate(layer_indices, None if layer_indices is None else self.runs.num_micro_batches)


def _truncated_note(model: ReducedModel, full: ReducedModel) -> str:
    return (
        f"{model.num_layers} of {full.num_layers} layers were run: all figures are of those alone, and nothing is "
        "compared"
    )
