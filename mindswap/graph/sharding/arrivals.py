"""Tensors that arrive by communication and are kept as they arrived.

Where two operators cut a tensor unlike, MindSpore puts an AllGather between them, and backward of a product reads the
output of that AllGather (step_parallel.cc, Redistribution). If a Reshape stands there, `graph.sharding.sharding` makes
it the communication. Here one is put where none stands, so that what is kept has an operator and its size.

In backward the same holds for the gradient of a sum that was scattered: the gradients of the product behind which
ReduceScatter stands read what AllGather makes of it (ops/_grad_experimental/grad_comm_ops.py).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from mindswap.graph.model import Graph, Node, Saved, TensorType

MARK = ":arrived"


@dataclass(frozen=True)
class GatheredGradient:
    """The gradient of a sum that was scattered."""

    value: str  # name in backward of the part that a rank has
    type: TensorType  # of what the gradients of the operator read on one rank


def with_arrivals(graph: Graph, moves: Iterable[tuple[str, Node]]) -> Graph:
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
        forward.append(node.renamed({source: source + MARK}) if source else node)
        if node.name in consumers:
            forward.append(_at(consumers[node.name][0], "Reshape", node.name + MARK, node.name, node.outputs[:1]))
    saved, renamed = list(graph.saved), {}
    for entry in graph.saved:
        if entry.forward_name in consumers:
            renamed[entry.backward_name] = entry.backward_name + MARK
            saved.append(Saved(entry.forward_name + MARK, entry.backward_name + MARK))
    backward = tuple(node.renamed(renamed) if node.origin in readers else node for node in graph.backward)
    return replace(graph, forward=tuple(forward), backward=backward, saved=tuple(saved))


def _at(node: Node, op: str, name: str, source: str, outputs: tuple[TensorType, ...], origin: str = "") -> Node:
    """An operator that MindSpore puts beside another one."""
    scope = f"{node.scope.rpartition('/')[0]}/{op}{MARK}"
    return Node(name, op, node.layer_index, node.cell_path, scope, (source,), outputs, {}, origin=origin)


def with_gathered_gradients(graph: Graph, gathered: Mapping[str, GatheredGradient]) -> Graph:
    """The step of one rank with an AllGather before the gradients of operators (by name) whose sums are scattered."""
    backward: list[Node] = []
    placed: set[str] = set()
    for node in graph.backward:
        found = None if node.is_duplicate else gathered.get(node.origin)
        if found is None or found.value not in node.inputs:
            backward.append(node)
            continue
        name = node.origin + MARK
        if name not in placed:
            placed.add(name)
            maker = graph.forward_nodes[node.origin]
            backward.append(_at(maker, "AllGather", name, found.value, (found.type,), node.origin))
        backward.append(node.renamed({found.value: name}))
    return replace(graph, backward=tuple(backward))
