"""Tensor sizes on one rank, derived from the parallel strategies that the model sets on its operators.

The compiled graph has unsharded shapes; `in_strategy`, `out_strategy` or `in_layout` of a primitive define into how
many parts each dimension of its operands is split. Splits are propagated forward through operators without a strategy,
as in MindSpore's step_parallel.cc, and backward along gradients. Tensors whose split cannot be derived count as
unsharded and are reported.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from mindswap.graph.model import Graph, Node, Saved, TensorType
from mindswap.graph.ops import OPERAND_SAVING_OPS, PRODUCT_OPS, WEIGHT_OPS, OpClass, classify
from mindswap.graph.sharding.experts import rank_name
from mindswap.graph.sharding.split_backward import BackwardSplits
from mindswap.graph.sharding.split_table import (
    ARRIVAL_SUFFIX,
    ForwardSplits,
    PartialSum,
    Redistribution,
    SplitTable,
    Unresolved,
    is_local_reshape,
    shard_type,
)
from mindswap.graph.sharding.splits import LOCAL_MARK, PARTS_MARK, num_shards, read_out_strategy, read_strategy

# Tensors that arrive by communication and are saved as received.
#
# Where two operators split a tensor differently, MindSpore inserts an AllGather, and the gradient of a matrix product
# reads its output (step_parallel.cc, Redistribution). `split_table` turns a Reshape in that position into the
# communication. Otherwise a view is inserted here, so that the saved tensor has an operator and a size.
#
# The same applies in backward to the gradient of a scattered sum: the gradients of a matrix product followed by a
# ReduceScatter read the AllGather of its gradient (ops/_grad_experimental/grad_comm_ops.py).


def insert_arrivals(graph: Graph, moves: Iterable[tuple[str, Node]]) -> Graph:
    """Insert one view between each redistributed tensor and its readers; shapes stay unsharded.

    Args:
        graph: the step.
        moves: pairs of a forward value and a forward operator that reads it after communication.
    """
    consumers: dict[str, list[Node]] = {}
    for producer, consumer in moves:
        consumers.setdefault(producer, []).append(consumer)
    readers = {consumer.name: producer for producer, nodes in consumers.items() for consumer in nodes}
    forward = []
    for node in graph.forward:
        source = readers.get(node.name)
        forward.append(node.with_renamed_inputs({source: source + ARRIVAL_SUFFIX}) if source else node)
        if node.name in consumers:
            forward.append(
                _inserted_node(
                    consumers[node.name][0], "Reshape", node.name + ARRIVAL_SUFFIX, node.name, node.outputs[:1]
                )
            )
    saved, renamed = list(graph.saved), {}
    for entry in graph.saved:
        if entry.forward_name in consumers:
            renamed[entry.backward_name] = entry.backward_name + ARRIVAL_SUFFIX
            saved.append(Saved(entry.forward_name + ARRIVAL_SUFFIX, entry.backward_name + ARRIVAL_SUFFIX))
    # Backward reads a saved value through a Depend if the reader is recomputed.
    read = {name for node in graph.backward if node.origin in readers for name in node.inputs}
    tied = {node.name for node in graph.backward if node.op == "Depend" and node.name in read}
    backward = tuple(
        node.with_renamed_inputs(renamed) if node.origin in readers or node.name in tied else node
        for node in graph.backward
    )
    return replace(graph, forward=tuple(forward), backward=backward, saved=tuple(saved))


def _inserted_node(
    node: Node, op: str, name: str, source: str, outputs: tuple[TensorType, ...], origin: str = ""
) -> Node:
    """Return an operator that MindSpore inserts next to `node`."""
    scope = f"{node.scope.rpartition('/')[0]}/{op}{ARRIVAL_SUFFIX}"
    return Node(
        name=name,
        op=op,
        layer_index=node.layer_index,
        cell_path=node.cell_path,
        scope=scope,
        inputs=(source,),
        outputs=outputs,
        attributes={},
        origin=origin,
    )


def insert_gradient_gathers(graph: Graph, gathered: Mapping[str, tuple[str, TensorType]]) -> Graph:
    """Insert an AllGather before the gradients of operators whose sums are scattered.

    Args:
        graph: the step of one rank.
        gathered: by forward operator: name in backward of the rank's shard of the gradient of the sum, and the type
            that the gradients of the operator read.
    """
    backward: list[Node] = []
    gathered_names: set[str] = set()
    for node in graph.backward:
        shard_name, full_type = (None, None) if node.is_duplicate else gathered.get(node.origin, (None, None))
        if shard_name is None or full_type is None or shard_name not in node.inputs:
            backward.append(node)
            continue
        name = node.origin + ARRIVAL_SUFFIX
        if name not in gathered_names:
            gathered_names.add(name)
            origin_node = graph.index.forward_nodes[node.origin]
            backward.append(_inserted_node(origin_node, "AllGather", name, shard_name, (full_type,), node.origin))
        backward.append(node.with_renamed_inputs({shard_name: name}))
    return replace(graph, backward=tuple(backward))


@dataclass(frozen=True)
class Sharding:
    """A graph with the sizes of one rank."""

    # nodes of forward and backward have the output types of one rank; parameters of the functions and constants
    # (`types`) stay unsharded
    graph: Graph
    # operators with unknown split, unsharded unless the reason states otherwise
    unresolved: tuple[Unresolved, ...]
    # redistributed tensors of forward. A redistributing `Reshape` has memory of its own: in `graph` its type is
    # `AllGather`, `AllToAll` or `Slice`, except if it has `recompute_comm_op` (StepReplace of step_parallel.cc reads
    # the attribute of no other operator; confirmed by dry runs)
    redistributions: tuple[Redistribution, ...]
    # forward operators whose output is a partial sum, by name
    sums: Mapping[str, PartialSum] = field(default_factory=dict)


def shard_graph(graph: Graph, num_ranks: int = 1) -> Sharding:
    """Compute the sizes on one rank of all tensors of a step; unchanged if no strategy splits a tensor.

    Args:
        graph: the step with unsharded tensors.
        num_ranks: ranks of a pipeline stage; with 1, operators without a strategy follow their operands.
    """
    if not any(_is_sharded(node) for node in graph.forward):
        return Sharding(graph, (), ())
    table = _infer_splits(graph, num_ranks)
    casts = dict(_recomputed_norm_casts(table))
    arrivals = [
        (redistribution.producer, redistribution.consumer)
        for redistribution in _unresolved_arrivals(table)
        if redistribution.consumer.op in PRODUCT_OPS or is_local_reshape(redistribution.consumer)
    ]
    arrivals += casts.values()
    if arrivals:
        table = _infer_splits(insert_arrivals(_with_saved_casts(graph, casts), arrivals), num_ranks)
    for redistribution in _unresolved_arrivals(table):
        producer_split, reader = redistribution.before, redistribution.consumer
        reason = (
            f"saved with the split {producer_split} of its producer; {reader.op} reads it as {redistribution.after}"
        )
        table.add_unresolved(table.nodes[redistribution.producer], reason)
    sharded = insert_gradient_gathers(_with_rank_sizes(table), dict(_gathered_gradients(table)))
    return Sharding(sharded, tuple(table.unresolved), tuple(table.redistributions), table.sums)


def _infer_splits(graph: Graph, num_ranks: int) -> SplitTable:
    """Return the splits of all values of a step."""
    table = SplitTable(graph, num_ranks)
    forward, backward = ForwardSplits(table), BackwardSplits(table)
    for node in graph.forward:
        table.add(node, forward.of(node))
    for backward_name, forward_name in table.forward_names.items():
        if forward_name in table.splits:
            table.splits[backward_name] = table.splits[forward_name]
            table.types[backward_name] = table.types[forward_name]
    for node in graph.backward:
        table.add(node, backward.of(node))
    return table


def _with_rank_sizes(table: SplitTable) -> Graph:
    def with_rank_sizes(node: Node) -> Node:
        splits = table.splits[node.name]
        outputs = tuple(shard_type(tensor_type, split) for tensor_type, split in zip(node.outputs, splits, strict=True))
        op = table.communications.get(node.name, rank_name(node))
        if node.op in WEIGHT_OPS and splits and splits[0] is not None:
            return replace(node, outputs=outputs, attributes={**node.attributes, PARTS_MARK: num_shards(splits[0])})
        return node if (op, outputs) == (node.op, node.outputs) else replace(node, op=op, outputs=outputs)

    graph = table.graph
    sharded = {name: splits for name, splits in table.constant_splits.items() if len(splits) == 1}
    types = {name: shard_type(graph.types[name], *splits) for name, splits in sharded.items()}
    return replace(
        graph,
        forward=tuple(map(with_rank_sizes, graph.forward)),
        backward=tuple(map(with_rank_sizes, graph.backward)),
        types={**graph.types, **types},
    )


def _unresolved_arrivals(table: SplitTable) -> Iterator[Redistribution]:
    """Yield redistributed tensors that backward may save as received, although their size is that before it."""
    saved = set(table.forward_names.values())
    for redistribution in table.redistributions:
        is_keeping = (
            redistribution.consumer.op in OPERAND_SAVING_OPS or LOCAL_MARK in redistribution.consumer.attributes
        )
        if redistribution.producer in saved and is_keeping:
            yield redistribution


def _recomputed_norm_casts(table: SplitTable) -> Iterator[tuple[str, tuple[str, Node]]]:
    """Yield recomputed casts whose output is redistributed for a norm, as (name in backward, (name in forward, norm)).

    Nothing reads them in backward, because the gathered or sliced tensor is saved
    (docs/internals/notes.md#saved-casts-before-norms).
    """
    recomputed_casts = {
        node.origin: node.name for node in table.graph.backward if node.op == "Cast" and node.is_duplicate
    }
    for redistribution in table.redistributions:
        name = recomputed_casts.get(redistribution.producer, "")
        is_of_norm = classify(redistribution.consumer.op) is OpClass.NORM
        gradients = (node for node in table.graph.backward if node.origin == redistribution.consumer.name)
        if name and is_of_norm and any(name in node.inputs for node in gradients):
            yield name, (redistribution.producer, redistribution.consumer)


def _with_saved_casts(graph: Graph, casts: Mapping[str, tuple[str, Node]]) -> Graph:
    """Return the graph in which backward reads the forward output of these casts."""
    saved = tuple(Saved(origin_node, name) for name, (origin_node, _) in casts.items())
    backward = tuple(node for node in graph.backward if node.name not in casts)
    read = {name for node in backward for name in node.inputs}
    dropped = {name for node in graph.backward if node.name in casts for name in node.inputs} - read
    backward = tuple(node for node in backward if node.name not in dropped)
    return replace(graph, backward=backward, saved=(*graph.saved, *saved)) if casts else graph


def _gathered_gradients(table: SplitTable) -> Iterator[tuple[str, tuple[str, TensorType]]]:
    """Yield operators with a scattered sum, each with the gradient of the sum as its own gradients read it."""
    for node in table.graph.backward:
        partial = table.sums.get(node.origin)
        before = partial.scattered if partial is not None else None
        if before is None or node.is_duplicate:
            continue
        tensor_type, after = table.nodes[node.origin].outputs[0], table.splits[node.origin][0]
        for operand in table.operands(node):
            is_of_backward = operand.name not in table.forward_names
            if is_of_backward and (operand.type.shape, operand.split) == (tensor_type.shape, after):
                yield node.origin, (operand.name, shard_type(operand.type, before))


def _is_sharded(node: Node) -> bool:
    strategies = (*read_strategy(node.attributes), *read_out_strategy(node.attributes))
    return any(num_shards(split) > 1 for split in strategies)
