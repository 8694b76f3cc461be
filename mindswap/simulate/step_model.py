"""A model ready to be simulated under any policy: captured once, asked thousands of times. Pure.

Everything here is simulated.
"""

import copy
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from mindswap.config.step import StepSettings
from mindswap.config.weight_sharding import WeightSharding, is_expert_weight
from mindswap.cost.outside_memory import communication_bytes, list_communicators, workspace_bytes
from mindswap.cost.static_memory import (
    Parameter,
    StaticMemory,
    estimate_static_memory,
    find_optimizer,
)
from mindswap.cost.step_terms import (
    Updates,
    accumulate_ns,
    clip_ns,
    exchange_gradient_ns,
    move_states_ns,
    optimize_ns,
    overflow_ns,
    scale_ns,
)
from mindswap.cost.table import CostTable
from mindswap.errors import SimulationError
from mindswap.graph.constants import constant_bytes
from mindswap.graph.model import Graph, Node
from mindswap.graph.ops import Unit, classify
from mindswap.graph.predict.merge import merge_equal
from mindswap.graph.predict.rewrite import rewrite_graph, settings_of_policy
from mindswap.graph.predict.settle import settle_layers
from mindswap.graph.ranks.collectives import Collective
from mindswap.graph.ranks.gather import gather_weights, is_gathering, weight_name
from mindswap.graph.ranks.handed import find_handed_on
from mindswap.graph.ranks.overlap import order_halves
from mindswap.graph.ranks.share_casts import share_casts
from mindswap.graph.storage import classify_saved
from mindswap.graph.work import measure_work
from mindswap.policy.model import Policy
from mindswap.policy.resolve import LayerDecisions, resolve_layer
from mindswap.simulate.block import Block
from mindswap.simulate.blocks import StepBlocks, cut_blocks
from mindswap.simulate.build import build_program
from mindswap.simulate.captured import CapturedStep, find_parameters, find_tied_parameters
from mindswap.simulate.engine import simulate
from mindswap.simulate.exchange import exposed_exchange_ns
from mindswap.simulate.gradients import GradientRule
from mindswap.simulate.layout import lay_out_stages
from mindswap.simulate.memory import peak_memory
from mindswap.simulate.placing import TransferCosts
from mindswap.simulate.program import OpKind, Program
from mindswap.simulate.timeline import StepTerm, Timeline

__all__ = ["HELD", "SimulatedStep", "StepModel"]

# In place of the operator paths that stand for a name: no swap takes it away.
HELD = ("",)


@dataclass(frozen=True, eq=False)
class SimulatedStep:
    """A step under one policy.

    Attributes:
        timeline: operators and copies of all stages.
        terms: what comes behind them.
        activation_bytes: peak of each stage.
        static: what is there all the time, of each stage.
    """

    timeline: Timeline
    terms: tuple[StepTerm, ...]
    activation_bytes: tuple[int, ...]
    static: tuple[StaticMemory, ...]

    @property
    def step_time_ns(self) -> int:
        """One step, end to end."""
        return self.timeline.step_time_ns + sum(term.duration_ns for term in self.terms)

    @property
    def peak_bytes(self) -> int:
        """Highest device memory of any stage."""
        return max(a + s.total_bytes for a, s in zip(self.activation_bytes, self.static, strict=True))


class StepModel:
    """Gives the program of a step under a policy, and simulates it.

    Layers on which a policy sets the same are the same block, made once.

    Args:
        captured: the step without swap and recompute. `captured` of the model is what runs without any policy: equal
            operators merged, what all layers share outside the layers.
        costs: what operators and copies cost.
        settings: micro-batches, parallel settings, optimizer.

    Attributes:
        doubts: what MindSpore does and is not in the step, in words.

    Raises:
        SimulationError: if the pipeline settings do not fit the model.
        CostError: if the optimizer is not known.
    """

    def __init__(self, captured: CapturedStep, costs: CostTable, settings: StepSettings):
        self._source = captured
        gathered = gather_weights(settle_layers(captured.graph), settings.sharding)
        if settings.shares_casts:
            gathered = share_casts(gathered, settings.is_inlined)
        self._graph, self._gathers, self._once = gathered.graph, gathered.collectives, gathered.once
        self._names = captured.names()
        self._tag = captured.tag if captured.has_all_tags else None
        plain = merge_equal(self._graph, self._tag) if self._tag is not None else self._graph
        self.doubts = (*_describe_tied(captured, settings), *_describe_gathers(self._graph, settings))
        self.captured = replace(captured, graph=plain, notes=(*captured.notes, *self.doubts))
        self.costs = costs
        self.settings = settings
        self.layout = lay_out_stages(settings.pipeline, captured.num_layers, settings.num_micro_batches)
        self.names = self.captured.names()
        stage_cards = settings.num_cards // settings.pipeline.num_stages
        is_within_node = 2 * stage_cards <= costs.device.num_cards_per_node
        self.transfers = TransferCosts(
            costs.copy_out_ns,
            costs.copy_in_ns,
            lambda size_bytes: costs.send_ns(size_bytes, is_within_node),
            costs.device.contended_permille,
        )
        placed = _stage_parameters(captured, self.layout.chunks, settings.sharding)
        self.parameters = [[parameter for _, parameter in stage] for stage in placed]
        self.static = self._static_memory()
        experts = frozenset(
            node.outputs[0].shape
            for node in captured.graph.forward
            if is_expert_weight(weight_name(node))
            and settings.sharding.num_expert_copies != settings.sharding.num_ranks
        )
        self.gradients = GradientRule(settings.num_micro_batches > 1, replace(settings.sharding, whole_shapes=experts))
        closing_bytes = tuple(self._closing_bytes(parameters) for parameters in self.parameters)
        self.layout = replace(self.layout, closing_bytes=closing_bytes)
        self._exchanges = [self._exchange(stage) for stage in placed]
        # Under every policy: gradients that are there only when backward of a stage ends.
        self.least_exchange_ns = max(
            sum(own[: max(min(chain(*chunks), default=1), 1) + 1])
            for own, chunks in zip(self._exchanges, self.layout.chunks, strict=True)
        )
        self._update_terms = self._work_on_updates()
        self._blocks: dict[Hashable, StepBlocks] = {}
        self._last: tuple[Hashable, Graph] | None = None  # the graph that was rewritten last

    def simulate(self, policy: Policy) -> SimulatedStep:
        """One step under a policy."""
        timeline = simulate(self.program(policy), check=False)
        peaks = tuple(int(peak) for peak in peak_memory(timeline))
        return SimulatedStep(timeline, self.terms(timeline), peaks, self.static)

    def program(self, policy: Policy) -> Program:
        """Operators, copies and memory of one step under a policy.

        Args:
            policy: in layer indices of the model; what it sets counts also where `is_swap_enabled` is off.

        Raises:
            SimulationError: if it computes several layers again at once, which no block can express.
        """
        return build_program(self.blocks(policy), self.transfers, self.layout)

    def blocks(self, policy: Policy) -> list[Block]:
        """What is before the layers, every layer under the policy, what is behind them."""
        if policy.output_recompute:
            raise SimulationError(
                "mindswap.output_recompute is not simulated: backward has several layers at once then"
            )
        acting = replace(policy, is_swap_enabled=True)
        plain = self._blocks_of(None, tuple(LayerDecisions(0, tree) for tree in self.captured.trees))
        layers = [
            self._step_blocks(acting, index).layers[position]
            for index, position in enumerate(self.captured.sample.layer_map)
        ]
        return [plain.prologue, *layers, plain.epilogue]

    def plain_blocks(self, with_gathers: bool = True) -> list[Block]:
        """`blocks` without swap and recompute.

        Args:
            with_gathers: gathering weights that are cut takes time.
        """
        if with_gathers or not self._gathers:
            return self.blocks(Policy())
        free = copy.copy(self)
        free._gathers, free._blocks = {}, {}
        return free.blocks(Policy())

    def layer_block(self, policy: Policy, layer_index: int) -> Block:
        """One layer under a policy, as `blocks` has it."""
        position = self.captured.sample.layer_map[layer_index]
        return self._step_blocks(replace(policy, is_swap_enabled=True), layer_index).layers[position]

    @property
    def splits_names(self) -> bool:
        """Whether operators that share a label `a|b` are merged only under equal settings; else any name acts on it."""
        return self._tag is not None

    def keepers(self, policy: Policy, layer_index: int) -> dict[str, tuple[tuple[str, ...], ...]]:
        """Names under which backward holds what a layer makes, under the recompute of a policy.

        Returns:
            Label of a tensor -> for each of its names the operator paths that stand for it; `HELD` is a name that no
            swap takes away.
        """
        policy = replace(policy, is_swap_enabled=True, op_swap=(), layer_swap=())
        decisions = tuple(resolve_layer(policy, layer_index, tree) for tree in self.captured.trees)
        graph = self._rewritten(_signature(policy, layer_index), decisions)
        position = self.captured.sample.layer_map[layer_index]
        readers = _readers_in_backward(graph)
        found: dict[str, dict[tuple[str, ...], None]] = {}
        for entry in classify_saved(graph):
            if entry.storage.producer is not None and entry.storage.layer_index == position:
                names = found.setdefault(self.names(entry.storage.producer), {})
                for node in entry.keepers:
                    owner = graph.owner(node)
                    by = readers.get(node.name, {owner.name}) if node.name != owner.name else {owner.name}
                    names.update({self._paths(owner): None} if owner.name in by else {})
                    names.update({HELD: None} if by - {owner.name} else {})
        return {label: tuple(names) for label, names in found.items()}

    def _paths(self, node: Node) -> tuple[str, ...]:
        """Operator paths that an operator of a rewritten graph has there: it may be merged with others or not."""
        own = node.attributes.get(self._tag) if self._tag is not None else None
        return tuple(str(own or self.names(node)).split("|"))

    def with_settings(self, settings: StepSettings) -> "StepModel":
        """The same captured step under other settings."""
        return StepModel(self._source, self.costs, settings)

    def with_micro_batches(self, num_micro_batches: int) -> "StepModel":
        """The same model in a step of fewer or more micro-batches; what it knows of its layers is shared."""
        other = copy.copy(self)
        other.layout = replace(self.layout, num_micro_batches=num_micro_batches)
        other.settings = replace(self.settings, num_micro_batches=num_micro_batches)
        other._update_terms = other._work_on_updates()
        return other

    def model_flops(self) -> int:
        """Floating point operations of the matrix units in one step without recompute, all cards."""
        graph, counts = self.captured.graph, self.captured.sample.layer_map
        total = 0
        for nodes, works in zip((graph.forward, graph.backward), measure_work(graph), strict=True):
            for node, work in zip(nodes, works, strict=True):
                if classify(node.op).unit is Unit.MATRIX:
                    total += work.flops * (1 if node.layer_index is None else counts.count(node.layer_index))
        per_stage_rank = self.settings.num_cards // self.settings.pipeline.num_stages
        return total * self.settings.num_micro_batches * per_stage_rank

    def collective_ns(self, collective: Collective) -> int:
        """Duration of communication within a layer, in ns."""
        return self.costs.collective_ns(collective.kind, collective.size_bytes, collective.num_ranks, collective.stride)

    def _step_blocks(self, policy: Policy, layer_index: int) -> StepBlocks:
        """The compiled layers, all under what the policy sets on one layer."""
        key = _signature(policy, layer_index)
        if key not in self._blocks:
            decisions = tuple(resolve_layer(policy, layer_index, tree) for tree in self.captured.trees)
            try:
                return self._blocks_of(key, decisions)
            except SimulationError as error:
                raise SimulationError(f"layer {layer_index}: {error}{self._outputs_made_again(decisions)}") from None
        return self._blocks[key]

    def _outputs_made_again(self, decisions: tuple[LayerDecisions, ...]) -> str:
        """What to mend where a policy makes again what a layer hands on."""
        recomputed = settings_of_policy(self._graph, self._names, decisions).recomputed
        handed_on = (self._graph.forward_nodes[name] for name in sorted(find_handed_on(self._graph) & set(recomputed)))
        names = dict.fromkeys(self._names(node) for node in handed_on)
        return f"\n    fix: recompute without {', '.join(names)}: what is behind the layer reads it" if names else ""

    def _blocks_of(self, key: Hashable, decisions: tuple[LayerDecisions, ...]) -> StepBlocks:
        if key not in self._blocks:
            self._blocks[key] = cut_blocks(
                self._in_turns(self._rewritten(key, decisions)),
                self.costs.operator_ns,
                self.names,
                {**self.captured.collectives, **self._gathers},
                self.collective_ns,
                self.settings.is_fused,
                self._once,
                self.gradients,
                self.costs.device.pool_alignment_bytes,
            )
        return self._blocks[key]

    def _rewritten(self, key: Hashable, decisions: tuple[LayerDecisions, ...]) -> Graph:
        """The graph under what is decided for its layers; `key` stands for that."""
        if self._last is None or self._last[0] != key:
            settings = settings_of_policy(self._graph, self._names, decisions)
            self._last = key, rewrite_graph(self._graph, settings, self._tag)
        return self._last[1]

    def _in_turns(self, graph: Graph) -> Graph:
        """With the halves of `fine_grain_interleave` in the order that MindSpore gives them."""
        found = self.captured.collectives.items()
        first = {name for name, entries in found if any(entry.is_before for entry in entries)}
        after = {name for name, entries in found if not all(entry.is_before for entry in entries)}
        return order_halves(graph, first, after)

    def _static_memory(self) -> tuple[StaticMemory, ...]:
        """What each stage has all the time."""
        settings = self.settings
        constants = constant_bytes(self.captured.graph)
        workspace = workspace_bytes((*self.captured.graph.forward, *self.captured.graph.backward), self.costs.device)
        stages = [
            estimate_static_memory(
                parameters,
                find_optimizer(settings.optimizer),
                settings.num_optimizer_shards,
                settings.num_micro_batches > 1,
                settings.is_accumulator_sharded,
                settings.is_state_offloaded,
                workspace,
            )
            for parameters in self.parameters
        ]
        if not self.layout.are_ends_together:
            # A weight of the first stage that the last one reads is there a second time, as what it receives and as
            # the parameter that Receive names, with a gradient that it sends back (pipeline_transformer.cc,
            # InsertReceive). The optimizer has it on the first stage only.
            tied = sum(parameter.size_bytes for parameter in find_tied_parameters(self.captured.graph))
            last = stages[-1]
            stages[-1] = replace(
                last, parameter_bytes=last.parameter_bytes + 2 * tied, gradient_bytes=last.gradient_bytes + tied
            )
        return tuple(replace(stage, constant_bytes=constants) for stage in stages)

    def _closing_bytes(self, parameters: list[Parameter]) -> int:
        """Gradients that the optimizer reads on a stage, without those that are there when backward ends."""
        rule = self.gradients
        return sum(
            max(0, rule.final_bytes(p.size_bytes, p.num_elements, p.is_cut) - rule.kept_bytes(p.size_bytes, p.is_cut))
            for p in parameters
        )

    @property
    def communicators(self) -> tuple[str, ...]:
        """What the communicators of a rank are for; HCCL keeps buffers for each, outside the pool."""
        settings = self.settings
        return list_communicators(
            settings.data_parallel,
            settings.model_parallel,
            settings.context_parallel,
            settings.pipeline.num_stages,
            settings.num_optimizer_shards > 1,
        )

    @property
    def outside_bytes(self) -> int:
        """Device memory that HCCL takes beside what MindSpore may use."""
        return communication_bytes(self.communicators, self.costs.device)

    def terms(self, timeline: Timeline) -> tuple[StepTerm, ...]:
        """The work on weights and gradients, each part as long as it takes on the stage that takes longest.

        Gradients are handed on while backward of the last micro-batch goes on; what is left behind it is exposed.
        Gathering of weights is in the timeline.

        Args:
            timeline: a step of any number of micro-batches; what repeats with them is as often as this model has them.
        """
        durations = dict(self._update_terms)
        if any(any(stage) for stage in self._exchanges):
            durations["gradients, exposed"] = self.exposed_exchange_ns(timeline)
        return tuple(StepTerm(name, duration_ns) for name, duration_ns in durations.items())

    def exposed_exchange_ns(self, timeline: Timeline) -> int:
        """Time of handing on gradients that is left behind backward, on the stage where it is longest."""
        return max(
            exposed_exchange_ns(self._exchanges[stage], self._backward_ns(timeline, stage))
            for stage in range(self.layout.num_stages)
        )

    def _work_on_updates(self) -> dict[str, int]:
        """Terms that no policy changes."""
        settings, device = self.settings, self.costs.device
        optimizer = find_optimizer(settings.optimizer)
        updates = Updates(
            settings.num_optimizer_shards,
            settings.num_micro_batches,
            settings.is_accumulating,
            settings.is_accumulator_sharded,
            settings.is_fused,
        )
        terms: dict[str, Callable[[list[Parameter]], int]] = {
            "gradient accumulation": lambda own: accumulate_ns(own, updates, device),
            "gradient scaling": lambda own: scale_ns(own, updates, device),
            "overflow check": lambda own: overflow_ns(own, updates, device),
        }
        if settings.is_clipping:
            terms["gradient clipping"] = lambda own: clip_ns(own, updates, device)
        terms["optimizer"] = lambda own: optimize_ns(own, settings.optimizer, optimizer, updates, device)
        if settings.is_state_offloaded:
            terms["optimizer states, copied"] = lambda own: move_states_ns(own, optimizer, updates, device)
        return {name: max(map(duration, self.parameters)) for name, duration in terms.items()}

    def _exchange(self, placed: list[tuple[int, Parameter]]) -> list[int]:
        """Time of handing on the gradients of each section of a stage, one collective for each weight."""
        settings = self.settings
        durations = [0] * (self.captured.num_layers + 2)
        for section, parameter in placed:
            durations[section] += exchange_gradient_ns(
                parameter,
                settings.data_parallel,
                self.costs.device,
                settings.num_optimizer_shards > 1,
                settings.data_parallel_stride,
            )
        return durations

    def _backward_ns(self, timeline: Timeline, stage: int) -> list[int]:
        """Compute time of backward of the last micro-batch on a stage, by section."""
        program = timeline.program
        which = slice(int(program.stage_starts[stage]), int(program.stage_starts[stage + 1]))
        ops = program.ops
        micro_batch = int(np.max(ops.micro_batch[which]))
        chosen = (
            (ops.kind[which] == OpKind.BACKWARD) & (ops.micro_batch[which] == micro_batch) & (ops.layer[which] >= 0)
        )
        durations = np.bincount(
            ops.layer[which][chosen] + 1, ops.duration_ns[which][chosen], self.captured.num_layers + 2
        )
        return [int(duration) for duration in durations]


def _readers_in_backward(graph: Graph) -> dict[str, set[str]]:
    """For each value of forward that backward holds, the operators whose gradients read it; "" for one that runs again.

    Offload of an operator with a tuple of outputs moves what its own gradient reads, and no more (`graph.rewrite`).
    """
    forward_names = {saved.backward_name: saved.forward_name for saved in graph.saved}
    gradients = {name: node.origin for node in graph.backward if node.origin for name in node.inputs}
    found: dict[str, set[str]] = {}
    for node in graph.backward:
        for name in node.inputs:
            if name in forward_names:
                reader = "" if node.is_duplicate else node.origin or gradients.get(name, "")
                found.setdefault(forward_names[name], set()).add(reader)
    return found


def _describe_tied(captured: CapturedStep, settings: StepSettings) -> tuple[str, ...]:
    """What is left out where a weight is on the first and on the last pipeline stage."""
    if settings.pipeline.num_stages == 1:
        return ()
    return tuple(
        f"{parameter.name} is read by the first and the last pipeline stage: MindSpore sends it for every micro-batch, "
        "and its gradient back; the memory of that is counted, its time is not"
        for parameter in find_tied_parameters(captured.graph)
    )


def _describe_gathers(graph: Graph, settings: StepSettings) -> tuple[str, ...]:
    """Where MindSpore gathers weights in another type than is simulated: seen in its frontend with lazy_inline on."""
    if settings.num_micro_batches > 1 or settings.pipeline.num_stages > 1:
        return ()
    if not any(node.op == "Cast" for node in graph.forward if is_gathering(node)):
        return ()
    return (
        "with one micro-batch and no pipeline MindSpore 2.9 gathers these weights in float32 and casts them behind: "
        "while forward runs up to as much again as the gathered weights may be needed, which is not in the peak; "
        "param_init_type equal to compute_dtype, or gradient accumulation, avoids it",
    )


def _stage_parameters(
    captured: CapturedStep, chunks: tuple[tuple[tuple[int, ...], ...], ...], sharding: WeightSharding
) -> list[list[tuple[int, Parameter]]]:
    """The weights of each stage with their sections.

    Layers that are not compiled have those of the layer that stands for them.
    """
    layer_map = captured.sample.layer_map
    last_section = len(layer_map) + 1
    placed = find_parameters(captured.graph, sharding)
    stages = []
    for stage in chunks:
        parameters = []
        for section in (section for chunk in stage for section in chunk):
            for weight in placed:
                if section in (0, last_section):
                    is_here = weight.layer_index is None and weight.is_behind == (section == last_section)
                else:
                    is_here = weight.layer_index == layer_map[section - 1]
                if is_here:
                    parameters.append((section, weight.parameter))
        stages.append(parameters)
    return stages


def _signature(policy: Policy, layer_index: int) -> Hashable:
    """All that decides what a policy sets on a layer."""
    recompute = (
        layer_index in policy.layer_recompute,
        layer_index in policy.output_recompute,
        tuple(entry.pattern for entry in policy.select_recompute if layer_index in entry.layers),
        tuple(entry.pattern for entry in policy.select_recompute_exclude if layer_index in entry.layers),
        tuple(entry.pattern for entry in policy.select_comm_recompute if layer_index in entry.layers),
        tuple(entry.pattern for entry in policy.select_comm_recompute_exclude if layer_index in entry.layers),
    )
    layer_swap = next((entry.prefetch for entry in policy.layer_swap if layer_index in entry.layers), None)
    swaps = tuple((e.pattern, e.prefetch) for e in policy.op_swap if layer_index in e.layers)
    return recompute, layer_swap, swaps
