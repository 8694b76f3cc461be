"""What a layer hands on to operators outside it. Pure."""

from mindswap.graph.model import Graph
from mindswap.graph.ops import LAYER_PASSING_OPS, NO_WORK_OPS


def find_handed_on(graph: Graph) -> frozenset[str]:
    """Names of the operators of layers with which operators of another layer, or of none, compute.

    To make one again in backward takes what the layer before hands on, and so on down to the first layer.
    """
    nodes = graph.forward_nodes
    found: set[str] = set()
    for reader in graph.forward:
        if reader.op in NO_WORK_OPS:  # the compiler ties what backward needs in tuples of no layer
            continue
        stack = list(reader.inputs)
        while stack:
            source = nodes.get(stack.pop())
            if source is None or source.name in found:
                continue
            if source.op in LAYER_PASSING_OPS:
                stack += source.inputs
            if source.layer_index not in (None, reader.layer_index):
                found.add(source.name)
    return frozenset(found)
