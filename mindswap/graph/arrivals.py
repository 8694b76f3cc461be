"""Tensors that arrive by communication and are kept as they arrived. Pure.

Where two operators cut a tensor unlike, MindSpore puts an AllGather between them, and backward of a product reads the
output of that AllGather (step_parallel.cc, Redistribution). If a Reshape stands there, `graph.sharding` makes it the
communication. Here one is put where none stands, so that what is kept has an operator and its size.
"""

from collections.abc import Iterable
from dataclasses import replace

from mindswap.graph.model import Graph, Node, Saved

__all__ = ["with_arrivals"]

MARK = ":arrived"


def with_arrivals(graph: Graph, moves: Iterable[tuple[str, Node]]) -> Graph:
    """The step with a view between a tensor and the operators that have it sent to them.

    Args:
        graph: a compiled step with logical shapes.
        moves: name of the tensor, and an operator that reads it, both of forward. One view of a tensor serves all
            operators that read it.
    """
    consumers: dict[str, list[Node]] = {}
    for producer, consumer in moves:
        consumers.setdefault(producer, []).append(consumer)
    readers = {consumer.name: producer for producer, nodes in consumers.items() for consumer in nodes}
    forward = []
    for node in graph.forward:
        source = readers.get(node.name)
        forward.append(_renamed(node, {source: source + MARK}) if source else node)
        if node.name in consumers:
            forward.append(_view(node, consumers[node.name][0]))
    saved, renamed = list(graph.saved), {}
    for entry in graph.saved:
        if entry.forward_name in consumers:
            renamed[entry.backward_name] = entry.backward_name + MARK
            saved.append(Saved(entry.forward_name + MARK, entry.backward_name + MARK))
    backward = tuple(_renamed(node, renamed) if node.origin in readers else node for node in graph.backward)
    return replace(graph, forward=tuple(forward), backward=backward, saved=tuple(saved))


def _view(producer: Node, consumer: Node) -> Node:
    place = consumer.scope.rpartition("/")[0]
    return Node(
        name=producer.name + MARK,
        op="Reshape",
        layer_index=consumer.layer_index,
        cell_path=consumer.cell_path,
        scope=f"{place}/Reshape{MARK}",
        inputs=(producer.name,),
        outputs=producer.outputs[:1],
        attributes={},
    )


def _renamed(node: Node, names: dict[str, str]) -> Node:
    return replace(node, inputs=tuple(names.get(name, name) for name in node.inputs))
