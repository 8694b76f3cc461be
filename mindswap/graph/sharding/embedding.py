"""The embedding of newer models: a function of one rank (`Morph`), which reads its weight itself.

MindFormers 1.9.0, VocabParallelEmbedding of training_graph/tensor_parallel/layers.py: tokens are cut over
data and context parallel ranks, the rows of the weight over tensor parallel ranks if they can be divided. The compiler
leaves no strategy on what is inside, and no `Load` before the weight.
"""

from dataclasses import replace

from mindswap.graph.model import Graph, Node, TensorType
from mindswap.graph.ops import WEIGHT_OPS
from mindswap.graph.sharding.gather import WEIGHT_MARK

EMBEDDING, GRADIENT = "Embedding", "EmbeddingDenseBackward"


def load_embedding(graph: Graph) -> Graph:
    """The step in which an embedding reads its weight as other operators do, behind a `Load`."""
    forward: list[Node] = []
    for node in graph.forward:
        read = [name for name in node.inputs if node.op == EMBEDDING and WEIGHT_MARK in name and name in graph.types]
        names = {name: f"{name}@load" for name in read}
        for name in read:
            load = replace(node, op="Load", inputs=(name,), outputs=(graph.types[name],), attributes={}, paths=())
            forward.append(replace(load, name=names[name]))
        forward.append(node.renamed(names))
    return replace(graph, forward=tuple(forward))


def cut_embedding(graph: Graph, tensor_ranks: int, token_ranks: int) -> Graph:
    """The step with the part of an embedding that one rank has; unchanged if it has another kind of embedding."""
    embedding = next((node for node in graph.forward if node.op == EMBEDDING and not node.cell_path), None)
    if embedding is None:
        return graph
    sources = [graph.forward_nodes[name] for name in embedding.inputs if name in graph.forward_nodes]
    whole = [node.outputs[0] for node in sources if node.op in WEIGHT_OPS and node.outputs]
    num_tokens = embedding.outputs[0].shape[0]

    def own(node: Node) -> Node:
        if node.cell_path or node.layer_index is not None or not node.outputs:
            return node
        known = node.outputs[0]
        is_weight = node.op in WEIGHT_OPS or node.op == GRADIENT
        if is_weight and known in whole:
            return replace(node, outputs=(_rows(known, tensor_ranks),))
        if not is_weight and known.shape[:1] == (num_tokens,):
            return replace(node, outputs=(_rows(known, token_ranks), *node.outputs[1:]))
        # What was cut from whole tokens is the own part by now.
        return replace(node, op="Reshape") if node.op == "Slice" else node

    return replace(graph, forward=tuple(map(own, graph.forward)), backward=tuple(map(own, graph.backward)))


def _rows(known: TensorType, parts: int) -> TensorType:
    """One of equal parts of the rows; all of them if they cannot be divided."""
    if known.shape[0] % parts:
        return known
    return TensorType((known.shape[0] // parts, *known.shape[1:]), known.dtype, known.size_bytes // parts)
