"""From logical sizes to sizes per rank, by the strategies that the model records on its operators.

The compiled graph has logical shapes; `in_strategy`, `out_strategy` or `in_layout` of a primitive say
into how many parts each dimension of its operands is cut. Splits are followed forward through operators
without a strategy of their own, as MindSpore's step_parallel.cc does, and backward along gradients. What
cannot be followed counts as whole on every rank and is listed.
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
from mindswap.graph.sharding.splits import LOCAL_MARK, PARTS_MARK, num_parts, read_out_strategy, read_strategy

# Tensors that arrive by communication and are kept as they arrived.
#
# Where two operators cut a tensor unlike, MindSpore puts an AllGather between them, and backward of a product reads the
# output of that AllGather (step_parallel.cc, Redistribution). If a Reshape stands there, `graph.sharding.rank_sizes`
# makes it the communication. Here one is put where none stands, so that what is kept has an operator and its size.
#
# In backward the same holds for the gradient of a sum that was scattered: the gradients of the product behind which
# ReduceScatter stands read what AllGather makes of it (ops/_grad_experimental/grad_comm_ops.py).


def insert_arrivals(graph: Graph, moves: Iterable[tuple[str, Node]]) -> Graph:
    """The step with one view between a tensor and all operators that have it sent to them; shapes are logical.

    `moves` are names of tensors, each with an operator that reads it, both of forward.
    """
    consumers: dict[str, list[Node]] = {}
    for producer, consumer in moves:
        consumers.setdefault(producer, []).append(consumer)
    readers = {consumer.name: producer for producer, nodes in consumers.items() for consumer in nodes}
    forward = []
    for node in graph.forward:
        source = readers.get(node.name)
        forward.append(node.renamed({source: source + ARRIVAL_SUFFIX}) if source else node)
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
    # Where the reader runs again in backward, a Depend stands before it.
    read = {name for node in graph.backward if node.origin in readers for name in node.inputs}
    tied = {node.name for node in graph.backward if node.op == "Depend" and node.name in read}
    backward = tuple(
        node.renamed(renamed) if node.origin in readers or node.name in tied else node for node in graph.backward
    )
    return replace(graph, forward=tuple(forward), backward=backward, saved=tuple(saved))


def _inserted_node(
    node: Node, op: str, name: str, source: str, outputs: tuple[TensorType, ...], origin: str = ""
) -> Node:
    """An operator that MindSpore puts beside another one."""
    scope = f"{node.scope.rpartition('/')[0]}/{op}{ARRIVAL_SUFFIX}"
    return Node(name, op, node.layer_index, node.cell_path, scope, (source,), outputs, {}, origin=origin)


def insert_gradient_gathers(graph: Graph, gathered: Mapping[str, tuple[str, TensorType]]) -> Graph:
    """The step of one rank with an AllGather before the gradients of operators (by name) whose sums are scattered.

    Of each the gradient of its sum: the name in backward of the part that a rank has, and the type of what the
    gradients of the operator read on one rank.
    """
    backward: list[Node] = []
    gathered_names: set[str] = set()
    for node in graph.backward:
        part, full_type = (None, None) if node.is_duplicate else gathered.get(node.origin, (None, None))
        if part is None or full_type is None or part not in node.inputs:
            backward.append(node)
            continue
        name = node.origin + ARRIVAL_SUFFIX
        if name not in gathered_names:
            gathered_names.add(name)
            maker = graph.index.forward_nodes[node.origin]
            backward.append(_inserted_node(maker, "AllGather", name, part, (full_type,), node.origin))
        backward.append(node.renamed({part: name}))
    return replace(graph, backward=tuple(backward))


@dataclass(frozen=True)
class Sharding:
    """A graph with the sizes of one rank."""

    # every node of forward and backward has the output types of one rank; parameters of the functions and constants
    # (`types`) stay logical
    graph: Graph
    # operators whose split is not known; they count as whole on every rank unless the reason says otherwise
    unresolved: tuple[Unresolved, ...]
    # where tensors change their cut in forward. A `Reshape` that does so is memory of its own: in `graph` its operator
    # is `AllGather`, `AllToAll` or `Slice`, unless it has itself `recompute_comm_op` (StepReplace of step_parallel.cc
    # reads no other operator's; so say dry runs)
    redistributions: tuple[Redistribution, ...]
    # operators of forward that leave each rank a part of a sum, by name
    sums: Mapping[str, PartialSum] = field(default_factory=dict)


def shard_graph(graph: Graph) -> Sharding:
    """Sizes per rank of every tensor of a step with logical shapes; unchanged without any strategy that cuts."""
    if not any(_is_sharded(node) for node in graph.forward):
        return Sharding(graph, (), ())
    table = _infer_splits(graph)
    casts = dict(_recomputed_norm_casts(table))
    arrivals = [
        (redistribution.producer, redistribution.consumer)
        for redistribution in _unresolved_arrivals(table)
        if redistribution.consumer.op in PRODUCT_OPS or is_local_reshape(redistribution.consumer)
    ]
    arrivals += casts.values()
    if arrivals:
        table = _infer_splits(insert_arrivals(_with_saved_casts(graph, casts), arrivals))
    for redistribution in _unresolved_arrivals(table):
        maker_split, reader = redistribution.before, redistribution.consumer
        reason = f"kept as cut by its maker {maker_split}; {reader.op} reads it as {redistribution.after}"
        table.add_unresolved(table.nodes[redistribution.producer], reason)
    sharded = insert_gradient_gathers(_with_rank_sizes(table), dict(_gathered_gradients(table)))
    return Sharding(sharded, tuple(table.unresolved), tuple(table.redistributions), table.sums)


def _infer_splits(graph: Graph) -> SplitTable:
    """The splits of all values of a step."""
    table = SplitTable(graph)
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
            return replace(node, outputs=outputs, attributes={**node.attributes, PARTS_MARK: num_parts(splits[0])})
        return node if (op, outputs) == (node.op, node.outputs) else replace(node, op=op, outputs=outputs)

    graph = table.graph
    return replace(
        graph, forward=tuple(map(with_rank_sizes, graph.forward)), backward=tuple(map(with_rank_sizes, graph.backward))
    )


def _unresolved_arrivals(table: SplitTable) -> Iterator[Redistribution]:
    """Tensors that backward may hold as they arrived by communication, while their size is that of their maker."""
    saved = set(table.forward_names.values())
    for redistribution in table.redistributions:
        is_keeping = (
            redistribution.consumer.op in OPERAND_SAVING_OPS or LOCAL_MARK in redistribution.consumer.attributes
        )
        if redistribution.producer in saved and is_keeping:
            yield redistribution


def _recomputed_norm_casts(table: SplitTable) -> Iterator[tuple[str, tuple[str, Node]]]:
    """Casts before a norm that gathers their output, of those that run again; with that of forward, and the norm.

    They would run again for nothing: what was gathered in forward is kept (dry runs of 2.9.0, 2026-11-28).
    """
    recomputed_casts = {
        node.origin: node.name for node in table.graph.backward if node.op == "Cast" and node.is_duplicate
    }
    for redistribution in table.redistributions:
        name = recomputed_casts.get(redistribution.producer, "")
        is_gathered = classify(redistribution.consumer.op) is OpClass.NORM and num_parts(
            redistribution.after
        ) < num_parts(redistribution.before)
        gradients = (node for node in table.graph.backward if node.origin == redistribution.consumer.name)
        if name and is_gathered and any(name in node.inputs for node in gradients):
            yield name, (redistribution.producer, redistribution.consumer)


def _with_saved_casts(graph: Graph, casts: Mapping[str, tuple[str, Node]]) -> Graph:
    """The step in which backward takes these casts from forward."""
    saved = tuple(Saved(maker, name) for name, (maker, _) in casts.items())
    backward = tuple(node for node in graph.backward if node.name not in casts)
    read = {name for node in backward for name in node.inputs}
    dropped = {name for node in graph.backward if node.name in casts for name in node.inputs} - read
    backward = tuple(node for node in backward if node.name not in dropped)
    return replace(graph, backward=backward, saved=(*graph.saved, *saved)) if casts else graph


def _gathered_gradients(table: SplitTable) -> Iterator[tuple[str, tuple[str, TensorType]]]:
    """Operators whose sum is scattered, each with the gradient of that sum as its own gradients read it."""
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
    return any(num_parts(split) > 1 for split in strategies)
