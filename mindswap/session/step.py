"""A training step that can be simulated and planned, without a device: of a configuration, or of any network."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindswap.adapters.installed import require_mindformers
from mindswap.adapters.quiet import quiet
from mindswap.check.check import CheckResult, check_document, require_num_layers
from mindswap.config.device_memory import read_device_memory
from mindswap.config.pipeline import SCHEDULER_PATH
from mindswap.config.rank import place_rank
from mindswap.config.sequences import find_sequence_faults
from mindswap.config.step import DEFAULT_OPTIMIZER, StepSettings, read_step_settings
from mindswap.cost.calibration_file import load_measured
from mindswap.cost.device_file import DEFAULT_DEVICE, load_device
from mindswap.cost.hardware import SET_BY_USER, Device
from mindswap.cost.settings import read_cost_settings
from mindswap.cost.table import CostTable
from mindswap.document.nodes import Document
from mindswap.document.plain_data import document_from_data
from mindswap.document.source import load_document
from mindswap.errors import GraphError, PolicyError, SimulationError
from mindswap.graph.model import Graph
from mindswap.graph.ops import Unit, classify
from mindswap.graph.work import measure_work
from mindswap.policy.cell_tree import CellNode
from mindswap.policy.model import Policy
from mindswap.session.cache import GRAPH_CLASSES, POLICY_SECTIONS, asks_for_stand_ins, cached_result
from mindswap.session.compilable import require_compilable
from mindswap.session.recorded import capture_of, is_trace_path, read_trace
from mindswap.session.run import Run
from mindswap.simulate.captured import CapturedStep
from mindswap.simulate.layout import require_schedule
from mindswap.simulate.schedules import LESS_MEMORY
from mindswap.simulate.step_model import StepModel
from mindswap.stage.expand import expand_stage_recompute

__all__ = ["Step", "capture_step", "load_step", "policy_of", "with_environment", "within_configuration"]

if TYPE_CHECKING:
    from mindswap.session.plan import StepPlan

# What a captured step is made of, for the cache.
STEP_CLASSES = (CapturedStep, *GRAPH_CLASSES)
# Every rank of experts receives as many tokens as it sends, in thousandths; and the most that can be asked for.
BALANCED, MAX_SKEW = 1000, 1_000_000


@dataclass(frozen=True, eq=False)
class Step:
    """A training step ready to be simulated.

    Attributes:
        document: the configuration; empty for a network without one.
        policy: what it asks for, in layer indices.
        model: the step under any policy.
        device: on what.
        known_layers: trees in which operator names of the configuration must be; None if there is no table of them.
        path: the file of the configuration; None for a network without one.
    """

    document: Document
    policy: Policy
    model: StepModel
    device: Device
    known_layers: tuple[CellNode, ...] | None
    path: Path | None = None

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
        try:
            simulated = self.model.simulate(chosen)
        except SimulationError as error:
            section = self.document.get("recompute_config", "select_recompute") if policy is None else None
            raise SimulationError(f"{section.location}: {error}" if section is not None else str(error)) from None
        return Run(self.model, self.device, chosen, simulated, title or self.title)

    def plan(self, memory: str | int | None = None, **options: Any) -> "StepPlan":
        """The swap and recompute settings that train fastest within a memory budget.

        Args:
            memory: of each card, `"40GiB"` or bytes; default is what may be used of the device.
            options: as of `mindswap.session.plan.make_plan`.

        Raises:
            PlanError: if the memory cannot be read.
        """
        from mindswap.session.plan import make_plan  # takes a step itself

        return make_plan(self, memory, **options)


def load_step(
    config: str,
    device: str | None = None,
    overrides: dict[str, str] | None = None,
    use_cache: bool = True,
    *,
    memory: str | None = None,
    rank: int | None = None,
    expert_skew: str | None = None,
) -> Step:
    """Capture the network of a configuration without its policy.

    Args:
        config: MindFormers YAML, or a step that `mindswap trace` recorded (.json).
        device: name or file; default is what `mindswap:` of the configuration says.
        overrides: figures of the device to replace; they go before those of the configuration.
        use_cache: False compiles again and keeps nothing.
        memory: of each card that may be used, `"54GiB"`; the same as `overrides={"memory": ...}`.
        rank: must be one of the training; the step is that of all pipeline stages, whose ranks are all alike.
        expert_skew: tokens that the busiest rank of experts receives, for one that it sends out; default `"1"`.

    Raises:
        PolicyError: if the configuration is wrong.
        GraphError: if the network cannot be built or compiled.
        CostError: if the device is not known.
    """
    recorded, document = read_trace(config) if is_trace_path(config) else (None, load_document(config))
    checked = check_document(document, environ=dict(os.environ))
    if recorded is None and not checked.errors:
        require_compilable(document)
    policy = policy_of(document, checked)
    assert checked.num_layers is not None
    asked = read_cost_settings(document)
    if asked.problems:
        raise PolicyError(asked.problems)
    device = device or asked.device or DEFAULT_DEVICE
    overrides = {**asked.overrides, **(overrides or {}), **({"memory": memory} if memory is not None else {})}
    figures = with_environment(within_configuration(load_device(device, overrides), document), os.environ)
    costs = CostTable(figures, load_measured(device))
    settings = read_step_settings(document)
    settings = _with_schedule(document, settings)
    if recorded is not None:
        captured = capture_of(recorded)
    else:
        captured = _capture(config, document, checked.num_layers, rank, use_cache, read_skew(expert_skew))
    known_layers = checked.trees.layers if checked.trees is not None else None
    return Step(document, policy, StepModel(captured, costs, settings), figures, known_layers, Path(config))


def read_skew(text: str | None) -> int:
    """How uneven tokens go to the ranks of experts, in thousandths.

    Args:
        text: such as `"1.5"`; None is balanced.

    Raises:
        GraphError: if it is no number from 1 on.
    """
    if text is None:
        return BALANCED
    try:
        skew = round(float(text) * BALANCED)
    except (ValueError, OverflowError):
        skew = 0
    if not BALANCED <= skew <= MAX_SKEW:
        raise GraphError(
            f"--expert-skew: {text} is not how many times as many tokens the busiest rank receives\n"
            f"    allowed: a number from 1 (balanced) to {MAX_SKEW // BALANCED}"
        )
    return skew


def within_configuration(device: Device, document: Document) -> Device:
    """The device with no more memory than the configuration lets MindSpore take, unless a budget is named."""
    limit = read_device_memory(document)
    is_named = device.sources["usable_memory"] == SET_BY_USER
    if limit is None or is_named or limit.size_bytes >= device.usable_memory_bytes:
        return device
    sources = {**device.sources, "usable_memory": limit.source}
    return replace(device, usable_memory_bytes=limit.size_bytes, sources=sources)


def with_environment(device: Device, environ: Mapping[str, str]) -> Device:
    """The device with the buffers of HCCL that `HCCL_BUFFSIZE` asks for (in MiB, from 1), unless a figure is named."""
    text = environ.get("HCCL_BUFFSIZE", "").strip()
    is_named = device.sources["hccl_buffer"] == SET_BY_USER
    if is_named or not text.isdecimal() or int(text) < 1:  # HCCL takes nothing else
        return device
    sources = {**device.sources, "hccl_buffer": f"environment, HCCL_BUFFSIZE={text}"}
    return replace(device, hccl_buffer_bytes=int(text) * 2**20, sources=sources)


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
    device: str = DEFAULT_DEVICE,
    memory: str | None = None,
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
        memory: of the card that may be used, `"54GiB"`.
        num_micro_batches: forward and backward passes per step.
        optimizer: whose states are in memory; one that `mindswap simulate` knows.

    Raises:
        ApplyError: if there is no such list of layers.
        GraphError: if the compiler refuses the network, or a policy is on it already.
        CostError: if device or optimizer are not known.
    """
    from mindswap.adapters.network import capture_network

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
    figures = load_device(device, {"memory": memory} if memory is not None else {})
    model = StepModel(captured, CostTable(figures, load_measured(device)), settings)
    return Step(document, Policy(is_swap_enabled=True), model, figures, None)


def find_compute_dtype(graph: Graph) -> str:
    """The dtype in which the step computes most on the matrix units."""
    flops: Counter[str] = Counter()
    for node, work in zip(graph.forward, measure_work(graph)[0], strict=True):
        if classify(node.op).unit is Unit.MATRIX and node.outputs:
            flops[node.outputs[0].dtype] += work.flops
    return max(flops, key=flops.__getitem__, default="float16")


def policy_of(document: Document, checked: CheckResult) -> Policy:
    """What a configuration asks for in layer indices; with swap off what MindFormers makes of its recompute.

    Raises:
        PolicyError: if it is wrong.
    """
    if checked.policy is None or checked.errors:
        raise PolicyError(checked.problems)
    num_layers = require_num_layers(document, checked.num_layers)
    if checked.policy.is_swap_enabled:
        return checked.policy
    return expand_stage_recompute(document, num_layers).policy


def _capture(
    config: str, document: Document, num_layers: int, rank: int | None, use_cache: bool, skew_permille: int
) -> CapturedStep:
    path = str(Path(config).resolve())
    settings = read_step_settings(document)
    placement = None
    if rank is not None or settings.num_parts > 1:
        placement = place_rank(document, rank or 0, num_layers, skew_permille)
    if settings.num_parts == 1:
        placement = None  # every rank of a stage is like one that has the whole model

    def make() -> CapturedStep:
        require_mindformers()
        with quiet():
            from mindswap.adapters.step import capture_step

            return capture_step(path, num_layers, placement)

    return cached_result(
        document,
        Policy(),
        STEP_CLASSES,
        make,
        use_cache,
        without=POLICY_SECTIONS,
        ask="step",
        **({"expert_skew": skew_permille} if skew_permille != BALANCED else {}),
        stand_ins=asks_for_stand_ins(document),
    )
