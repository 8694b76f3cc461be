"""Order of two losses: that of the model, and that of a layer for multi-token prediction.

MindSpore's backend (`exec_order_builder.cc`) runs what reads a collective only when nothing else is ready. If the
weight of the head is all-gathered in the step, the product of the model's head waits for that AllGather until the layer
for multi-token prediction has run, and both losses alternate at each collective:

    collectives passed   |      0       |       1       |      2
    launched             | logits, both | shifted, both | sums, both ...

Operators of backward that need no gradient, such as the difference of probabilities and labels, run with the loss then.
See docs/internals/notes.md#two-losses.
"""

from collections.abc import Sequence, Set
from dataclasses import replace

from mindswap.graph.analysis.prediction_layers import prediction_layer
from mindswap.graph.model import Graph, Node, Saved
from mindswap.graph.ops import COMMUNICATION_OPS, is_kernel
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
    layers = {node.name for node in graph.forward if node.layer_index is not None or prediction_layer(node.cell_path)}
    if not any(prediction_layer(node.cell_path) for node in graph.forward):
        return []
    needed: set[str] = set()
    for node in reversed(graph.forward):
        if node.name in layers or node.name in needed:
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
