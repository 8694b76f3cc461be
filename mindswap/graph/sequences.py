"""State that a step has where sequences are cut into pieces: caches of keys and values, and of their gradients.

Each layer has four parameters of the size of all its keys or values: `key_cache` and `value_cache`, to which forward of
a piece adds its own, and `key_cache_grad` and `value_cache_grad`, to which backward adds (mindformers 1.9.0,
models/llama/llama_transformer.py). The last two are in no graph of the frontend alone: MindSpore puts
`_VirtualAssignKvCache` behind keys and values when it cuts the model for the pipeline, and its gradient is what
`with_cache_gradients` adds (mindspore 2.9.0, ops/_grad_experimental/grad_comm_ops.py).
"""

from collections.abc import Iterator
from dataclasses import replace

from mindswap.graph.model import Graph, Node

CACHES = ("key_cache", "value_cache")
# Parameters of the model that are never trained: the caches, the mask so far, the number of the piece.
STATE_NAMES = (*CACHES, "mask_cache", "seq_chunk")
# Gradients of queries, keys, values: outputs of the gradient of attention.
KEY_OUTPUTS = (1, 2)


def is_sequence_state(name: str) -> bool:
    """True for a parameter that pieces of a sequence hand to each other."""
    return name.rpartition(".")[2] in STATE_NAMES


def is_cache(name: str) -> bool:
    """True for a cache of a layer, which `cache_bytes` counts."""
    return name.rpartition(".")[2] in CACHES


def cache_readers(graph: Graph) -> frozenset[str]:
    """Operators that compute with a cache, or write one. Run again, they would meet what later pieces left there."""
    loads = {node.name for node in graph.forward if _is_cache(node)}
    if not loads:
        return frozenset()
    inside = (node for node in graph.forward if node.layer_index is not None and node.outputs)
    computing = (node for node in inside if node.op not in ("Load", "MakeTuple"))
    return frozenset(node.name for node in computing if node.op == "Assign" or not loads.isdisjoint(node.inputs))


def cache_bytes(graph: Graph, layer_index: int) -> int:
    """Bytes of the caches of one compiled layer, those of gradients too."""
    return 2 * sum(node.size_bytes for node in graph.forward if _is_cache(node) and node.layer_index == layer_index)


def with_cache_gradients(graph: Graph) -> Graph:
    """The step in which backward adds gradients of keys and values to their caches, and goes on with the sums."""
    if not any(_is_cache(node) for node in graph.forward):
        return graph
    backward: list[Node] = []
    sums: dict[str, str] = {}  # gradient of keys or values -> its sum with the cache
    for node in graph.backward:
        backward.append(node.renamed(sums))
        gradient = graph.index.nodes.get(node.inputs[0]) if node.op == "TupleGetItem" else None
        is_of_attention = gradient is not None and gradient.op == "FlashAttentionScoreGrad"
        if is_of_attention and graph.constants.get(node.inputs[1]) in KEY_OUTPUTS:
            backward += _summed(node)
            sums[node.name] = f"{node.name}+cache"
    return replace(graph, backward=tuple(backward))


def _summed(gradient: Node) -> Iterator[Node]:
    """The sum goes on to the products; the cache gets it, and zeros behind the first piece.

    The cache itself is not a value of the graph. It has the size of the gradient, which stands for it where it is read.
    """

    def make(op: str, suffix: str, inputs: tuple[str, ...]) -> Node:
        return replace(gradient, name=f"{gradient.name}+{suffix}", op=op, inputs=inputs, attributes={}, paths=())

    yield make("Add", "cache", (gradient.name, gradient.name))
    yield make("BroadcastTo", "zeros", ())
    yield make("Select", "left", (f"{gradient.name}+zeros", f"{gradient.name}+cache"))
    yield make("Assign", "assign", (f"{gradient.name}+left",))


def _is_cache(node: Node) -> bool:
    return node.op == "Load" and bool(node.inputs) and is_cache(node.inputs[0])
