"""Constants of a step: stand-ins for those too large to capture, and what they take of the device's memory."""

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace

from mindswap.graph.model import Graph, Node
from mindswap.graph.ops import COMMUNICATION_OPS, RANDOM_OPS, TUPLE_OPS, VIEW_OPS, WEIGHT_OPS, WRITING_OPS
from mindswap.graph.sequences import is_cache

# A parameter that the capture puts in place of a constant too large for a protobuf has this name below its cell.
STAND_IN_NAME = "lower_triangle_mask"
# Not made once for all micro-batches, whatever they read.
PER_MICRO_BATCH_OPS = WEIGHT_OPS | RANDOM_OPS | WRITING_OPS | COMMUNICATION_OPS


def restore_constants(graph: Graph) -> Graph:
    """The step in which parameters called `STAND_IN_NAME` are constants again: no operator reads them from a weight.

    A constant is a name with a type and no node. So the reads of such a parameter go, and their names stay.
    """
    marked: dict[str, Node] = {}
    for node in graph.forward:
        source = node.inputs[0] if node.inputs else ""
        if node.op in WEIGHT_OPS and (source.endswith(f".{STAND_IN_NAME}") or source in marked):
            marked[node.name] = node
    if not marked:
        return graph
    types = {name: node.outputs[0] for name, node in marked.items() if node.outputs}
    forward = tuple(node for node in graph.forward if node.name not in marked)
    return replace(graph, forward=forward, types={**graph.types, **types})


def constant_bytes(graph: Graph) -> Mapping[int | None, int]:
    """Bytes of the constants and inputs that a step reads, by the layer that alone reads them; None for all others.

    They are on the device all the time: the runtime copies constants there before the first step and never frees
    them. A causal mask without compression and the tables of rotary embedding are the large ones.
    """
    saved_names = {saved.backward_name for saved in graph.saved}
    readers: dict[str, set[int | None]] = {}
    for node in (*graph.forward, *graph.backward):
        for name in node.inputs if node.op not in WEIGHT_OPS else ():
            if name in graph.types and name not in saved_names and not is_cache(name):
                readers.setdefault(name, set()).add(node.layer_index)
    layer_bytes: Counter[int | None] = Counter()
    for name, layers in readers.items():
        layer_bytes[next(iter(layers)) if len(layers) == 1 else None] += graph.types[name].size_bytes
    return layer_bytes


def constant_operators(graph: Graph) -> Mapping[str, frozenset[str]]:
    """Forward operators outside the layers that read constants alone, each with those whose memory it gives.

    A view of a constant is a copy of it; one of such a copy is none, nor is a tuple of them.
    """
    outside = {*graph.inputs, *(saved.backward_name for saved in graph.saved)}
    constant_values: dict[str, frozenset[str]] = {}
    for node in graph.forward:
        if node.layer_index is not None or node.op in PER_MICRO_BATCH_OPS:
            continue
        tensors = [name for name in node.inputs if name in graph.types or name in graph.index.forward_nodes]
        if tensors and all(
            name in constant_values or (name in graph.types and name not in outside) for name in tensors
        ):
            owners = frozenset().union(*(constant_values.get(name, ()) for name in tensors))
            is_given = node.op in TUPLE_OPS or (node.op in VIEW_OPS and owners)
            constant_values[node.name] = owners if is_given else frozenset({node.name})
    return constant_values


def constant_operator_bytes(graph: Graph) -> tuple[int, int]:
    """Bytes of what is made of constants alone: of what only forward reads, and of what backward reads too.

    Several micro-batches make it once, and it is there until the last of them has read it (dry runs of 2.9.0: a causal
    mask without compression, tables of rotary embedding).
    """
    constant_values, nodes = constant_operators(graph), graph.index.forward_nodes

    def bytes_of(names: Set[str]) -> int:
        return sum(nodes[name].size_bytes for name in names)

    def owners_of(names: Iterable[str]) -> frozenset[str]:
        return frozenset().union(*(constant_values.get(name, ()) for name in names))

    read = owners_of(name for node in graph.forward if node.name not in constant_values for name in node.inputs)
    read_by_backward = owners_of(saved.forward_name for saved in graph.saved)
    return bytes_of(read - read_by_backward), bytes_of(read_by_backward)
