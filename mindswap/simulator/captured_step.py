"""A captured step without swap and recompute: the ground of every simulation of a model. Plain data."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from mindswap.config.step_settings import LAYERS_NOT_INLINED, StepSettings
from mindswap.config.weight_sharding import WHOLE, WeightSharding, is_expert_weight
from mindswap.graph.analysis.collectives import Collective
from mindswap.graph.analysis.liveness import LayerSample
from mindswap.graph.analysis.saved_tensors import OperatorNames
from mindswap.graph.model import Graph, TensorType
from mindswap.graph.ops import NO_WORK_OPS, WEIGHT_OPS
from mindswap.graph.passes.gather import WEIGHT_MARK, is_gathering, tensor_parallel_parts, weight_name
from mindswap.policy.cell_tree import CellNode
from mindswap.simulator.cost.static_memory import FLOAT32_BYTES, Parameter
from mindswap.units import ceil_div

# How long a gradient of a weight is on the device, and what of it stays until the optimizer.
#
# MindSpore 2.9.0, `ops/_grad_experimental/grad_comm_ops.py`:
#
# - with sums over micro-batches (`_VirtualAssignAdd`) the gradient is added to its sum at once; the sums are static;
# - with the parallel optimizer (`AllGather`) a ReduceScatter takes the whole gradient and gives the part of this rank.
#   Its type is that of the weight: where forward casts the part before the AllGather, backward casts the whole gradient
#   before the ReduceScatter (tests/adapters/test_gathered_weights.py). Each one on its own:
#   `get_enable_reduce_scatter_fusion()` is False unless `comm_fusion` is configured;
# - what other ranks have, too, and is not cut goes through an AllReduce (`_MirrorOperator`), which gives a new tensor;
# - else it stays as it is.
#
# The communication of a group of ranks has a stream of its own. Memory that it reads is free again when the compute
# stream has waited for that stream (runtime/device, the pool's events), and backward waits for data parallelism only if
# it gathers weights again (level3): so what was sent stays until the optimizer begins, beside what came of it. Seen in
# dry runs of the Ascend backend, 2.9.0: tests/adapters/test_dry_run_figures.py.

# A weight as its gradient shows it: before (-1), in (0) or behind (1) the layers, and its shape.
GradientKey = tuple[int, tuple[int, ...]]


@dataclass(frozen=True)
class GradientRule:
    """Memory of each gradient of a step; sizes are those of a whole gradient, in the type of its weight."""

    is_summed: bool = False  # added up over micro-batches
    sharding: WeightSharding = WHOLE  # what the parallel optimizer cuts
    whole: frozenset[GradientKey] = frozenset()  # what it leaves whole by name
    is_shared: bool = False  # data parallel ranks have the same weights
    own: frozenset[GradientKey] = frozenset()  # of those that nobody else has: experts

    def is_cut(self, known: TensorType, where: int) -> bool:
        """The weight of a gradient is cut: they have one shape and type. Names are not known here."""
        return (where, known.shape) not in self.whole and self.sharding.is_sharded("", known.shape, known.size_bytes)

    def is_sent(self, known: TensorType, where: int) -> bool:
        """A gradient goes to other ranks."""
        return self.is_shared and (where, known.shape) not in self.own

    def parts_bytes(self, size_bytes: int, is_cut: bool, is_sent: bool) -> tuple[int, int, int]:
        """A whole gradient until the next operator only, until the optimizer begins, and what the optimizer reads.

        The first where something else takes its place at once, the second where communication has read it.
        """
        if self.is_summed:
            return size_bytes, 0, 0
        is_passing = is_sent and self.sharding.is_released
        return size_bytes * is_passing, size_bytes * (is_sent and not is_passing), self.own_bytes(size_bytes, is_cut)

    def final_bytes(self, size_bytes: int, num_elements: int, num_shards: int) -> int:
        """Bytes that the optimizer reads in place of it, where the weight is cut over so many ranks.

        MindFormers' `wrapper.py` scales gradients before the optimizer: to new tensors of float32
        (`_grad_scale`), or of the type of the sums (`shard_grad_scale`).
        """
        return ceil_div(size_bytes if self.is_summed else num_elements * FLOAT32_BYTES, num_shards)

    def own_bytes(self, size_bytes: int, is_cut: bool) -> int:
        """The part of this rank."""
        return ceil_div(size_bytes, self.sharding.num_ranks) if is_cut else size_bytes


@dataclass(frozen=True, eq=False)
class CapturedStep:
    """One micro-batch of a model as one rank of a stage computes it, compiled without swap and recompute."""

    sample: LayerSample  # layers that were compiled, and which of them stands for each layer of the model
    trees: tuple[CellNode, ...]  # tree of each compiled layer
    graph: Graph  # the step; sizes are those of one rank
    # tensor parallel communication, by name of the node that it belongs to
    collectives: Mapping[str, tuple[Collective, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # where the step differs from the one that trains, in words
    # every primitive carries its path, so `graph` has some operators several times that the compiler runs once
    has_all_tags: bool = False

    @property
    def num_layers(self) -> int:
        """Layers of the model."""
        return len(self.sample.layer_map)

    def names(self) -> OperatorNames:
        """Return the names of the operators, by the trees of the layers."""
        return OperatorNames(self.trees, self.graph, self.has_all_tags)


def gradient_key(weight: Parameter) -> GradientKey:
    """Key of a weight in a `GradientRule`."""
    return (0 if weight.layer_index is not None else 1 if weight.is_behind else -1), weight.shape


def find_parameters(graph: Graph, sharding: WeightSharding = WHOLE) -> tuple[Parameter, ...]:
    """The weights that forward reads, in order of their first read, each once; those of `graph` are whole."""
    found: dict[str, Parameter] = {}
    has_layers_begun = False
    for node in graph.forward:
        has_layers_begun |= node.layer_index is not None
        name = weight_name(node)
        if name and node.outputs and name not in found:
            known = node.outputs[0]
            parts = tensor_parallel_parts(node)
            is_cut = sharding.is_sharded(name, known.shape, known.size_bytes, parts)
            num_shards = sharding.num_ranks_of(name, parts)
            copies = sharding.num_expert_copies if is_expert_weight(name) else None
            if sharding.is_on_all(name, parts):
                copies = num_shards
            is_behind = has_layers_begun and node.layer_index is None
            own = known.size_bytes, math.prod(known.shape), is_cut, copies
            found[name] = Parameter(name, *own, node.layer_index, is_behind, known.shape, num_shards)
    return tuple(found.values())


def find_tied_parameters(graph: Graph, sharding: WeightSharding = WHOLE) -> tuple[Parameter, ...]:
    """The weights that are read before the layers and behind them: an embedding table that the head uses.

    Behind them is what comes when the last one has begun: its small sums for the loss may be at the very end.
    """
    begins: dict[int, int] = {}
    for position, node in enumerate(graph.forward):
        if node.layer_index is not None and node.op not in NO_WORK_OPS:
            begins.setdefault(node.layer_index, position)
    last = begins[max(begins)] if begins else -1
    read: tuple[set[str], set[str]] = (set(), set())  # before the layers, behind them
    sources: dict[str, str] = {}  # value -> weight that it is a read of
    for position, node in enumerate(graph.forward):
        if node.op in WEIGHT_OPS or is_gathering(node):
            source = node.inputs[0]
            sources[node.name] = sources.get(source, source)
        elif node.layer_index is None and node.op not in NO_WORK_OPS:
            read[position > last].update(sources[name] for name in node.inputs if name in sources)
    names = {name.rpartition(WEIGHT_MARK)[2] for name in read[0] & read[1]}
    return tuple(weight for weight in find_parameters(graph, sharding) if weight.name in names)


def list_doubts(captured: Graph, settings: StepSettings) -> tuple[str, ...]:
    """Known gaps of a simulated step, in words."""
    if settings.pipeline.num_stages == 1:
        return ()
    inlining = () if settings.inlines_layers else (f"{LAYERS_NOT_INLINED}; swaps are simulated as if it did",)
    return inlining + tuple(
        f"{parameter.name} is read by the first and the last pipeline stage: MindSpore sends it for every "
        "micro-batch, and its gradient back; the memory of that is counted, its time is not"
        for parameter in find_tied_parameters(captured)
    )
