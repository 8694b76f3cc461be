"""A captured step without swap and recompute, its weights, and the memory rule of weight gradients. Plain data."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from mindswap.config.step_settings import LAYERS_NOT_INLINED, StepSettings
from mindswap.config.weight_sharding import UNSHARDED, WeightSharding, is_expert_weight
from mindswap.graph.analysis.collectives import Collective
from mindswap.graph.analysis.liveness import LayerSample
from mindswap.graph.analysis.prediction_layers import has_prediction_layers
from mindswap.graph.analysis.saved_tensors import OperatorNames
from mindswap.graph.model import Graph, TensorType
from mindswap.graph.ops import NO_WORK_OPS, WEIGHT_OPS
from mindswap.graph.passes.gather import WEIGHT_MARK, is_gathering, tensor_parallel_parts, weight_name
from mindswap.policy.cell_tree import CellNode
from mindswap.simulator.cost.static_memory import FLOAT32_BYTES, Parameter
from mindswap.units import ceil_div

# Lifetime of weight gradients in MindSpore 2.9.0, `ops/_grad_experimental/grad_comm_ops.py`:
#
# - accumulation over micro-batches (`_VirtualAssignAdd`): the gradient is added to its accumulator at once; the
#   accumulators are static memory;
# - parallel optimizer (`AllGather`): a ReduceScatter reduces the full gradient to the shard of this rank. Its dtype is
#   that of the weight: if forward casts the shard before the AllGather, backward casts the full gradient before the
#   ReduceScatter (tests/adapters/test_gathered_weights.py). Collectives are not fused:
#   `get_enable_reduce_scatter_fusion()` is False unless `comm_fusion` is configured;
# - data parallel, unsharded weights: an AllReduce (`_MirrorOperator`) with a new tensor as output;
# - otherwise the gradient is unchanged.
#
# Each communication group has its own stream. Memory that it reads is freed when the compute stream has waited for that
# stream (runtime/device, events of the pool), and backward waits for data parallel groups only if it gathers weights a
# second time (level3). So a reduced gradient's input stays until the optimizer starts, together with the output
# (docs/internals/notes.md#memory-of-sent-tensors).

# Identifies the weight of a gradient, which has no name: before (-1), in (0) or after (1) the layers, and the shape.
GradientKey = tuple[int, tuple[int, ...]]


class GradientBytes(NamedTuple):
    """Memory of a gradient by lifetime, in bytes."""

    until_next_op: int  # accumulated, or released after the reduction
    until_optimizer: int  # input of the reduction, live until the optimizer starts
    optimizer_input: int  # read by the optimizer


@dataclass(frozen=True)
class GradientRule:
    """Memory rule of the weight gradients of a step; sizes are those of full gradients in the dtype of the weight."""

    is_summed: bool = False  # accumulated over micro-batches
    sharding: WeightSharding = UNSHARDED  # weights that the parallel optimizer shards
    unsharded_weights: frozenset[GradientKey] = frozenset()  # weights that it leaves unsharded by name
    is_shared: bool = False  # weights are replicated over data parallel ranks
    unreplicated_weights: frozenset[GradientKey] = frozenset()  # weights that no other rank has: experts

    def is_sharded_weight(self, gradient_type: TensorType, segment: int) -> bool:
        """Return whether the weight of a gradient is sharded.

        Args:
            gradient_type: type of the gradient, which is that of the weight.
            segment: segment as in `GradientKey`.
        """
        return (segment, gradient_type.shape) not in self.unsharded_weights and self.sharding.is_sharded(
            "", gradient_type.shape, gradient_type.size_bytes
        )

    def is_reduced(self, gradient_type: TensorType, segment: int) -> bool:
        """Return whether a gradient is reduced over ranks; arguments as in `is_sharded_weight`."""
        return self.is_shared and (segment, gradient_type.shape) not in self.unreplicated_weights

    def parts_bytes(self, size_bytes: int, is_sharded_weight: bool, is_reduced: bool) -> GradientBytes:
        """Split the memory of a gradient by lifetime.

        Args:
            size_bytes: size of the full gradient.
            is_sharded_weight: whether its weight is sharded.
            is_reduced: whether it is reduced over ranks.
        """
        if self.is_summed:
            return GradientBytes(size_bytes, 0, 0)
        is_passing = is_reduced and self.sharding.is_released
        until_optimizer = size_bytes * (is_reduced and not is_passing)
        return GradientBytes(size_bytes * is_passing, until_optimizer, self.shard_bytes(size_bytes, is_sharded_weight))

    def final_bytes(self, size_bytes: int, num_elements: int, num_shards: int) -> int:
        """Return the bytes of the scaled gradient that the optimizer reads.

        MindFormers' `wrapper.py` scales gradients before the optimizer, into new tensors of float32 (`_grad_scale`) or
        of the dtype of the accumulators (`shard_grad_scale`).

        Args:
            size_bytes: size of the full gradient.
            num_elements: its number of elements.
            num_shards: ranks over which the weight is sharded.
        """
        return ceil_div(size_bytes if self.is_summed else num_elements * FLOAT32_BYTES, num_shards)

    def shard_bytes(self, size_bytes: int, is_sharded_weight: bool) -> int:
        """Return the bytes of the shard of this rank."""
        return ceil_div(size_bytes, self.sharding.num_ranks) if is_sharded_weight else size_bytes


@dataclass(frozen=True, eq=False)
class CapturedStep:
    """One micro-batch on one rank of a stage, compiled without swap and recompute."""

    sample: LayerSample  # compiled layers, and the representative layer of each layer of the model
    trees: tuple[CellNode, ...]  # cell tree of each compiled layer
    graph: Graph  # forward and backward; sizes are those of one rank
    # tensor parallel communication: name of a node -> collectives that belong to it
    collectives: Mapping[str, tuple[Collective, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # caveats: differences from the training step, as text
    # every primitive has its path as a tag, so `graph` repeats operators that the compiler otherwise merges
    has_all_tags: bool = False

    @property
    def num_layers(self) -> int:
        """Number of layers of the model."""
        return len(self.sample.layer_map)

    def names(self) -> OperatorNames:
        """Return the operator names by the cell trees of the layers."""
        return OperatorNames(self.trees, self.graph, self.has_all_tags)


def gradient_key(weight: Parameter) -> GradientKey:
    """Return the key of a weight in a `GradientRule`."""
    return (0 if weight.layer_index is not None else 1 if weight.is_after_layers else -1), weight.shape


def find_parameters(graph: Graph, sharding: WeightSharding = UNSHARDED) -> tuple[Parameter, ...]:
    """Return the weights that forward reads, in order of first read.

    Args:
        graph: step with unsharded weights.
        sharding: rules of the parallel optimizer.
    """
    parameters: dict[str, Parameter] = {}
    sharding = sharding.of_network(graph.unsharded)
    frozen = frozenset(graph.frozen)
    has_layers_begun = False
    for node in graph.forward:
        has_layers_begun |= node.layer_index is not None
        name = weight_name(node)
        if name and node.outputs and name not in parameters:
            weight_type = node.outputs[0]
            parts = tensor_parallel_parts(node)
            is_sharded_weight = sharding.is_sharded(name, weight_type.shape, weight_type.size_bytes, parts)
            num_shards = sharding.num_ranks_of(name, parts)
            copies = sharding.num_expert_copies if is_expert_weight(name) else None
            if sharding.is_sharded_over_all(name, parts) or sharding.is_split_over_data(name, parts):
                copies = num_shards
            parameters[name] = Parameter(
                name=name,
                size_bytes=weight_type.size_bytes,
                num_elements=math.prod(weight_type.shape),
                is_sharded=is_sharded_weight,
                num_copies=copies,
                layer_index=node.layer_index,
                is_after_layers=has_layers_begun and node.layer_index is None,
                shape=weight_type.shape,
                num_shards=num_shards,
                is_trained=name not in frozen,
            )
    return tuple(parameters.values())


def find_tied_parameters(graph: Graph, sharding: WeightSharding = UNSHARDED) -> tuple[Parameter, ...]:
    """Return the weights that are read both before and after the layers, such as an embedding tied to the head.

    An operator outside the layers counts as after them from the start of the last layer on, because that layer's
    contributions to the loss may be at the very end of the graph.

    Args:
        graph: step with unsharded weights.
        sharding: rules of the parallel optimizer.
    """
    begins: dict[int, int] = {}
    for position, node in enumerate(graph.forward):
        if node.layer_index is not None and node.op not in NO_WORK_OPS:
            begins.setdefault(node.layer_index, position)
    last = begins[max(begins)] if begins else -1
    read: tuple[set[str], set[str]] = (set(), set())  # before the layers, after them
    sources: dict[str, str] = {}  # value -> weight of which it is the load
    for position, node in enumerate(graph.forward):
        if node.op in WEIGHT_OPS or is_gathering(node):
            source = node.inputs[0]
            sources[node.name] = sources.get(source, source)
        elif node.layer_index is None and node.op not in NO_WORK_OPS:
            read[position > last].update(sources[name] for name in node.inputs if name in sources)
    names = {name.rpartition(WEIGHT_MARK)[2] for name in read[0] & read[1]}
    return tuple(weight for weight in find_parameters(graph, sharding) if weight.name in names)


def list_caveats(captured: Graph, settings: StepSettings) -> tuple[str, ...]:
    """Return the caveats of a simulated step: effects that are not modelled, as text."""
    if settings.pipeline.num_stages == 1:
        return ()
    inlining = () if settings.inlines_layers else (f"{LAYERS_NOT_INLINED}; swaps are simulated as if it did",)
    return inlining + tuple(
        f"{parameter.name} is read by the first and the last pipeline stage: MindSpore sends it for every "
        "micro-batch, and its gradient back; the memory of that is counted, its time is not"
        for parameter in (() if has_prediction_layers(captured) else find_tied_parameters(captured))
    )
