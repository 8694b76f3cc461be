"""Order of the loss, and of two losses: that of the model, and that of a layer for multi-token prediction.

MindSpore's backend (`exec_order_builder.cc`) runs what reads a collective only when nothing else is ready. So what
depends on labels alone, such as OneHot, runs while the ranks reduce the maximum of their logits. If the weight of the
head is all-gathered in the step, the product of the model's head waits for that AllGather until the layer for
multi-token prediction has run, and both losses alternate at each collective:

    collectives passed   |      0       |       1       |      2
    launched             | logits, both | shifted, both | sums, both ...

Operators of backward that need no gradient, such as the difference of probabilities and labels, run with the loss then.
See docs/internals/notes.md#two-losses and #labels-during-a-reduction.
"""

from collections.abc import Sequence, Set
from dataclasses import replace

from mindswap.graph.analysis.prediction_layers import prediction_layer
from mindswap.graph.model import Graph, Node, Saved
from mindswap.graph.ops import COMMUNICATION_OPS, PRODUCT_OPS, WEIGHT_OPS, is_kernel
from mindswap.graph.passes.gather import is_gathering


def order_losses(graph: Graph, communicating_first: Set[str], communicating_after: Set[str]) -> Graph:
    """Return the graph with the operators of both losses after all others, in the order of collectives passed.

    Unchanged if it has no layer for multi-token prediction, or if the head reads no all-gathered weight.

    Args:
        graph: a step of one micro-batch.
        communicating_first: names of operators with a collective before them.
        communicating_after: names of operators with a collective after them.
    """
    losses = _loss_operators(graph)
    gathered = {node.name for node in graph.forward if is_gathering(node)}
    if not any(gathered.intersection(node.inputs) for node in losses):
        return graph
    graph, losses = _with_early_gradients(graph, losses)
    passed: dict[str, int] = {}  # operator of a loss -> collectives that its inputs, or it, wait for
    after: dict[str, int] = {}  # the same for its readers
    for node in losses:
        waited = max((after.get(name, 0) for name in node.inputs), default=0)
        passed[node.name] = waited + (node.name in communicating_first)
        is_awaited = node.name in communicating_after or node.op in COMMUNICATION_OPS
        after[node.name] = passed[node.name] + is_awaited
    others = tuple(node for node in graph.forward if node.name not in passed)
    return replace(graph, forward=(*others, *sorted(losses, key=lambda node: passed[node.name])))


def order_labels(graph: Graph, reduced: Set[str], has_early_gradients: bool) -> Graph:
    """Return the graph with the operators on labels alone right after the first operator of the loss that is reduced.

    Unchanged if nothing is reduced in the loss, or if the graph has a layer for multi-token prediction.

    Args:
        graph: a step.
        reduced: names of operators with a collective after them.
        has_early_gradients: whether the operators of backward that read these values only run with them, as single
            kernels of a step of one micro-batch do.
    """
    if any(prediction_layer(node.cell_path) for node in graph.forward):
        return graph
    losses = _operators_after_layers(graph)
    first = next((n for n in losses if n.name in reduced and n.op not in COMMUNICATION_OPS), None)
    if first is None:
        return graph
    bound: set[str] = set()  # what depends on the layers, or on communication
    for node in graph.forward:
        if node.layer_index is not None or node.op in COMMUNICATION_OPS or not bound.isdisjoint(node.inputs):
            bound.add(node.name)
    names = {node.name for node in losses} - bound
    later = graph.forward[graph.forward.index(first) + 1 :]
    labels = [node for node in later if node.name in names]
    if has_early_gradients:
        graph, labels = _with_early_gradients(graph, labels)
    moved = {node.name for node in labels}
    forward: list[Node] = []
    for node in graph.forward:
        forward += [] if node.name in moved else [node]
        forward += labels if node is first else []
    return replace(graph, forward=tuple(forward))


def advance_difference(graph: Graph) -> Graph:
    """Return the graph with the operators of backward that read the loss and no gradient before the loss.

    Unchanged unless the gradient of the head reads the weight itself, not a cast or an all-gathered copy of it. Then
    these operators are fewer operators away from the end of the step than the loss, and the backend runs them first
    (docs/internals/notes.md#difference-before-the-loss).

    Args:
        graph: a step of one micro-batch of a newer model, compiled without lazy_inline.
    """
    weights = {node.name for node in graph.forward if node.op in WEIGHT_OPS and node.layer_index is None}
    saved = {gradient for gradient, forward in graph.index.forward_names.items() if forward in weights}
    products = (node for node in graph.backward if node.op in PRODUCT_OPS and node.layer_index is None)
    if not any(saved.intersection(node.inputs) for node in products):
        return graph
    losses = _operators_after_layers(graph)
    advanced, nodes = _with_early_gradients(graph, losses)
    early = nodes[len(losses) :]
    read = {name for node in early for name in node.inputs}
    last = max((index for index, node in enumerate(graph.forward) if node.name in read), default=None)
    if last is None:
        return graph
    return replace(advanced, forward=(*graph.forward[: last + 1], *early, *graph.forward[last + 1 :]))


def _with_early_gradients(graph: Graph, losses: Sequence[Node]) -> tuple[Graph, list[Node]]:
    """Move the operators of backward that read values of the losses and no gradient to the losses."""
    names = {node.name for node in losses}
    in_forward = {name: forward for name, forward in graph.index.forward_names.items() if forward in names}
    early: dict[str, Node] = {}
    for node in graph.backward:
        read = [name for name in node.inputs if name not in graph.constants]
        if is_kernel(node.op) and not node.is_duplicate and read and all(n in early or n in in_forward for n in read):
            early[node.name] = node.with_renamed_inputs(in_forward)
    saved = (*graph.saved, *(Saved(name, name) for name in early))
    backward = tuple(node for node in graph.backward if node.name not in early)
    forward = (*graph.forward, *early.values())
    return replace(graph, forward=forward, backward=backward, saved=saved), [*losses, *early.values()]


def _loss_operators(graph: Graph) -> list[Node]:
    """Return the operators after the layers of the model that no layer needs; empty without multi-token prediction."""
    has_prediction = any(prediction_layer(node.cell_path) for node in graph.forward)
    return _operators_after_layers(graph) if has_prediction else []


def _operators_after_layers(graph: Graph) -> list[Node]:
    """Return the operators after the layers that no layer needs."""
    layers = {node.name for node in graph.forward if node.layer_index is not None or prediction_layer(node.cell_path)}
    needed: set[str] = set()
    for node in reversed(graph.forward):
        # Nodes that pass forward values to backward are no kernels, in whatever scope the compiler created them.
        if (node.name in layers and is_kernel(node.op)) or node.name in needed:
            needed.update(node.inputs)
    reads_layer: set[str] = set(layers)
    losses: list[Node] = []
    for node in graph.forward:
        if not reads_layer.isdisjoint(node.inputs):
            reads_layer.add(node.name)
        is_free = node.name not in layers and node.name not in needed
        if is_free and (losses or node.name in reads_layer or is_gathering(node)):
            losses.append(node)
    return losses
