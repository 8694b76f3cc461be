"""Constants of a step: placeholders for large ones, and the device memory that constants need."""

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace

from mindswap.graph.model import Graph, Node
from mindswap.graph.ops import COMMUNICATION_OPS, RANDOM_OPS, TUPLE_OPS, VIEW_OPS, WEIGHT_OPS, WRITING_OPS
from mindswap.graph.sequences import is_cache

# A constant too large for a protobuf is captured as a parameter of this name below its cell.
STAND_IN_NAME = "lower_triangle_mask"
# Operators that run in every micro-batch, even if they read only constants.
PER_MICRO_BATCH_OPS = WEIGHT_OPS | RANDOM_OPS | WRITING_OPS | COMMUNICATION_OPS


def restore_constants(graph: Graph) -> Graph:
    """Turn the parameters named `STAND_IN_NAME` back into constants: remove the operators that read them as weights.

    A constant is a name with a type and without a node, so only the reads are removed; their names remain.
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
    """Return the bytes of the constants and inputs of a step, by the only layer that reads them; None for all others.

    They are on the device during the entire step: the runtime copies constants there before the first step and never
    frees them. The largest are causal masks without compression and the tables of rotary embedding.
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
    """Return the forward operators outside the layers that read only constants.

    Returns:
        For each operator, the operators that own its memory: a view of a constant is a copy and owns its memory, a view
            of such a copy and a tuple do not.
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
            shares_memory = node.op in TUPLE_OPS or (node.op in VIEW_OPS and owners)
            constant_values[node.name] = owners if shares_memory else frozenset({node.name})
    return constant_values


def constant_operator_bytes(graph: Graph) -> tuple[int, int]:
    """Return the bytes of tensors computed from constants only: read by forward alone, and also read by backward.

    All micro-batches share one copy, which is live until the last of them has read it (seen in dry runs of MindSpore
    2.9.0 for a causal mask without compression and for rotary tables).
    """
    constant_values, nodes = constant_operators(graph), graph.index.forward_nodes

    def bytes_of(names: Set[str]) -> int:
        return sum(nodes[name].size_bytes for name in names)

    def owners_of(names: Iterable[str]) -> frozenset[str]:
        return frozenset().union(*(constant_values.get(name, ()) for name in names))

    read = owners_of(name for node in graph.forward if node.name not in constant_values for name in node.inputs)
    read_by_backward = owners_of(saved.forward_name for saved in graph.saved)
    return bytes_of(read - read_by_backward), bytes_of(read_by_backward)
