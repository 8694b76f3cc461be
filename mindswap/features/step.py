"""A training step that can be simulated and planned, without a device: of a configuration, or of any network."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindswap.config.nodes import Document
from mindswap.config.pipeline_layout import SCHEDULER_PATH, find_sequence_faults
from mindswap.config.render import document_from_data
from mindswap.config.source import load_document
from mindswap.config.step_settings import DEFAULT_OPTIMIZER, StepSettings, read_step_settings
from mindswap.errors import SimulationError, require
from mindswap.features.simulate import LoadedStep
from mindswap.files import file_name
from mindswap.graph.analysis.work import measure_work
from mindswap.graph.model import Graph
from mindswap.graph.ops import ComputeUnit, classify
from mindswap.policy.model import Policy
from mindswap.rules.checker import check_document, policy_of
from mindswap.simulator.captured_step import CapturedStep
from mindswap.simulator.cost.device_costs import find_costs
from mindswap.simulator.cost.device_file import DEFAULT_DEVICE
from mindswap.simulator.layout import require_schedule
from mindswap.simulator.schedules.rounds import LESS_MEMORY
from mindswap.simulator.step_model import StepModel
from mindswap.steps.compiled import capture_config, read_skew
from mindswap.steps.recorded import capture_of, is_trace_path, read_trace, require_compilable

if TYPE_CHECKING:
    from mindswap.features.dryrun import DryRunOptions, StepDryRun
    from mindswap.features.plan import StepPlan


@dataclass(frozen=True, eq=False, repr=False)
class Step(LoadedStep):
    """A training step ready to be simulated, planned and dry run."""

    def plan(self, memory: str | int | None = None, **options: Any) -> "StepPlan":
        """The swap and recompute settings that train fastest within a memory budget.

        Args:
            memory: of each card, `"40GiB"` or bytes; default is what may be used of the device.
            options: as of `mindswap.features.plan.make_plan`.

        Raises:
            PlanError: if the memory cannot be read.
        """
        from mindswap.features.plan import make_plan

        return make_plan(self, memory, **options)

    def dry_run(self, options: "DryRunOptions | None" = None) -> "StepDryRun":
        """One step on MindSpore's Ascend backend without a card, beside the simulation: what memory really does.

        Args:
            options: which ranks, how many layers; default is one rank of each stage, and short models for long ones.

        Raises:
            LaunchError: it cannot be run here, or the backend fails.
        """
        from mindswap.features.dryrun import dry_run_step

        return dry_run_step(self, options)


def load_step(
    config: str | os.PathLike[str] | Document,
    device: str | os.PathLike[str] | None = None,
    overrides: dict[str, str] | None = None,
    use_cache: bool = True,
    *,
    memory: str | int | None = None,
    expert_skew: str | None = None,
    captured: CapturedStep | None = None,
) -> Step:
    """Capture the network of a configuration without its policy.

    Args:
        config: MindFormers YAML, or a step that `mindswap trace` recorded (.json); or a YAML file that was read.
        device: name or file; default is what `mindswap:` of the configuration says.
        overrides: figures of the device to replace; they go before those of the configuration.
        use_cache: False compiles again and keeps nothing.
        memory: of each card that may be used, `"54GiB"` or bytes; the same as `overrides={"memory": ...}`.
        expert_skew: tokens that the busiest rank of experts receives, for one that it sends out; default `"1"`.
        captured: of a configuration with the same network on one rank; None captures this one.

    Raises:
        PolicyError: if the configuration is wrong.
        GraphError: if the network cannot be built or compiled.
        CostError: if the device is not known.
    """
    document = config if isinstance(config, Document) else None
    config = document.file if document is not None else file_name(config)
    recorded = None
    if document is None:
        recorded, document = read_trace(config) if is_trace_path(config) else (None, load_document(config))
    checked = check_document(document)
    if recorded is None and not checked.errors:
        require_compilable(document)
    policy = policy_of(document, checked)
    if checked.num_layers is None:
        raise AssertionError("a checked file without a number of layers")
    overrides = {**(overrides or {}), **_memory_override(memory)}
    costs = find_costs([document], device, overrides)
    settings = settings_of(document)
    if recorded is not None:
        captured = capture_of(recorded)
    elif captured is None:
        skew = read_skew(expert_skew)
        captured = capture_config(config, document, settings, checked.num_layers, skew, use_cache)
    known_layers = checked.trees.layers if checked.trees is not None else None
    return Step(document, policy, StepModel(captured, costs, settings), known_layers, Path(config))


def settings_of(document: Document) -> StepSettings:
    """The settings of a step with the schedule that the environment makes of it; refuses what is not simulated.

    Raises:
        SimulationError: with its place in the configuration.
    """
    settings = read_step_settings(document)
    fault = next(find_sequence_faults(document), None)
    if fault is not None:
        raise SimulationError(
            f"{fault.location}: {fault.message}\n    allowed: {fault.allowed}\n    fix:     {fault.fix}"
        )
    node = document.get(*SCHEDULER_PATH)
    path = ".".join(SCHEDULER_PATH)
    place = f"{node.location}: {path}" if node is not None else path
    require_schedule(settings.pipeline, settings.num_micro_batches, settings.num_sequences, place)
    if settings.pipeline.scheduler == "1f1b" and os.environ.get("ENABLE_LESS_MEM_VPP") == "1":
        return replace(settings, pipeline=replace(settings.pipeline, scheduler=LESS_MEMORY))
    return settings


def capture_step(
    network: Any,
    inputs: Sequence[Any],
    layers: str | None = None,
    device: str | os.PathLike[str] = DEFAULT_DEVICE,
    memory: str | int | None = None,
    *,
    num_micro_batches: int = 1,
    optimizer: str = DEFAULT_OPTIMIZER,
) -> Step:
    """Capture the training step of any MindSpore network on one card; the network is left as it was.

    Args:
        network: a MindSpore `Cell` that gives a loss, without a policy on it.
        inputs: its inputs, as tensors of the right shape and dtype; the values do not matter. Their first dimension
            counts as samples; of token ids (integers in two dimensions) the second as tokens.
        layers: path of the list of layers, e.g. `"backbone.blocks"`; None looks for it by the names that
            MindFormers uses.
        device: name or file.
        memory: of the card that may be used, `"54GiB"` or bytes.
        num_micro_batches: forward and backward passes per step.
        optimizer: whose states are in memory; one that `mindswap simulate` knows.

    Raises:
        ApplyError: if there is no such list of layers.
        GraphError: if the compiler refuses the network, or a policy is on it already.
        CostError: if device or optimizer are not known.
    """
    from mindswap.adapters.graph.network import capture_network

    require("num_micro_batches", num_micro_batches, int)
    require("optimizer", optimizer, str)
    if num_micro_batches < 1:
        raise SimulationError(f"num_micro_batches: {num_micro_batches}\n    allowed: 1 or more")
    captured = capture_network(network, inputs, layers)
    document = document_from_data({}, "the network")
    shape = tuple(inputs[0].shape) if inputs else ()
    has_tokens = len(shape) == 2 and "Int" in str(inputs[0].dtype)
    settings = replace(
        read_step_settings(document),
        batch_size=shape[0] if shape else 1,
        seq_length=shape[1] if has_tokens else 1,
        num_micro_batches=num_micro_batches,
        is_accumulating=num_micro_batches > 1,
        optimizer=optimizer,
        compute_dtype=find_compute_dtype(captured.graph),
    )
    costs = find_costs([document], device, _memory_override(memory))
    return Step(document, Policy(is_swap_enabled=True), StepModel(captured, costs, settings), None)


def _memory_override(memory: str | int | None) -> dict[str, str]:
    if memory is None:
        return {}
    require("memory", memory, str, int)
    return {"memory": memory if isinstance(memory, str) else f"{memory} B"}


def find_compute_dtype(graph: Graph) -> str:
    """The dtype in which the step computes most on the matrix units."""
    flops: Counter[str] = Counter()
    for node, work in zip(graph.forward, measure_work(graph)[0], strict=True):
        if classify(node.op).unit is ComputeUnit.MATRIX and node.outputs:
            flops[node.outputs[0].dtype] += work.flops
    return max(flops, key=flops.__getitem__, default="float16")


def dry_run_file(
    path: str | os.PathLike[str],
    options: "DryRunOptions | None" = None,
    say: Callable[[str], None] = lambda line: None,
    device: str | os.PathLike[str] | None = None,
    overrides: dict[str, str] | None = None,
) -> "StepDryRun":
    """One step of a file, as `Step.dry_run`, which is captured while it runs."""
    from mindswap.features.dryrun import memory_limits, run_stages

    document = load_document(file_name(path))
    known = find_costs([document], device, overrides or {}).device
    limits, load = memory_limits(known), partial(load_step, path, device, overrides)
    return run_stages(document, options, say, Path(path).stem, load, *limits)
