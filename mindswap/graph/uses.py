"""Who reads whose output, among the operators that carry a tag. Pure."""

from mindswap.graph.model import Graph, Node

__all__ = ["graph_uses"]


def graph_uses(graph: Graph, tag: str) -> dict[str, list[str]]:
    """Tag of an operator -> sorted tags of the operators that use its output in forward.

    Operators without the tag (the compiler adds `TupleGetItem`, `Depend`, ...) are looked through.

    Args:
        graph: a compiled step.
        tag: name of the primitive attribute that holds the tag.
    """
    uses: dict[str, set[str]] = {}
    for node in graph.forward:
        user = node.attributes.get(tag)
        if user is None:
            continue
        for producer in _tagged_producers(graph, node, tag):
            uses.setdefault(str(producer), set()).add(str(user))
    return {producer: sorted(users) for producer, users in sorted(uses.items())}


def _tagged_producers(graph: Graph, node: Node, tag: str):
    pending = list(node.inputs)
    seen = set()
    while pending:
        name = pending.pop()
        if name in seen or name not in graph.forward_nodes:
            continue
        seen.add(name)
        producer = graph.forward_nodes[name]
        if producer.attributes.get(tag) is not None:
            yield producer.attributes[tag]
        elif producer.op in LOOK_THROUGH:
            pending.extend(producer.inputs)


# Nodes of the compiler's own between two operators of the model.
LOOK_THROUGH = frozenset({"TupleGetItem", "MakeTuple", "Depend", "Load", "MoveTo"})
