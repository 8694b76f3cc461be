"""Assignment of the operators of a graph to segments of the step.

Segments are numbered in forward order, here with n layers:

    segment      -1        0        1      ...    n - 1       n
             | before | layer 0 | layer 1 | ... | layer n-1 | after  |
    forward  ------------------------------------------------------->
    backward <-------------------------------------------------------
"""

from collections.abc import Sequence, Set

from mindswap.errors import SimulationError
from mindswap.graph.model import Graph, Node
from mindswap.graph.ops import is_kernel
from mindswap.graph.passes.interleaved_batch import is_slice_of_part


def count_layers(graph: Graph) -> int:
    """Return the number of layers of a compiled step.

    Raises:
        SimulationError: if it has none.
    """
    indices = [node.layer_index for node in graph.forward if node.layer_index is not None]
    if not indices:
        raise SimulationError("the compiled step has no transformer layers")
    return 1 + max(indices)


def forward_segments(graph: Graph, num_layers: int) -> list[int]:
    """Return the segment of each forward operator.

    An operator outside the layers is after them from the first one on that reads a layer and feeds none. Operators of
    layers may follow it, because the compiler lists the loss terms of expert routers at the end.
    """
    nodes = graph.forward
    reads: set[str] = set()  # values of a layer, or values outside the layers that depend on one
    for node in nodes:
        if node.layer_index is not None or any(name in reads for name in node.inputs):
            reads.add(node.name)
    feeds: set[str] = set()  # values that a layer depends on
    for node in reversed(nodes):
        # Nodes that pass forward values to backward are no kernels, in whatever scope the compiler created them.
        if (node.layer_index is not None and is_kernel(node.op)) or node.name in feeds:
            feeds.update(node.inputs)
    ends = reads - feeds
    is_end = (node.layer_index is None and is_kernel(node.op) and node.name in ends for node in nodes)
    first = next((position for position, is_it in enumerate(is_end) if is_it), len(nodes))
    return [
        node.layer_index if node.layer_index is not None else (num_layers if position >= first else -1)
        for position, node in enumerate(nodes)
    ]


def find_start_operators(graph: Graph, segments: Sequence[int], num_layers: int) -> frozenset[str]:
    """Return the operators after the layers that run at the start of forward.

    The backend continues from each operator to those that become ready. Labels sliced from the same input as the tokens
    (legacy models have one input) are ready at the start, and so are operators that depend on them alone: the output of
    OneHot is live through all layers. Labels that are a separate input are read when the loss needs them
    (docs/internals/notes.md#labels-at-the-start-of-forward).
    """
    inputs = {name for name, tensor_type in graph.types.items() if len(tensor_type.shape) == 2}
    inputs -= {saved.backward_name for saved in graph.saved}
    inputs |= {node.name for node in graph.forward if is_slice_of_part(node)}
    step_inputs: set[str] = set()  # inputs of the step that are read before the layers
    for node, segment in zip(graph.forward, segments, strict=True):
        step_inputs.update(inputs.intersection(node.inputs) if segment < 0 else ())
    nodes = graph.index.forward_nodes
    ready: set[str] = set()
    for node, segment in zip(graph.forward, segments, strict=True):
        if segment == num_layers:
            operands = [name for name in node.inputs if name in nodes or name in step_inputs]
            if operands and all(name in step_inputs or name in ready for name in operands):
                ready.add(node.name)
    return frozenset(ready)


def backward_segments(graph: Graph, num_layers: int, after_layers: Set[str]) -> list[int]:
    """Return the segment of each backward operator.

    Backward traverses the layers in descending order; a layer starts at the gradient of one of its own operators. A
    recomputed operator belongs to the segment of its first reader. The gradient of an operator after the layers belongs
    there even if the compiler lists it later: it lists the head's gradient of a weight tied to the embedding just
    before the sum with the embedding's gradient, but the backend runs operators as soon as they are ready.

    Args:
        graph: compiled step.
        num_layers: number of its layers.
        after_layers: forward operators after the layers.
    """
    segments = _segments_in_order(graph, num_layers, after_layers)
    needed: dict[str, int] = {}  # value -> segment of its first reader
    for position in range(len(segments) - 1, -1, -1):
        node = graph.backward[position]
        if node.is_duplicate or node.op == "MoveTo" or not is_kernel(node.op):
            segments[position] = needed.get(node.name, segments[position])
        segment = segments[position]
        for name in node.inputs:
            if needed.get(name, -2) < segment:
                needed[name] = segment
    return _move_shared_loss_terms(graph, segments, num_layers, {saved.backward_name for saved in graph.saved})


def _segments_in_order(graph: Graph, num_layers: int, after_layers: Set[str]) -> list[int]:
    """Return the segment of each backward operator by execution order; arguments as in `backward_segments`."""
    values_after_layers = {saved.backward_name for saved in graph.saved if saved.forward_name in after_layers}
    segments: list[int] = []
    segment_of: dict[str, int] = {}  # value of backward -> segment of its producer
    current = num_layers

    def is_after_layers(node: Node) -> bool:
        if node.layer_index is not None:
            return False
        if node.origin:
            return node.origin in after_layers
        producers = [segment_of[name] for name in node.inputs if name in segment_of]
        depends_on_end = bool(producers) and all(segment == num_layers for segment in producers)
        return depends_on_end or not values_after_layers.isdisjoint(node.inputs)

    for node in graph.backward:
        if is_after_layers(node):
            segment = num_layers
        else:
            if is_kernel(node.op) and not node.is_duplicate:
                if node.layer_index is not None:
                    current = min(current, node.layer_index)
                elif current == 0:
                    current = -1
            segment = current
        segments.append(segment)
        segment_of[node.name] = segment
    return segments


def _move_shared_loss_terms(graph: Graph, segments: list[int], num_layers: int, saved: Set[str]) -> list[int]:
    """Move values that depend on the loss alone and are shared by layers to the segment after the layers.

    An example is the gradient of the loss terms of expert routers, which the compiler computes once.
    """
    segment_of = {node.name: segment for node, segment in zip(graph.backward, segments, strict=True)}
    loss_terms: set[str] = set()  # values that depend on the loss alone
    of_loss = {name for name, segment in segment_of.items() if segment == num_layers}
    for node in graph.backward:
        operands = [name for name in node.inputs if name in segment_of]
        if operands and of_loss.issuperset(operands) and saved.isdisjoint(node.inputs):
            loss_terms.add(node.name)
            of_loss.add(node.name)
    if all(segment_of[name] in (-1, num_layers) for name in loss_terms):  # most often
        return segments
    lowest: dict[str, int] = {}  # value -> segment of its last reader
    shared: set[str] = set()
    for node in reversed(graph.backward):
        segment = segment_of[node.name]
        if node.name in loss_terms and 0 <= segment < num_layers and lowest.get(node.name, segment) < segment - 1:
            shared.add(node.name)
        for name in node.inputs:
            lowest[name] = min(lowest.get(name, segment), -1 if node.name in shared else segment)
    return [num_layers if node.name in shared else segment_of[node.name] for node in graph.backward]
