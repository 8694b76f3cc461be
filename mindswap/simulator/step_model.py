"""Simulation of one captured step under many policies.

The step is captured once; a planner then simulates thousands of policies on it. All figures are simulated.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from mindswap.config.step_settings import StepSettings
from mindswap.errors import SimulationError
from mindswap.graph.analysis.collectives import Collective
from mindswap.graph.analysis.execution_order import ROTATION_NOTE
from mindswap.graph.analysis.saved_tensors import Label
from mindswap.graph.analysis.work import measure_work
from mindswap.graph.model import Graph
from mindswap.graph.ops import ComputeUnit, classify
from mindswap.policy.formats.mindformers1.truncate import truncated_offset
from mindswap.policy.model import Policy
from mindswap.policy.resolve import has_swaps, layer_key, with_recompute_only
from mindswap.simulator.captured_step import CapturedStep
from mindswap.simulator.compiled_layers import CompiledLayers
from mindswap.simulator.cost.cost_table import CostTable
from mindswap.simulator.cost.static_memory import StaticMemory, communication_bytes
from mindswap.simulator.cost.transfer import collective_ns
from mindswap.simulator.engine import run_program
from mindswap.simulator.layer_block import Block
from mindswap.simulator.layer_groups import group_layers
from mindswap.simulator.memory import peak_memory
from mindswap.simulator.memory_pool import UNIT_BYTES
from mindswap.simulator.memory_replay import StageAllocations, replay_memory_pool
from mindswap.simulator.optimizer_allocations import final_gradients, optimizer_allocations, persistent_tensors
from mindswap.simulator.partition import BlockBuilder
from mindswap.simulator.planned_memory import planned_activation_bytes
from mindswap.simulator.program import Program
from mindswap.simulator.program_builder import build_program
from mindswap.simulator.shared_parts import BlockCache, SharedParts, make_parts
from mindswap.simulator.stage_weights import update_terms
from mindswap.simulator.timeline import (
    StepTerm,
    Timeline,
    backward_by_segment_ns,
    last_forward_ns,
    repeated_reduction_ns,
)

PLAIN = Policy(is_swap_enabled=True)
PREDICTION = "layers for multi-token prediction recomputed"  # key of their block
# Size of the cache of partitioned steps: most often few blocks of a step are requested, in quick succession.
NUM_RECENT = 32


@dataclass(frozen=True, eq=False)
class SimulatedStep:
    """Result of simulating a step under one policy."""

    timeline: Timeline  # operators and copies of all stages
    terms: tuple[StepTerm, ...]  # step overhead after the passes: gradients and optimizer
    activation_bytes: tuple[int, ...]  # peak activation memory of each stage
    static: tuple[StaticMemory, ...]  # static memory of each stage

    @property
    def step_time_ns(self) -> int:
        """Step time in ns, with the overhead after the passes."""
        return self.timeline.step_time_ns + sum(term.duration_ns for term in self.terms)

    @property
    def peak_bytes(self) -> int:
        """Peak device memory of the stage that needs most, in bytes."""
        return max(self.peaks_bytes)

    @property
    def peaks_bytes(self) -> tuple[int, ...]:
        """Peak device memory of each stage, in bytes."""
        return tuple(a + s.total_bytes for a, s in zip(self.activation_bytes, self.static, strict=True))


class StepModel:
    """Model of one step: builds its program under a policy, and simulates it.

    Layers with equal settings share one block, which is built once and cached.

    Args:
        captured: step without swap and recompute.
        costs: durations of operators, and the device with its links.
        settings: micro-batches, parallel settings, optimizer.
        fixed: policy that applies together with every simulated policy.
        caveats: effects that are not modelled, as text, in addition to those of the captured step.
        is_swapping: assume that other layers swap, independently of the policy.
        parts: of a model that differs in the number of micro-batches or in `is_swapping` only; then the captured step,
            the fixed policy and the caveats are those of `parts`.

    Attributes:
        layers: graphs of the compiled layers under a policy, and the step as captured.
        names: operator -> its names.
        captured: the step without any policy: weights all-gathered, tensors shared by layers, equal operators merged.
        caveats: effects that are not modelled, as text.
        transfers: durations of transfers.
        weights: weights of each stage, and their gradients.
        layout: stages and schedule.

    Raises:
        SimulationError: if the pipeline settings do not fit the model.
        CostError: if the optimizer is unknown.
    """

    def __init__(
        self,
        captured: CapturedStep,
        costs: CostTable,
        settings: StepSettings,
        fixed: Policy | None = None,
        *,
        caveats: tuple[str, ...] = (),
        is_swapping: bool = False,
        parts: SharedParts | None = None,
    ):
        parts = parts or make_parts(captured, costs, settings, fixed, caveats)
        self.costs, self.settings = costs, settings
        # `swap: True` compiles a step of one micro-batch with lazy_inline, which keeps the backend from merging
        # recomputed casts of weights, whether or not a tensor is swapped.
        self.is_swapping = is_swapping or settings.sharding.is_cast_after_gather
        self.layers, self.captured, self.caveats = parts.layers, parts.captured, parts.caveats
        self.names = parts.layers.labels
        self.transfers, self.weights = parts.transfers, parts.weights
        self.layout = replace(parts.layout, num_micro_batches=settings.num_micro_batches)
        self._parts = parts
        self._update_terms = update_terms(parts.weights.parameters, settings, costs.device)

    # -- other models of the same step ------------------------------------------------------------

    def with_costs(self, costs: CostTable) -> "StepModel":
        """Return a model of the same captured step with other durations, or on another device."""
        return StepModel(self.layers.source, costs, self.settings, self.layers.fixed)

    def with_settings(self, settings: StepSettings) -> "StepModel":
        """Return a model of the same captured step with other settings."""
        return StepModel(self.layers.source, self.costs, settings, self.layers.fixed)

    def with_fixed_policy(self, fixed: Policy | None) -> "StepModel":
        """Return a model of the same captured step with another fixed policy, or with none."""
        return StepModel(self.layers.source, self.costs, self.settings, fixed)

    def truncated(self, layer_indices: Sequence[int]) -> "StepModel":
        """Return a step model with fewer layers.

        Args:
            layer_indices: layers of the full model that remain, at least one in each chunk of each stage.
        """
        source = self.layers.source
        layer_map = tuple(source.sample.layer_map[index] for index in layer_indices)
        captured = replace(source, sample=replace(source.sample, layer_map=layer_map))
        pipeline = self.settings.pipeline
        offset = truncated_offset(pipeline, source.num_layers, layer_indices)
        settings = replace(self.settings, pipeline=replace(pipeline, offset=offset))
        return StepModel(captured, self.costs, settings, self.layers.fixed)

    def with_micro_batches(self, num_micro_batches: int) -> "StepModel":
        """Return the same model with another number of micro-batches; both share the cache of blocks."""
        return self._sharing(replace(self.settings, num_micro_batches=num_micro_batches), self.is_swapping, self._parts)

    def with_swap(self, is_swapping: bool = True) -> "StepModel":
        """Return the same model with `is_swapping` set; both share the cache of blocks."""
        return self._sharing(self.settings, is_swapping, self._parts)

    def _sharing(self, settings: StepSettings, is_swapping: bool, parts: SharedParts) -> "StepModel":
        return type(self)(self.layers.source, self.costs, settings, is_swapping=is_swapping, parts=parts)

    # -- a step -----------------------------------------------------------------------------------

    def simulate(self, policy: Policy) -> SimulatedStep:
        """Simulate a step under a policy."""
        timeline = run_program(self.program(policy))
        peaks = tuple(int(peak) for peak in peak_memory(timeline))
        return SimulatedStep(timeline, self.terms(timeline), peaks, self.static)

    def actual_peaks_bytes(self, simulated: SimulatedStep, *, is_level_kept: bool = True) -> tuple[int, ...]:
        """Return the peak of each stage with the fragments of the pool, in bytes; without, if the device maps pages.

        The allocations of the simulated step are replayed in MindSpore's memory pool. Addresses that MindSpore plans
        before the step leave gaps on every device.

        Args:
            simulated: the step.
            is_level_kept: whether the file has the same `memory_optimize_level` with its policy; else it has O0.
        """
        # A step with copies runs at `memory_optimize_level: O0`: SOMAS supports no host memory.
        if is_level_kept and self.settings.plans_memory and not len(simulated.timeline.program.copies):
            return tuple(
                max(activation_bytes, planned_activation_bytes(simulated.timeline, stage)) + static.total_bytes
                for stage, (activation_bytes, static) in enumerate(
                    zip(simulated.activation_bytes, simulated.static, strict=True)
                )
            )
        if not self.costs.device.leaves_fragments:
            return simulated.peaks_bytes
        return tuple(
            replay_memory_pool(simulated.timeline, stage, self._allocations(stage)) + static.workspace_bytes
            for stage, static in enumerate(simulated.static)
        )

    def _allocations(self, stage: int) -> StageAllocations:
        """Return the memory of a stage that is not in the program."""
        parameters = self.weights.parameters[stage]
        trained = [weight for weight in parameters if weight.is_trained]
        gradients = final_gradients(trained, self.weights.rule, self.settings)
        tensors = persistent_tensors(parameters, self.settings)
        return StageAllocations(
            persistent_bytes=[self.static[stage].constant_bytes, *tensors],
            gradients=gradients,
            optimizer=tuple(optimizer_allocations(trained, gradients, self.settings)),
            block_bytes=self.settings.pool_block_bytes or UNIT_BYTES,
        )

    def program(self, policy: Policy) -> Program:
        """Build operators, copies and memory intervals of a step under a policy.

        If the policy disables swap, only its recompute settings apply.

        Raises:
            SimulationError: if it recomputes several layers at once, which blocks cannot express.
        """
        acting = self.layers.with_fixed(with_recompute_only(policy))
        if acting.output_recompute:
            return self._program_of_groups(acting)
        return build_program(self.blocks(policy), self.transfers, self.layout)

    def _program_of_groups(self, policy: Policy) -> Program:
        """Build the program under a policy that recomputes outputs of layers: a block is a group of layers."""
        groups = group_layers(self.layers.source, policy)
        layout = groups.layout(self.layout)
        layers = CompiledLayers(groups.captured, self.settings)
        graph = layers.in_backend_order(layers.rewritten_layers(policy, groups.layers))
        read = partial(groups.read_blocks, graph, self._block_builder_of(layers))
        is_swapping = (self.is_swapping or has_swaps(policy)) and self._parts.has_single_micro_step
        blocks = read(is_swapping)
        if is_swapping and not self.is_swapping and not _has_copies(blocks):
            blocks = read(self.is_swapping)
        return build_program(blocks, self.transfers, layout, first_layers=groups.starts[:-1])

    def blocks(self, policy: Policy) -> list[Block]:
        """Return one block per segment: before the layers, every layer under the policy, after the layers.

        Raises:
            SimulationError: if it recomputes several layers at once, or tensors cross more than one layer.
        """
        if policy.output_recompute:
            raise SimulationError(
                "mindswap.output_recompute: layers that are recomputed together have no block of their own; "
                "fix: simulate() for the whole step, or a policy without output_recompute"
            )
        acting = with_recompute_only(policy)

        def layers_of(is_swapping: bool) -> list[Block]:
            return [self._layer_block(acting, index, is_swapping) for index in range(self.captured.num_layers)]

        is_swapping = self.is_swapping or has_swaps(self.layers.with_fixed(acting))
        layers = layers_of(is_swapping)
        if is_swapping and not self.is_swapping and not _has_copies(layers):
            layers = layers_of(self.is_swapping)  # no named tensor is saved for backward, so nothing is swapped
        prologue = self._block(PLAIN, 0, -1, self.is_swapping)
        return [prologue, *layers, self._epilogue(acting, is_swapping)]

    def blocks_with_free_gathers(self) -> list[Block]:
        """Return `blocks` without swap and recompute, with zero duration of the AllGathers of weights."""
        if not self.layers.gathers:
            return self.blocks(PLAIN)
        parts = replace(self._parts, collectives=self.captured.collectives, cache=BlockCache())
        return self._sharing(self.settings, self.is_swapping, parts).blocks(PLAIN)

    def layer_block(self, policy: Policy, layer_index: int) -> Block:
        """Return the block of one layer under a policy, as in `blocks` if no layer swaps."""
        return self._layer_block(with_recompute_only(policy), layer_index, self.is_swapping)

    def holder_names(self, policy: Policy, layer_index: int) -> dict[Label, tuple[tuple[str, ...], ...]]:
        """Return `CompiledLayers.holder_names` of a layer, whether or not swap is enabled."""
        return self.layers.holder_names(with_recompute_only(policy), layer_index)

    def _epilogue(self, acting: Policy, is_swapping: bool) -> Block:
        """Return the block after the layers; layers for multi-token prediction are recomputed with the last layer."""
        segment, last = len(self.captured.trees), self.captured.num_layers - 1
        if not self.layers.prediction or last not in acting.layer_recompute:
            return self._block(PLAIN, 0, segment, self.is_swapping)
        is_swapping = is_swapping and self._parts.has_single_micro_step
        key, blocks = ((PREDICTION, is_swapping), segment), self._parts.cache.blocks
        if key not in blocks:
            blocks[key] = self._read_blocks(self.layers.with_prediction_recomputed, is_swapping)(segment)
        return blocks[key]

    def _layer_block(self, acting: Policy, layer_index: int, is_swapping: bool) -> Block:
        segment = self.captured.sample.layer_map[layer_index]
        try:
            return self._block(acting, layer_index, segment, is_swapping)
        except SimulationError as error:
            raise self.layers.not_simulated(error, acting, layer_index) from None

    def _block(self, policy: Policy, layer_index: int, segment: int, is_swapping: bool) -> Block:
        """Return the block of a segment, if all compiled layers have the settings of one layer of the model."""
        # Swap of another layer changes recomputed layers only (`StepReader.of_weights`).
        is_swapping = is_swapping and self._parts.has_single_micro_step
        is_swapping = is_swapping and any(layer_key(self.layers.with_fixed(policy), layer_index)[0])
        key = (*layer_key(policy, layer_index), is_swapping)
        blocks, builders = self._parts.cache.blocks, self._parts.cache.builders
        if (key, segment) not in blocks:
            if key not in builders:
                while len(builders) >= NUM_RECENT:
                    del builders[next(iter(builders))]
                builders[key] = self._block_builder(policy, layer_index, is_swapping)
            blocks[key, segment] = builders[key](segment)
        return blocks[key, segment]

    def _block_builder(self, policy: Policy, layer_index: int, is_swapping: bool) -> Callable[[int], Block]:
        """Read the step in which all compiled layers have these settings; return the function segment -> block."""
        return self._read_blocks(self.layers.rewritten(policy, layer_index), is_swapping)

    def _read_blocks(self, graph: Graph, is_swapping: bool) -> Callable[[int], Block]:
        graph = self.layers.in_backend_order(graph)
        return self._block_builder_of(self.layers)(graph=graph, label=self.names, is_swapping=is_swapping).block

    def _block_builder_of(self, layers: CompiledLayers) -> Callable[..., BlockBuilder]:
        """Return `BlockBuilder` for graphs of these layers, without what depends on the graph."""
        return partial(
            BlockBuilder,
            operator_ns=self.costs.operator_ns,
            collectives={**layers.source.collectives, **layers.gathers},
            collective_ns=self.collective_ns,
            is_fused=self.settings.is_fused,
            per_step_operators=layers.per_step_operators,
            rule=self.weights.rule,
            alignment_bytes=self.costs.device.pool_alignment_bytes,
            has_rotation_products=ROTATION_NOTE in layers.source.notes,
        )

    # -- results ----------------------------------------------------------------------------------

    @property
    def static(self) -> tuple[StaticMemory, ...]:
        """Static memory of each stage."""
        return self.weights.static

    @property
    def outside_bytes(self) -> int:
        """Device memory of HCCL buffers outside MindSpore's pool, in bytes."""
        return communication_bytes(self.settings.communicators, self.costs.device)

    def terms(self, timeline: Timeline) -> tuple[StepTerm, ...]:
        """Return the step overhead after the passes, each term with its duration on the slowest stage.

        Gradient reduction overlaps backward of the last micro-batch; only the rest is exposed. AllGathers of weights
        are part of the timeline.

        Args:
            timeline: of this step with any number of micro-batches; the terms use the number of this model.
        """
        durations = dict(self._update_terms)
        if any(map(any, self.weights.reduction_ns)):
            durations["exposed gradient communication"] = self.exposed_reduction_ns(timeline)
        return tuple(StepTerm(name, duration_ns) for name, duration_ns in durations.items())

    def exposed_reduction_ns(self, timeline: Timeline) -> int:
        """Return the exposed time of gradient reduction after backward, on the slowest stage, in ns."""
        num_reductions = self.settings.num_gradient_reductions

        def exposed_ns(stage: int, reduction_ns: Sequence[int]) -> int:
            backward_ns = backward_by_segment_ns(timeline, stage, len(reduction_ns))
            return repeated_reduction_ns(reduction_ns, backward_ns, last_forward_ns(timeline, stage), num_reductions)

        return max(exposed_ns(stage, reduction_ns) for stage, reduction_ns in enumerate(self.weights.reduction_ns))

    def model_flops(self) -> int:
        """Return the floating point operations of matrix units in one step without recompute, over all cards."""
        graph, counts = self.captured.graph, self.captured.sample.layer_map
        total = 0
        for nodes, works in zip((graph.forward, graph.backward), measure_work(graph), strict=True):
            for node, work in zip(nodes, works, strict=True):
                if classify(node.op).unit is ComputeUnit.MATRIX:
                    total += work.flops * (1 if node.layer_index is None else counts.count(node.layer_index))
        per_stage_rank = self.settings.num_cards // self.settings.pipeline.num_stages
        return total * self.settings.num_micro_steps * per_stage_rank

    def collective_ns(self, collective: Collective) -> int:
        """Return the duration of a collective within a layer, in ns."""
        sent = (collective.kind, collective.size_bytes, collective.num_ranks)
        return collective_ns(*sent, self.costs.device, collective.stride)


def _has_copies(blocks: Sequence[Block]) -> bool:
    """Return whether any block offloads a tensor."""
    return any(tensor.num_copies for block in dict.fromkeys(blocks) for tensor in block.tensors)
