"""Load a training step from a configuration, or capture it from any MindSpore network; no device is needed."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindswap.config.nodes import Document
from mindswap.config.pipeline_layout import SCHEDULER_PATH
from mindswap.config.render import document_from_data
from mindswap.config.sequence_pieces import find_sequence_problems
from mindswap.config.source import load_document
from mindswap.config.step_settings import COMPUTE_DTYPE_PATH, DEFAULT_OPTIMIZER, StepSettings, read_step_settings
from mindswap.config.strategy_search import find_search_caveats
from mindswap.errors import CostError, SimulationError, require
from mindswap.features.simulate import LoadedStep
from mindswap.features.step_2x import is_2x, load_step_2x, step_of_trace
from mindswap.files import file_name
from mindswap.graph.analysis.work import measure_work
from mindswap.graph.model import Graph
from mindswap.graph.ops import ComputeUnit, classify
from mindswap.policy.model import Policy
from mindswap.rules.checker import check_document, policy_of
from mindswap.simulator.captured_step import CapturedStep
from mindswap.simulator.cost.device_costs import find_costs
from mindswap.simulator.cost.device_file import DEFAULT_DEVICE
from mindswap.simulator.cost.hardware import Device
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
    """A training step that can be simulated, planned and dry run."""

    def plan(self, memory: str | int | None = None, **options: Any) -> "StepPlan":
        """Search the fastest swap and recompute policy within a memory budget.

        Args:
            memory: budget of each card, `"40GiB"` or bytes; default is the usable memory of the device.
            options: other arguments of `mindswap.features.plan.make_plan`.

        Raises:
            PlanError: the memory cannot be parsed.
        """
        from mindswap.features.plan import make_plan

        return make_plan(self, memory, **options)

    def dry_run(self, options: "DryRunOptions | None" = None) -> "StepDryRun":
        """Measure the memory of a step on MindSpore's Ascend backend without a card, and compare with the simulation.

        Args:
            options: ranks and number of layers; default is one rank per stage, and short models in place of long ones.

        Raises:
            LaunchError: a dry run is not possible here, or the backend failed.
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
    trace: str | None = None,
) -> Step:
    """Load the step of a configuration: capture its network, without the policy.

    A step of MindFormers 2.x is recorded in the dry run of its trainer, or taken from the cache.

    Args:
        config: path of a MindFormers YAML file or of a step that `mindswap trace` recorded (.json); or a document.
        device: name or file of the device; default is that of `mindswap:` in the configuration.
        overrides: device properties to replace, by name; they override those of the configuration.
        use_cache: whether to read and write the cache of compiled graphs.
        memory: usable memory of each card, `"54GiB"` or bytes; the same as `overrides={"memory": ...}`.
        expert_skew: tokens received per token sent by the busiest expert parallel rank; default `"1"`.
        captured: capture of a configuration with the same network; None captures this one.
        trace: for a configuration of MindFormers 2.x, a step of it that `mindswap trace` recorded.

    Raises:
        PolicyError: the configuration has errors, or this Python has no MindFormers 2.x to record its step.
        GraphError: the network cannot be built or compiled.
        LaunchError: the dry run that records a step of MindFormers 2.x failed.
        CostError: the device is unknown.
    """
    document = config if isinstance(config, Document) else None
    config = document.file if document is not None else file_name(config)
    recorded = None
    if document is None:
        recorded, document = read_trace(config) if is_trace_path(config) else (None, load_document(config))
    overrides = {**(overrides or {}), **_memory_override(memory)}
    if is_2x(document):
        return Step(**fields_of(load_step_2x(document, trace, _text_or_none(device), overrides, use_cache)))
    if recorded is not None and recorded.memory is not None:
        return Step(**fields_of(step_of_trace(recorded, document, _text_or_none(device), overrides)))
    checked = check_document(document)
    if recorded is None and not checked.errors:
        require_compilable(document)
    policy = policy_of(document, checked)
    if checked.num_layers is None:
        raise AssertionError("a checked file without a number of layers")
    costs = find_costs([document], device, overrides)
    settings = settings_of(document)
    require_dtype(costs.device, settings.compute_dtype, document)
    if recorded is not None:
        captured = capture_of(recorded)
    elif captured is None:
        skew = read_skew(expert_skew)
        captured = capture_config(config, document, settings, checked.num_layers, skew, use_cache)
    if caveats := tuple(find_search_caveats(document)):
        captured = replace(captured, notes=(*captured.notes, *caveats))
    nameable_trees = checked.trees.layers if checked.trees is not None else None
    return Step(document, policy, StepModel(captured, costs, settings), nameable_trees, Path(config))


def fields_of(step: LoadedStep) -> dict[str, Any]:
    """Return the fields of a loaded step by name."""
    return {field.name: getattr(step, field.name) for field in fields(step)}


def _text_or_none(device: str | os.PathLike[str] | None) -> str | None:
    return None if device is None else str(device)


def settings_of(document: Document) -> StepSettings:
    """Read the step settings, with the pipeline schedule that environment variables select.

    Raises:
        SimulationError: the simulator does not support a setting; with its location in the configuration.
    """
    settings = read_step_settings(document)
    problem = next(find_sequence_problems(document), None)
    if problem is not None:
        raise SimulationError(
            f"{problem.location}: {problem.message}\n    allowed: {problem.allowed}\n    fix:     {problem.fix}"
        )
    node = document.get(*SCHEDULER_PATH)
    path = ".".join(SCHEDULER_PATH)
    location = f"{node.location}: {path}" if node is not None else path
    require_schedule(settings.pipeline, settings.num_micro_batches, settings.num_sequences, location)
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
    """Capture the training step of any MindSpore network on one card; the network is not changed.

    Args:
        network: a MindSpore `Cell` that returns a loss, without a policy applied.
        inputs: its inputs, tensors of the right shape and dtype; values do not matter. The first dimension counts
            samples, and the second dimension of token ids (2D integers) counts tokens.
        layers: path of the list of layers, e.g. `"backbone.blocks"`; None searches for the names that MindFormers
            uses.
        device: name or file of the device.
        memory: usable memory of the card, `"54GiB"` or bytes.
        num_micro_batches: forward and backward passes per step.
        optimizer: optimizer whose states are simulated; one that `mindswap simulate` supports.

    Raises:
        ApplyError: there is no such list of layers.
        GraphError: the network does not compile, or a policy is already applied to it.
        CostError: the device or the optimizer is unknown.
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
    require_dtype(costs.device, settings.compute_dtype, document)
    return Step(document, Policy(is_swap_enabled=True), StepModel(captured, costs, settings), None)


def require_dtype(device: Device, dtype: str, document: Document) -> None:
    """Require that the matrix units of a device compute in a dtype.

    Raises:
        CostError: if they do not; with the location of `compute_dtype` where the configuration has it.
    """
    if device.peak_flops.get(dtype) != 0:
        return
    node = document.get(*COMPUTE_DTYPE_PATH)
    place = f"{node.location}: {'.'.join(COMPUTE_DTYPE_PATH)}: " if node is not None else ""
    allowed = ", ".join(name for name, flops in device.peak_flops.items() if flops)
    raise CostError(
        f"{place}{dtype} is not supported by {device.title}\n    allowed: {allowed}\n"
        "    fix:     compute_dtype: float16, or a file or option `device` of the cards that you have"
    )


def _memory_override(memory: str | int | None) -> dict[str, str]:
    if memory is None:
        return {}
    require("memory", memory, str, int)
    return {"memory": memory if isinstance(memory, str) else f"{memory} B"}


def find_compute_dtype(graph: Graph) -> str:
    """Return the dtype with the most FLOPs on the matrix units."""
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
    """Dry run the step of a file as `Step.dry_run`; its network is captured while the dry run is in progress."""
    from mindswap.features.dryrun import memory_limits, run_stages

    document = load_document(file_name(path))
    device_model = find_costs([document], device, overrides or {}).device
    limits, load = memory_limits(device_model), partial(load_step, path, device, overrides)
    return run_stages(document, options, say, Path(path).stem, load, *limits)
