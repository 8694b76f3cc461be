"""In which order the operators of a compiled step run.

The frontend gives an order that respects what operators read, the backend makes its own. Here the operators run in the
frontend's, but what layers read and no weight and no layer makes (masks, rotary tables) runs first, and once: where the
compiler computes it again for a layer under other settings, the first result serves.
"""

from collections.abc import Hashable

from mindswap.graph.model import Graph, Node, find_dependents
from mindswap.graph.ops import NO_WORK_OPS, ORDERING_OPS, WEIGHT_OPS
from mindswap.graph.passes.gather import WEIGHT_MARK

# Attributes that say how an operator is treated, not what it computes.
POLICY_ATTRIBUTES = ("offload", "backward_prefetch", "recompute")


def weight_reads(graph: Graph) -> frozenset[str]:
    """Reads of weights: no kernel, the weight is used where it is."""
    found: set[str] = set()
    for node in (*graph.forward, *graph.backward):
        if node.op == "Load":
            found.add(node.name)
        elif node.op in WEIGHT_OPS or node.op == "Depend":
            source = node.inputs[0]
            if source in found or (source not in graph.index.nodes and WEIGHT_MARK in source):
                found.add(node.name)
    return frozenset(found)


def has_kernel(node: Node, weights: frozenset[str]) -> bool:
    """Whether the device runs something for it."""
    return node.op not in NO_WORK_OPS and node.name not in weights


def find_shared(graph: Graph) -> frozenset[str]:
    """Operators whose output layers read and no weight goes into: masks and rotary tables, and what makes them."""
    weighted = find_dependents(graph.forward, (node.name for node in graph.forward if node.op in WEIGHT_OPS))
    needed: set[str] = set()
    for node in reversed(graph.forward):
        if node.op in ORDERING_OPS:
            continue
        if node.name in needed or (node.name in weighted and node.layer_index is not None):
            needed.update(node.inputs)
    return frozenset(node.name for node in graph.forward if node.name in needed and node.name not in weighted)


def find_repeats(graph: Graph, shared: frozenset[str]) -> dict[str, str]:
    """Operators without weights that do what another did before -> the name of that one.

    They are equal in all but their settings; masks of a recomputed layer are made again in backward.
    """
    first: dict[Hashable, str] = {}
    stands_for: dict[str, str] = {}
    handed = graph.index.forward_names
    own = set(shared)
    for node in (*graph.forward, *graph.backward):
        inputs = tuple(stands_for.get(handed.get(name, name), handed.get(name, name)) for name in node.inputs)
        is_again = node.is_duplicate and node.origin in own
        if node.name not in own and not is_again:
            continue
        if node.op == "Depend":  # only ties the copy to the gradients before it
            inputs = inputs[:1]
            if is_again or inputs[0] in own:
                stands_for[node.name] = inputs[0]
                continue
        attributes = tuple(sorted((k, repr(v)) for k, v in node.attributes.items() if k not in POLICY_ATTRIBUTES))
        key = (node.op, inputs, node.outputs, attributes)
        stand = first.setdefault(key, node.name)
        if stand != node.name:
            stands_for[node.name] = stand
    return stands_for
