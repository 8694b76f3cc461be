"""Sequence pipeline parallelism: caches of keys and values, and of their gradients, between pieces of a sequence.

Each layer has four parameters of the size of all its keys or values: `key_cache` and `value_cache`, to which forward of
a piece appends, and `key_cache_grad` and `value_cache_grad`, to which backward adds (mindformers 1.9.0,
models/llama/llama_transformer.py). The graph of the frontend does not contain the latter two: MindSpore inserts
`_VirtualAssignKvCache` after keys and values when it partitions the model for the pipeline; `with_cache_gradients` adds
the gradient of that operator (mindspore 2.9.0, ops/_grad_experimental/grad_comm_ops.py).
"""

from collections.abc import Iterator
from dataclasses import replace

from mindswap.graph.model import Graph, Node

CACHES = ("key_cache", "value_cache")
# Parameters that are never trained: the caches, the accumulated mask, the index of the piece.
STATE_NAMES = (*CACHES, "mask_cache", "seq_chunk")
# Outputs 1 and 2 of the gradient of attention: gradients of keys and values.
KEY_OUTPUTS = (1, 2)


def is_sequence_state(name: str) -> bool:
    """Return whether a parameter carries state from one piece of a sequence to the next."""
    return name.rpartition(".")[2] in STATE_NAMES


def is_cache(name: str) -> bool:
    """Return whether a parameter is a cache that `cache_bytes` counts."""
    return name.rpartition(".")[2] in CACHES


def cache_readers(graph: Graph) -> frozenset[str]:
    """Return the operators that compute with a cache or write one.

    They cannot be recomputed, because later pieces have changed the cache by then.
    """
    loads = {node.name for node in graph.forward if _is_cache(node)}
    if not loads:
        return frozenset()
    inside = (node for node in graph.forward if node.layer_index is not None and node.outputs)
    computing = (node for node in inside if node.op not in ("Load", "MakeTuple"))
    return frozenset(node.name for node in computing if node.op == "Assign" or not loads.isdisjoint(node.inputs))


def cache_bytes(graph: Graph, layer_index: int) -> int:
    """Return the bytes of the caches of one compiled layer, including those of gradients."""
    return 2 * sum(node.size_bytes for node in graph.forward if _is_cache(node) and node.layer_index == layer_index)


def with_cache_gradients(graph: Graph) -> Graph:
    """Return the graph in which backward adds the gradients of keys and values to their caches and uses the sums."""
    if not any(_is_cache(node) for node in graph.forward):
        return graph
    backward: list[Node] = []
    sums: dict[str, str] = {}  # gradient of keys or values -> its sum with the cache
    for node in graph.backward:
        backward.append(node.with_renamed_inputs(sums))
        gradient = graph.index.nodes.get(node.inputs[0]) if node.op == "TupleGetItem" else None
        is_of_attention = gradient is not None and gradient.op == "FlashAttentionScoreGrad"
        if is_of_attention and graph.constants.get(node.inputs[1]) in KEY_OUTPUTS:
            backward += _summed(node)
            sums[node.name] = f"{node.name}+cache"
    return replace(graph, backward=tuple(backward))


def _summed(gradient: Node) -> Iterator[Node]:
    """Yield the operators that add a gradient to its cache; the cache is zero for the first piece.

    The graph has no value for the cache. The gradient, which has the same size, replaces it as an input.
    """

    def make(op: str, suffix: str, inputs: tuple[str, ...]) -> Node:
        return replace(gradient, name=f"{gradient.name}+{suffix}", op=op, inputs=inputs, attributes={}, paths=())

    yield make("Add", "cache", (gradient.name, gradient.name))
    yield make("BroadcastTo", "zeros", ())
    yield make("Select", "left", (f"{gradient.name}+zeros", f"{gradient.name}+cache"))
    yield make("Assign", "assign", (f"{gradient.name}+left",))


def _is_cache(node: Node) -> bool:
    return node.op == "Load" and bool(node.inputs) and is_cache(node.inputs[0])
