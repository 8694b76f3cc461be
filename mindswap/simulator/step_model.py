"""Simulation of one captured step under many policies.

The step is captured once; a planner then simulates thousands of policies on it. All figures are simulated.
"""

import copy
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from mindswap.config.step_settings import StepSettings
from mindswap.errors import SimulationError
from mindswap.graph.analysis.collectives import Collective
from mindswap.graph.analysis.saved_tensors import Label
from mindswap.graph.analysis.work import measure_work
from mindswap.graph.ops import ComputeUnit, classify
from mindswap.graph.passes.gather import is_gathering
from mindswap.policy.model import Policy
from mindswap.policy.resolve import has_swaps, layer_key, with_recompute_only
from mindswap.simulator.captured_step import CapturedStep, list_caveats
from mindswap.simulator.compiled_layers import CompiledLayers
from mindswap.simulator.cost.cost_table import CostTable
from mindswap.simulator.cost.static_memory import StaticMemory, communication_bytes
from mindswap.simulator.cost.transfer import collective_ns, copy_ns, send_ns
from mindswap.simulator.engine import run_program
from mindswap.simulator.layer_block import Block
from mindswap.simulator.layout import build_stage_layout
from mindswap.simulator.memory import peak_memory
from mindswap.simulator.partition import BlockBuilder
from mindswap.simulator.placing import TransferCosts
from mindswap.simulator.program import Program
from mindswap.simulator.program_builder import build_program
from mindswap.simulator.stage_weights import update_terms, weigh_stages
from mindswap.simulator.timeline import (
    StepTerm,
    Timeline,
    backward_by_segment_ns,
    last_forward_ns,
    repeated_reduction_ns,
)

PLAIN = Policy(is_swap_enabled=True)
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
        return max(a + s.total_bytes for a, s in zip(self.activation_bytes, self.static, strict=True))


class StepModel:
    """Model of one step: builds its program under a policy, and simulates it.

    Layers with equal settings share one block, which is built once and cached.

    Args:
        captured: step without swap and recompute.
        costs: durations of operators, and the device with its links.
        settings: micro-batches, parallel settings, optimizer.
        fixed: policy that applies together with every simulated policy.

    Raises:
        SimulationError: if the pipeline settings do not fit the model.
        CostError: if the optimizer is unknown.
    """

    def __init__(self, captured: CapturedStep, costs: CostTable, settings: StepSettings, fixed: Policy | None = None):
        self.costs = costs
        self.settings = settings
        # Graphs of the compiled layers under a policy, and the step as captured.
        self.layers = CompiledLayers(captured, settings, fixed)
        self.names = self.layers.labels  # operator -> its names
        self.caveats = list_caveats(captured.graph, settings)
        # The step without any policy: weights all-gathered, tensors shared by layers, equal operators merged.
        self.captured = replace(self.layers.plain, notes=(*captured.notes, *self.caveats))
        stage_cards = settings.num_cards // settings.pipeline.num_stages
        is_within_node = 2 * stage_cards <= costs.device.num_cards_per_node
        self.transfers = TransferCosts(
            partial(copy_ns, link=costs.device.offload, device=costs.device),
            partial(copy_ns, link=costs.device.prefetch, device=costs.device),
            partial(send_ns, is_within_node=is_within_node, device=costs.device),
            costs.device.contended_permille,
        )
        layout = build_stage_layout(
            settings.pipeline, captured.num_layers, settings.num_micro_batches, settings.num_sequences
        )
        self.weights = weigh_stages(captured, self.captured.graph, layout, settings, costs.device)
        self.layout = replace(
            layout, closing_bytes=self.weights.closing_bytes, forward_bytes=self.weights.forward_bytes
        )
        self._collectives = {**captured.collectives, **self.layers.gathers}
        self._update_terms = update_terms(self.weights.parameters, settings, costs.device)
        self.is_swapping = False  # assume that other layers swap, independently of the policy
        self._has_single_micro_step = self.layout.num_micro_steps == 1  # not updated by `with_micro_batches`
        self._blocks: dict[tuple[Hashable, int], Block] = {}  # by layer settings and segment
        self._recent: dict[Hashable, Callable[[int], Block]] = {}  # layer settings -> builder of blocks

    # -- other models of the same step ------------------------------------------------------------

    def remade(
        self, costs: CostTable | None = None, settings: StepSettings | None = None, fixed: Policy | None = None
    ) -> "StepModel":
        """Return a model of the same captured step with other costs, settings, or fixed policy; None keeps them."""
        return StepModel(self.layers.source, costs or self.costs, settings or self.settings, fixed or self.layers.fixed)

    def short(self, kept: Sequence[int]) -> "StepModel":
        """Return a step model truncated to fewer layers.

        Args:
            kept: indices of the layers of the full model that remain, spread evenly over the stages.
        """
        source = self.layers.source
        layer_map = tuple(source.sample.layer_map[index] for index in kept)
        captured = replace(source, sample=replace(source.sample, layer_map=layer_map))
        settings = replace(self.settings, pipeline=replace(self.settings.pipeline, offset=0))
        return StepModel(captured, self.costs, settings, self.layers.fixed)

    def with_micro_batches(self, num_micro_batches: int) -> "StepModel":
        """Return the same model with another number of micro-batches; both share the cache of blocks."""
        other = copy.copy(self)
        other.layout = replace(self.layout, num_micro_batches=num_micro_batches)
        other.settings = replace(self.settings, num_micro_batches=num_micro_batches)
        other._update_terms = update_terms(self.weights.parameters, other.settings, self.costs.device)
        return other

    def swapping(self, is_swapping: bool = True) -> "StepModel":
        """Return the same model with `is_swapping` set; both share the cache of blocks."""
        other = copy.copy(self)
        other.is_swapping = is_swapping
        return other

    # -- a step -----------------------------------------------------------------------------------

    def simulate(self, policy: Policy) -> SimulatedStep:
        """Simulate a step under a policy."""
        timeline = run_program(self.program(policy))
        peaks = tuple(int(peak) for peak in peak_memory(timeline))
        return SimulatedStep(timeline, self.terms(timeline), peaks, self.static)

    def program(self, policy: Policy) -> Program:
        """Build operators, copies and memory intervals of a step under a policy.

        If the policy disables swap, only its recompute settings apply.

        Raises:
            SimulationError: if it recomputes several layers at once, which blocks cannot express.
        """
        return build_program(self.blocks(policy), self.transfers, self.layout)

    def blocks(self, policy: Policy) -> list[Block]:
        """Return one block per segment: before the layers, every layer under the policy, after the layers.

        Raises:
            SimulationError: if it recomputes several layers at once, or tensors cross more than one layer.
        """
        if policy.output_recompute:
            raise SimulationError(
                "mindswap.output_recompute is not simulated: backward has several layers at once then"
            )
        acting = with_recompute_only(policy)

        def layers_of(model: StepModel) -> list[Block]:
            return [model.layer_block(acting, index) for index in range(self.captured.num_layers)]

        model = self.swapping(self.is_swapping or has_swaps(self.layers.with_fixed(acting)))
        layers = layers_of(model)
        if model.is_swapping and not any(t.num_copies for block in dict.fromkeys(layers) for t in block.tensors):
            layers = layers_of(self)  # no named tensor is saved for backward, so nothing is swapped
        behind = len(self.captured.trees)
        return [self._block(PLAIN, 0, -1), *layers, self._block(PLAIN, 0, behind)]

    def blocks_with_free_gathers(self) -> list[Block]:
        """Return `blocks` without swap and recompute, with zero duration of the AllGathers of weights."""
        if not self.layers.gathers:
            return self.blocks(PLAIN)
        free = copy.copy(self)
        free._collectives, free._blocks, free._recent = dict(self.captured.collectives), {}, {}
        return free.blocks(PLAIN)

    def layer_block(self, policy: Policy, layer_index: int) -> Block:
        """Return the block of one layer under a policy, as in `blocks` if no layer swaps."""
        position = self.captured.sample.layer_map[layer_index]
        acting = with_recompute_only(policy)
        try:
            return self._block(acting, layer_index, position)
        except SimulationError as error:
            raise self.layers.not_simulated(error, acting, layer_index) from None

    def holder_names(self, policy: Policy, layer_index: int) -> dict[Label, tuple[tuple[str, ...], ...]]:
        """Return `CompiledLayers.keeper_names` of a layer, whether or not swap is enabled."""
        return self.layers.holder_names(with_recompute_only(policy), layer_index)

    def _block(self, policy: Policy, layer_index: int, segment: int) -> Block:
        """Return the block of a segment, if all compiled layers have the settings of one layer of the model."""
        # Swap of another layer changes recomputed layers only (`StepReader.of_weights`).
        is_swapping = self.is_swapping and self._has_single_micro_step
        is_swapping = is_swapping and any(layer_key(self.layers.with_fixed(policy), layer_index)[0])
        key = (*layer_key(policy, layer_index), is_swapping)
        if (key, segment) not in self._blocks:
            if key not in self._recent:
                while len(self._recent) >= NUM_RECENT:
                    del self._recent[next(iter(self._recent))]
                self._recent[key] = self._cut(policy, layer_index, is_swapping)
            self._blocks[key, segment] = self._recent[key](segment)
        return self._blocks[key, segment]

    def _cut(self, policy: Policy, layer_index: int, is_swapping: bool) -> Callable[[int], Block]:
        return BlockBuilder(
            graph=self.layers.with_ordered_halves(self.layers.rewritten(policy, layer_index)),
            operator_ns=self.costs.operator_ns,
            label=self.names,
            collectives=self._collectives,
            collective_ns=self.collective_ns,
            is_fused=self.settings.is_fused,
            per_step_operators=self.layers.per_step_operators,
            rule=self.weights.rule,
            alignment_bytes=self.costs.device.pool_alignment_bytes,
            is_swapping=is_swapping,
        ).block

    # -- figures ----------------------------------------------------------------------------------

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
            durations["gradients, exposed"] = self.exposed_reduction_ns(timeline)
        return tuple(StepTerm(name, duration_ns) for name, duration_ns in durations.items())

    def exposed_reduction_ns(self, timeline: Timeline) -> int:
        """Return the exposed time of gradient reduction after backward, on the slowest stage, in ns."""
        times = self.settings.num_gradient_reductions
        return max(
            repeated_reduction_ns(
                own, backward_by_segment_ns(timeline, stage, len(own)), last_forward_ns(timeline, stage), times
            )
            for stage, own in enumerate(self.weights.reduction_ns)
        )

    @property
    def weight_casts(self) -> frozenset[str]:
        """Labels of casts of all-gathered weights: backward saves the cast in place of the gathered weight."""
        graph = self.captured.graph
        gathered = {node.name for node in graph.forward if is_gathering(node)}
        casts = (node for node in graph.forward if node.op == "Cast" and not gathered.isdisjoint(node.inputs))
        return frozenset(str(self.names(node)) for node in casts)

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
