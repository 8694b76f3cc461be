"""To which layer operators belong where the compiler's scopes do not tell, or tell it of one layer only."""

from collections.abc import Iterable
from dataclasses import replace

from mindswap.graph.model import Graph, Node, depending
from mindswap.graph.ops import BOOKKEEPING_OPS, GRADIENT_PASSING_OPS, MATMUL_OPS, WEIGHT_OPS
from mindswap.graph.sequences import is_sequence_state


def has_scope(node: Node) -> bool:
    """The scope of an operator names the cell that calls it: the compiler drops some, and adds operators."""
    return "-" in node.scope.rpartition("/")[0]


def assign_layer_indices(graph: Graph) -> Graph:
    """The step with the layer of three kinds of operators put right.

    - What the compiler wrote anew stands with its input. If it is read in another layer only, it belongs there: the
      cast that a norm makes of what the layer before gives.
    - Masks and rotary tables are made in every layer from the inputs of the step; the compiler merges them into the
      first one. What depends on no weight and is read by another layer belongs to none, so that a policy for the
      first layer does not change it for the others. MindSpore computes it again in each layer that is recomputed;
      here it is kept, once for all.
    - A function that all layers call may be written out with the scope of the first one: the reshapes of Ulysses.
      No layer reads what a later one makes, so such an operator belongs to the latest layer that it reads of.
    """
    layers = _layers_of_readers(graph)
    shared = _shared(graph)
    forward = []
    settled: dict[str, int] = {}  # layer of what is in one
    for node in graph.forward:
        layer_index = node.layer_index
        if node.name in shared:
            layer_index = None
        elif layer_index is not None and not has_scope(node) and len(layers.get(node.name, ())) == 1:
            (layer_index,) = layers[node.name]
        if layer_index is not None:
            layer_index = max([layer_index, *(settled[name] for name in node.inputs if name in settled)])
            settled[node.name] = layer_index
        forward.append(node if layer_index == node.layer_index else replace(node, layer_index=layer_index))
    moved = {node.name: new.layer_index for node, new in zip(graph.forward, forward, strict=True) if node is not new}
    backward = []
    for node in graph.backward:
        layer_index = node.layer_index
        if node.is_duplicate and node.origin in shared:
            layer_index = None
        elif layer_index is not None and moved.get(node.origin) is not None:
            layer_index = moved[node.origin]
        backward.append(node if layer_index == node.layer_index else replace(node, layer_index=layer_index))
    return replace(graph, forward=tuple(forward), backward=tuple(backward))


def _layers_of_readers(graph: Graph) -> dict[str, set[int]]:
    """For each value, the layers in which operators compute with it."""
    layers: dict[str, set[int]] = {}
    for node in reversed(graph.forward):
        if node.op in BOOKKEEPING_OPS:
            continue
        own: Iterable[int] = () if node.layer_index is None else (node.layer_index,)
        if not has_scope(node):  # then those count that read it in turn
            own = layers.get(node.name, own)
        for name in node.inputs:
            layers.setdefault(name, set()).update(own)
    return layers


def _shared(graph: Graph) -> set[str]:
    """Operators that depend on no weight and are read by another layer, and those that only make their inputs."""
    nodes = graph.forward_nodes
    reads = (n.name for n in graph.forward if n.op in WEIGHT_OPS and not is_sequence_state(n.inputs[0]))
    weighted = depending(graph.forward, reads)
    shared: set[str] = set()
    for node in reversed(graph.forward):
        for name in node.inputs:
            source = nodes.get(name)
            if source is None or source.layer_index is None or name in weighted:
                continue
            if node.name in shared or (node.layer_index is not None and node.layer_index != source.layer_index):
                shared.add(name)
    return shared


# Which operators of backward zero_bubble_v computes apart from the rest.
#
# Source: `DetachBackward::DetachDxAndDwGraph`,
# mindspore/ccsrc/frontend/parallel/pipeline_transformer/detach_backward.cc (mindspore-ai/mindspore_test, 0b71b3f): the
# matrix product whose result is added to the sum of a gradient. A cast between the two is taken away on Ascend
# (`RemoveCastBeforeAssignAdd`, parallel/pass/remove_cast_before_assign_add.cc).


def find_weight_gradients(graph: Graph) -> frozenset[str]:
    """Names of the matrix products that give a gradient of a weight, and of what is between them and its sum."""
    if not graph.backward or graph.backward[-1].op != "MakeTuple":
        return frozenset()
    handed_out = graph.backward[-1].name
    between = {handed_out}  # operators that only pass gradients on
    found: set[str] = set()
    for node in reversed(graph.backward):
        users = graph.index.readers.get(node.name, ())
        if not users or not all(user.name in between for user in users):
            continue
        if node.op in MATMUL_OPS and not node.is_duplicate:
            found.add(node.name)
        elif node.op in GRADIENT_PASSING_OPS:
            between.add(node.name)
    for node in graph.backward:
        if node.name in between and node.name != handed_out and found.intersection(node.inputs):
            found.add(node.name)
    return frozenset(found)
