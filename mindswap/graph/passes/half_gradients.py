"""Gradients of weights of layers that compute in two halves, where they are accumulated over micro-batches.

The compiler has one product for each half, casts both to float32, and adds them. MindSpore's backend concatenates what
both halves read, and has one product, whose result is accumulated. Here the first product is moved to the second one,
and writes nothing. See docs/internals/notes.md#gradients-of-interleaved-halves.
"""

from dataclasses import replace

from mindswap.graph.model import Graph, Node
from mindswap.graph.ops import MATMUL_OPS
from mindswap.graph.passes.interleaved_halves import Branches, has_halves

# Attribute of a product whose result is part of that of another one.
MERGED_MARK = "mindswap_merged"


def merge_half_gradients(graph: Graph) -> Graph:
    """Return the graph with one result for the gradient of each weight; unchanged if no layer has halves."""
    if not has_halves(graph):
        return graph
    nodes = {node.name: node for node in graph.backward}
    position = {name: at for at, name in enumerate(nodes)}
    branches = Branches(graph.forward, graph.index.forward_names, graph.constants)
    for node in graph.backward:
        origin = graph.index.forward_nodes.get(node.origin)
        branches.add(node, [origin] if origin is not None else [])
    dropped: set[str] = set()
    renamed: dict[str, str] = {}  # sum -> cast of the later product
    before: dict[str, Node] = {}  # later product -> the earlier one
    for node in graph.backward:
        terms = _terms(node, nodes)
        products = [nodes[cast].inputs[0] for cast in terms]
        if len(terms) != 2 or not all(_is_product(name, nodes) for name in products):
            continue
        if {branches[name] for name in products} != {0, 1}:
            continue
        (first, first_cast), (last, last_cast) = sorted(zip(products, terms, strict=True), key=lambda p: position[p[0]])
        earlier = nodes[first]
        before[last] = replace(earlier, attributes={**earlier.attributes, MERGED_MARK: True})
        dropped |= {first, first_cast, node.name, node.inputs[0]}
        renamed[node.name] = last_cast
    backward: list[Node] = []
    for node in graph.backward:
        if node.name not in dropped:
            backward += [*([before[node.name]] if node.name in before else []), node.with_renamed_inputs(renamed)]
    return replace(graph, backward=tuple(backward))


def _terms(node: Node, nodes: dict[str, Node]) -> tuple[str, ...]:
    """Return the casts that an operator adds; empty if it adds anything else."""
    if node.op != "AddN" or node.inputs[0] not in nodes or nodes[node.inputs[0]].op != "MakeTuple":
        return ()
    terms = nodes[node.inputs[0]].inputs
    return terms if all(name in nodes and nodes[name].op == "Cast" for name in terms) else ()


def _is_product(name: str, nodes: dict[str, Node]) -> bool:
    return name in nodes and nodes[name].op in MATMUL_OPS and not nodes[name].is_duplicate
