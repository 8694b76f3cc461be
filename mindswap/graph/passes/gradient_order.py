"""Order of the products of backward where gradients of weights are accumulated over micro-batches.

Two products read the gradient of a linear operator: that of the weight and that of the input. The compiler lists them
in any order; MindSpore's backend runs that of the weight, with its sum, just before that of the input, unless it waits
for a recomputed tensor. See docs/internals/notes.md#products-of-backward.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mindswap.graph.layer_paths import find_weight_gradients
from mindswap.graph.model import Graph, Node, find_dependents
from mindswap.graph.ops import MATMUL_OPS, NORM_OPS, VIEW_OPS


@dataclass(frozen=True, eq=False)
class GradientPairs:
    """Products that read the same gradient, by name of the product that gives the gradient of a weight."""

    input_gradient: dict[str, str]  # product that gives the gradient of the input
    casts: dict[str, list[Node]]  # casts of the weight's gradient, before it is accumulated


def find_gradient_pairs(graph: Graph) -> GradientPairs:
    """Find the pairs of products of backward that read the same gradient."""
    weight_gradients, nodes = find_weight_gradients(graph), {node.name: node for node in graph.backward}
    products = [node for node in graph.backward if node.op in MATMUL_OPS and not node.is_duplicate]
    readers: dict[str, str] = {}  # gradient -> first product that reads it for the gradient of an input
    for node in products:
        if node.name not in weight_gradients:
            readers |= {s: node.name for s in _sources(node, nodes) if s not in readers}
    pairs = {
        node.name: readers[source]
        for node in products
        if node.name in weight_gradients
        for source in _sources(node, nodes)
        if source in readers
    }
    casts: dict[str, list[Node]] = {}
    for node in graph.backward:
        if node.op == "Cast" and node.inputs[0] in pairs:
            casts.setdefault(node.inputs[0], []).append(node)
    return GradientPairs(pairs, casts)


def order_weight_gradients(graph: Graph, pairs: GradientPairs) -> Graph:
    """Return the graph in which a weight gradient comes just before the input gradient that reads the same tensor.

    Args:
        graph: a step, under any policy.
        pairs: products of the step without a policy.
    """
    nodes = {node.name: node for node in graph.backward}
    position = {name: at for at, name in enumerate(nodes)}
    moved: dict[str, list[Node]] = {}  # product of an input's gradient -> what comes before it
    placed: set[str] = set()
    for name, target in pairs.input_gradient.items():
        if _reads_recomputed(nodes[name], nodes):
            continue
        needed = _needed_after(name, position[target], nodes, position)
        if target not in needed and placed.isdisjoint(needed):
            needed |= {cast.name: nodes[cast.name] for cast in pairs.casts.get(name, ())}
            moved.setdefault(target, []).extend(needed.values())
            placed.update(needed)
    order: list[Node] = []
    for node in graph.backward:
        if node.name not in placed:
            order += [*moved.get(node.name, ()), node]
    return replace(graph, backward=tuple(order))


@dataclass(frozen=True)
class HeadGradients:
    """Names of the two products of backward that read the gradient of the head's output."""

    of_weight: str
    of_input: str


def find_head_gradients(graph: Graph) -> HeadGradients | None:
    """Find the products of backward that give the gradients of the head's weight and input.

    The head is the product of forward on which no other product depends. With multi-token prediction there are two.

    Args:
        graph: a step without a policy.

    Returns:
        The products; None if there is not exactly one head, or if its weight has another gradient as well.
    """
    heads: list[Node] = []
    read: set[str] = set()  # values on which a product depends
    for node in reversed(graph.forward):
        is_product = node.op in MATMUL_OPS
        if is_product and node.name not in read:
            heads.append(node)
        if is_product or node.name in read:
            read.update(node.inputs)
    if len(heads) != 1 or heads[0].layer_index is not None:
        return None
    values = graph.index.forward_nodes.keys() & set(heads[0].inputs)  # its weight is one of them
    saved = {name for name, source in graph.index.forward_names.items() if source in values}
    nodes = {node.name: node for node in graph.backward}
    pairs = find_gradient_pairs(graph).input_gradient.items()
    return next((HeadGradients(*pair) for pair in pairs if saved.intersection(nodes[pair[1]].inputs)), None)


def delay_head_gradient(graph: Graph, head: HeadGradients) -> Graph:
    """Return the graph in which the weight gradient of the head comes after the gradient of the last norm.

    What depends on the weight gradient follows it. Unchanged if it comes later already, if no norm follows the input
    gradient outside the layers, and if it reads a tensor of which backward recomputes a view, as in the newer models.

    Args:
        graph: a step of one micro-batch, compiled without lazy_inline (docs/internals/notes.md#gradient-of-the-head).
        head: products of the step without a policy.
    """
    nodes = {node.name: node for node in graph.backward}
    position = {name: at for at, name in enumerate(nodes)}
    norm = _next_norm(graph.backward[position[head.of_input] :])
    if norm is None or any(read in nodes and nodes[read].is_duplicate for read in nodes[head.of_weight].inputs):
        return graph
    end = position[norm.name] + 1
    if position[head.of_weight] >= end:
        return graph
    moved = find_dependents(graph.backward[:end], (head.of_weight,))  # they only pass it on: the norm is not among them
    before = [node for node in graph.backward[:end] if node.name not in moved]
    delayed = [node for node in graph.backward[:end] if node.name in moved]
    return replace(graph, backward=(*before, *delayed, *graph.backward[end:]))


def _next_norm(backward: Sequence[Node]) -> Node | None:
    """Return the first gradient of a norm outside the layers, before any operator of a layer."""
    for node in backward:
        if node.layer_index is not None:
            return None
        if node.op in NORM_OPS and not node.is_duplicate:
            return node
    return None


def _source(name: str, nodes: dict[str, Node]) -> str:
    """Return the value of which a value of backward is a view."""
    while name in nodes and nodes[name].op in VIEW_OPS:
        name = nodes[name].inputs[0]
    return name


def _sources(node: Node, nodes: dict[str, Node]) -> list[str]:
    """Return the values of backward that an operator reads, also through views."""
    return [source for name in node.inputs if (source := _source(name, nodes)) in nodes]


def _reads_recomputed(node: Node, nodes: dict[str, Node]) -> bool:
    return any(nodes[source].is_duplicate for source in _sources(node, nodes))


def _needed_after(name: str, target: int, nodes: dict[str, Node], position: dict[str, int]) -> dict[str, Node]:
    """Return a product with all operators that it depends on from a position on, in order."""
    needed: dict[str, Node] = {}
    pending = [name]
    while pending:
        name = pending.pop()
        if name not in needed and name in nodes and (not needed or position[name] >= target):
            needed[name] = nodes[name]
            pending += nodes[name].inputs
    return dict(sorted(needed.items(), key=lambda item: position[item[0]]))
