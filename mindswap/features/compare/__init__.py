"""Compare simulated step time and peak memory of configurations and baselines: `mindswap compare`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindswap.config.nodes import Document, show
from mindswap.errors import SimulationError
from mindswap.features.simulate import LoadedStep, Run, outside_line
from mindswap.features.step import Step, load_step
from mindswap.files import unique_labels
from mindswap.policy.coverage import BASELINES, KEEP_ALL, baseline_policy
from mindswap.policy.equivalence import with_switches_of
from mindswap.policy.model import ALL_LAYERS, Layers, LayerSwap, Policy
from mindswap.report.tables import attributes, format_table
from mindswap.simulator.stage_weights import describe_training
from mindswap.simulator.staged_step import StagedStepModel
from mindswap.simulator.step_model import StepModel
from mindswap.simulator.step_model_2x import StepModel2x
from mindswap.units import format_bytes, format_difference, format_time

# Property that identifies a model -> its paths below `model:`, in legacy and newer configurations.
MODEL_KEYS = {
    "model": (("arch", "type"), ("model_config", "model_type")),
    "layers": (("model_config", "num_layers"), ("model_config", "num_hidden_layers")),
    "hidden size": (("model_config", "hidden_size"),),
}
HEADER = ("configuration", "step time", "tokens/s/card", "against first", "peak memory", "exposed copies", "fits")


@dataclass(frozen=True, eq=False)
class Comparison:
    """Comparison of simulated steps; `str()` returns a table."""

    runs: Sequence[tuple[str, Run]]  # name and step, in the requested order
    notes: Sequence[str]  # caveats, for example configurations of different models

    @property
    def fits_any(self) -> bool:
        """Return whether any step is within the memory budget."""
        return any(run.fits for _, run in self.runs)

    def data(self) -> list[dict[str, Any]]:
        """Return the figures as JSON data."""
        return [
            {
                "name": name,
                "simulated": True,
                "device": run.device.name,
                **attributes(run, "step_time_ns tokens_per_s peak_bytes actual_peak_bytes"),
                "exposed_copy_ns": run.simulated.timeline.exposed_copy_ns,
                "fits": run.fits,
                "fit": run.memory.fit(run.actual_peak_bytes).value,
            }
            for name, run in self.runs
        ]

    def __str__(self) -> str:
        first, device = self.runs[0][1], self.runs[0][1].device
        table = format_table(HEADER, [_row(figures, first.step_time_ns) for figures in self.data()])
        title = f"simulated on {device.title}, {format_bytes(device.usable_memory_bytes)} usable"
        outside = outside_line(first.model, device)
        return "\n\n".join([title, table, *(f"note: {note}" for note in self.notes), *([outside] if outside else [])])


def compare_configs(
    names: Sequence[str],
    device: str | None = None,
    overrides: Mapping[str, str] | None = None,
    use_cache: bool = True,
    expert_skew: str | None = None,
) -> Comparison:
    """Simulate several configurations and baselines.

    Args:
        names: files, see `load_step`, and names of baselines, which are applied to the network of the first file.
        device: see `load_step`.
        overrides: see `load_step`.
        use_cache: see `load_step`.
        expert_skew: see `load_step`.

    Returns:
        The simulated steps in the order of the names.

    Raises:
        SimulationError: if a name is neither a file nor a baseline, or the first one is not a file.
    """
    if names[0] in BASELINES:
        raise SimulationError(f"'{names[0]}' is a baseline: name a configuration before it")
    for name in names:
        if name not in BASELINES and not Path(name).exists():
            raise SimulationError(f"'{name}' is neither a file nor a baseline; baselines are {', '.join(BASELINES)}")
    labels = iter(unique_labels([name for name in names if name not in BASELINES], BASELINES))
    first: Step | None = None
    runs: list[tuple[str, Run]] = []
    documents: list[tuple[str, Document]] = []
    for name in names:
        if name in BASELINES and first is not None:
            runs.append((name, first.simulate(baseline_of(name, first))))
            continue
        step = load_step(name, device, dict(overrides or {}), use_cache, expert_skew=expert_skew)
        first = first or step
        label = next(labels)
        documents.append((label, step.document))
        runs.append((label, step.simulate()))
    models = {name: run.model for name, run in runs if name not in BASELINES}
    of_files = [f"{name}: {note}" for name, model in models.items() for note in _notes_of_file(model)]
    return Comparison(runs, [*other_models(documents), *of_files])


def _notes_of_file(model: StepModel) -> Sequence[str]:
    """Return what a file trains, or what of it is not simulated."""
    return model.file_caveats if isinstance(model, StepModel2x) else describe_training(model.weights.parameters)


def baseline_of(name: str, step: LoadedStep) -> Policy:
    """Return the policy of a baseline for a step, with the switches of recompute of its configuration.

    Args:
        name: one of `BASELINES`.
        step: the step.

    Raises:
        SimulationError: MindFormers 2.x has no such policy.
    """
    model = step.model
    if not isinstance(model, StepModel2x):
        return with_switches_of(step.policy, baseline_policy(name, model.captured.trees))
    all_but_last = Layers(range(model.num_layers - 1))
    policies = {
        KEEP_ALL: Policy(is_swap_enabled=True),
        "full-recompute": Policy(is_swap_enabled=True, layer_recompute=ALL_LAYERS),
        "swap-everything": Policy(is_swap_enabled=True, layer_swap=(LayerSwap(all_but_last, 1),)),
    }
    if name not in policies:
        raise SimulationError(f"'{name}' is a baseline of MindFormers 1.9\n    allowed: {', '.join(policies)}")
    if policies[name].layer_swap and isinstance(model, StagedStepModel) and not model.is_own_engine:
        raise SimulationError(
            f"{step.document.file}: '{name}': MindFormers 2.x does not swap pipeline stages\n"
            "    fix:     mindswap: {swap_engine: mindswap} in the file, or another baseline"
        )
    return policies[name]


def other_models(documents: Sequence[tuple[str, Document]]) -> list[str]:
    """Return a note for each configuration of another model than the first, by name, number of layers and width."""
    (first, document), *other_documents = documents
    first_model = _model_of(document)
    notes = []
    for name, other_document in other_documents:
        model = _model_of(other_document)
        differs = [key for key in model if key in first_model and model[key] != first_model[key]]
        if differs:
            differences = ", ".join(f"{key}: {model[key]}, not {first_model[key]}" for key in differs)
            notes.append(
                f"{name} is another model than {first} ({differences}): their step times are of different work"
            )
    return notes


def _model_of(document: Document) -> dict[str, str]:
    """Return the properties of the model; the first path with a value takes precedence."""
    values = ((key, document.get("model", *path)) for key, paths in MODEL_KEYS.items() for path in reversed(paths))
    return {key: show(node) for key, node in values if node is not None}


def _row(figures: Mapping[str, Any], first_ns: int) -> tuple[str, ...]:
    return (
        figures["name"],
        format_time(figures["step_time_ns"]),
        f"{figures['tokens_per_s']:.0f}",
        format_difference(figures["step_time_ns"], first_ns),
        format_bytes(figures["actual_peak_bytes"]),
        format_time(figures["exposed_copy_ns"]),
        figures["fit"],
    )
