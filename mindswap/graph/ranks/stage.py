"""The part of a compiled step that is on one pipeline stage. Pure."""

from dataclasses import replace

from mindswap.graph.model import Graph, Node

__all__ = ["drop_head"]


def drop_head(graph: Graph) -> Graph:
    """The step without head and loss: what comes after the last layer.

    In forward that is every operator that depends on a layer and that no layer depends on; in backward
    every operator before the first that reads what is left. The gradient that the next stage would send
    stays, as the gradient of the last layer's output.
    """
    after = _depending(graph.forward, {node.name for node in graph.forward if node.layer_index is not None})
    needed = _needed(graph.forward)
    for node in graph.forward:
        if node.op == "TupleGetItem" and node.inputs[0] in needed:  # the compiler's own, of no layer
            needed.add(node.name)
    head = {node.name for node in graph.forward if node.name in after and node.name not in needed}
    made = {node.name for node in graph.forward}
    saved = tuple(entry for entry in graph.saved if entry.forward_name not in head)
    # Operators of backward that depend on nothing a layer made belong to the head.
    from_layers = {entry.backward_name for entry in saved if entry.forward_name in after and entry.forward_name in made}
    rest = _depending(graph.backward, from_layers)
    return replace(
        graph,
        forward=tuple(node for node in graph.forward if node.name not in head),
        backward=tuple(node for node in graph.backward if node.name in rest),
        saved=saved,
    )


def _depending(nodes: tuple[Node, ...], roots: set[str]) -> set[str]:
    """The roots and all nodes that depend on one."""
    found = set(roots)
    for node in nodes:
        if any(name in found for name in node.inputs):
            found.add(node.name)
    return found


def _needed(nodes: tuple[Node, ...]) -> set[str]:
    """Nodes of layers and all nodes that one of them depends on."""
    found = {node.name for node in nodes if node.layer_index is not None}
    for node in reversed(nodes):
        if node.name in found:
            found.update(node.inputs)
    return found
