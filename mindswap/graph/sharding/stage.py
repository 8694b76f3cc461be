"""The part of a compiled step that is on one pipeline stage."""

from dataclasses import replace

from mindswap.graph.model import Graph
from mindswap.graph.uses import depending


def drop_head(graph: Graph) -> Graph:
    """The step without head and loss: what comes after the last layer.

    In forward that is every operator that depends on a layer and that no layer depends on; in backward
    every operator before the first that reads what is left. The gradient that the next stage would send
    stays, as the gradient of the last layer's output.
    """
    of_layers = {node.name for node in graph.forward if node.layer_index is not None}
    after = depending(graph.forward, of_layers)
    needed = set(of_layers)  # by layers
    for node in reversed(graph.forward):
        if node.name in needed:
            needed.update(node.inputs)
    for node in graph.forward:
        if node.op == "TupleGetItem" and node.inputs[0] in needed:  # the compiler's own, of no layer
            needed.add(node.name)
    head = after - needed
    saved = tuple(entry for entry in graph.saved if entry.forward_name not in head)
    # Operators of backward that depend on nothing a layer made belong to the head.
    rest = depending(graph.backward, (entry.backward_name for entry in saved if entry.forward_name in after))
    return replace(
        graph,
        forward=tuple(node for node in graph.forward if node.name not in head),
        backward=tuple(node for node in graph.backward if node.name in rest),
        saved=saved,
    )
