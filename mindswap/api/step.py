"""A training step that can be simulated and planned, without a device: of a configuration, or of any network."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindswap.api.compiled import capture_config, read_skew
from mindswap.api.device import find_costs
from mindswap.api.recorded import capture_of, is_trace_path, read_trace, require_compilable
from mindswap.api.run import Run
from mindswap.check.check import check_document, policy_of
from mindswap.config.nodes import Document
from mindswap.config.pipeline import SCHEDULER_PATH, find_sequence_faults
from mindswap.config.render import document_from_data
from mindswap.config.source import load_document
from mindswap.config.step import DEFAULT_OPTIMIZER, StepSettings, read_step_settings
from mindswap.config.weight_sharding import has_one_turn
from mindswap.errors import SimulationError, require
from mindswap.files import file_name
from mindswap.graph.model import Graph
from mindswap.graph.ops import ComputeUnit, classify
from mindswap.graph.work import measure_work
from mindswap.policy.cell_tree import CellNode
from mindswap.policy.model import Policy
from mindswap.simulator.cost.device_file import DEFAULT_DEVICE
from mindswap.simulator.cost.hardware import Device
from mindswap.simulator.layout import require_schedule
from mindswap.simulator.schedules import LESS_MEMORY
from mindswap.simulator.step_model import StepModel

if TYPE_CHECKING:
    from mindswap.api.dry_run_stages import DryRunOptions
    from mindswap.api.plan import StepPlan
    from mindswap.training.dryrun.stages import DryRunReport


@dataclass(frozen=True, eq=False)
class Step:
    """A training step ready to be simulated.

    Attributes:
        document: the configuration; empty for a network without one.
        policy: what it asks for, in layer indices.
        model: the step under any policy.
        known_layers: trees in which operator names of the configuration must be; None if there is no table of them.
        path: the file of the configuration; None for a network without one.
    """

    document: Document
    policy: Policy
    model: StepModel
    known_layers: tuple[CellNode, ...] | None
    path: Path | None = None
    _with_swap: "Step | None" = field(default=None, init=False, repr=False)

    @property
    def device(self) -> Device:
        """On what."""
        return self.model.costs.device

    @property
    def title(self) -> str:
        """Name for reports."""
        return self.path.stem if self.path is not None else "network"

    def config_text(self) -> str:
        """The configuration as it is written, that of a recorded step too; bytes that are no UTF-8 as surrogates."""
        if self.path is None:
            return ""
        if is_trace_path(str(self.path)):
            return read_trace(str(self.path))[0].config
        return self.path.read_bytes().decode("utf-8", "surrogatepass")

    def simulate(self, policy: Policy | None = None, title: str = "") -> Run:
        """One step under a policy.

        Args:
            policy: in layer indices; default is that of the configuration.
            title: name for reports.

        Raises:
            SimulationError: if it cannot be simulated, with the place of the recompute in the configuration.
        """
        chosen = self.policy if policy is None else policy
        require("policy", chosen, Policy)
        model = self.with_swap().model if chosen.is_swap_enabled else self.model
        try:
            simulated = model.simulate(chosen)
        except SimulationError as error:
            section = self.document.get("recompute_config", "select_recompute") if policy is None else None
            raise SimulationError(f"{section.location}: {error}" if section is not None else str(error)) from None
        return Run(model, chosen, simulated, title or self.title)

    def with_swap(self) -> "Step":
        """The step as it is compiled with swap enabled, with lazy_inline: other operators cast gathered weights."""
        settings = self.model.settings
        sharding = settings.sharding
        is_other = type(self.model) is StepModel and sharding.num_ranks > 1 and has_one_turn(self.document)
        if not is_other or sharding.is_cast_behind:
            return self
        if self._with_swap is None:
            model = self.model.remade(settings=replace(settings, sharding=replace(sharding, is_cast_behind=True)))
            object.__setattr__(self, "_with_swap", replace(self, model=model))
        assert self._with_swap is not None
        return self._with_swap

    def plan(self, memory: str | int | None = None, **options: Any) -> "StepPlan":
        """The swap and recompute settings that train fastest within a memory budget.

        Args:
            memory: of each card, `"40GiB"` or bytes; default is what may be used of the device.
            options: as of `mindswap.api.plan.make_plan`.

        Raises:
            PlanError: if the memory cannot be read.
        """
        from mindswap.api.plan import make_plan  # takes a step itself

        return make_plan(self, memory, **options)

    def dry_run(self, options: "DryRunOptions | None" = None) -> "DryRunReport":
        """One step on MindSpore's Ascend backend without a card, beside the simulation: what memory really does.

        Args:
            options: which ranks, how many layers; default is one rank of each stage, and short models for long ones.

        Raises:
            LaunchError: it cannot be run here, or the backend fails.
        """
        from mindswap.api.dry_run_stages import dry_run_step  # takes a step itself

        return dry_run_step(self, options)


def load_step(
    config: str | os.PathLike[str] | Document,
    device: str | os.PathLike[str] | None = None,
    overrides: dict[str, str] | None = None,
    use_cache: bool = True,
    *,
    memory: str | int | None = None,
    expert_skew: str | None = None,
) -> Step:
    """Capture the network of a configuration without its policy.

    Args:
        config: MindFormers YAML, or a step that `mindswap trace` recorded (.json); or a YAML file that was read.
        device: name or file; default is what `mindswap:` of the configuration says.
        overrides: figures of the device to replace; they go before those of the configuration.
        use_cache: False compiles again and keeps nothing.
        memory: of each card that may be used, `"54GiB"` or bytes; the same as `overrides={"memory": ...}`.
        expert_skew: tokens that the busiest rank of experts receives, for one that it sends out; default `"1"`.

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
    checked = check_document(document, environ=dict(os.environ))
    if recorded is None and not checked.errors:
        require_compilable(document)
    policy = policy_of(document, checked)
    assert checked.num_layers is not None
    overrides = {**(overrides or {}), **_memory_override(memory)}
    costs = find_costs([document], device, overrides)
    settings = _with_schedule(document, read_step_settings(document))
    if recorded is not None:
        captured = capture_of(recorded)
    else:
        skew = read_skew(expert_skew)
        captured = capture_config(config, document, settings, checked.num_layers, skew, use_cache)
    known_layers = checked.trees.layers if checked.trees is not None else None
    return Step(document, policy, StepModel(captured, costs, settings), known_layers, Path(config))


def _with_schedule(document: Document, settings: StepSettings) -> StepSettings:
    """The settings with the schedule that the environment makes of it; what is not simulated is refused at once."""
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
    from mindswap.adapters.network import capture_network

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
