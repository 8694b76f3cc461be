"""The part of a compiled step that is on one pipeline stage."""

import math
from dataclasses import replace

from mindswap.graph.model import Graph, Node, TensorType, find_dependents
from mindswap.graph.ops import BOOKKEEPING_OPS, RESHAPING_OPS, WEIGHT_OPS, SplitRule, operator_info
from mindswap.graph.passes.gather import GATHER_MARK, WEIGHT_MARK, GatheredStep, is_gathering, is_narrowing, weight_name


def drop_head(graph: Graph) -> Graph:
    """The step without head and loss: what comes after the last layer.

    In forward that is every operator that depends on a layer and that no layer depends on; in backward
    every operator before the first that reads what is left. The gradient that the next stage would send
    stays, as the gradient of the last layer's output.
    """
    of_layers = {node.name for node in graph.forward if node.layer_index is not None}
    after = find_dependents(graph.forward, of_layers)
    needed = set(of_layers)  # by layers
    for node in reversed(graph.forward):
        if node.name in needed:
            needed.update(node.inputs)
    for node in graph.forward:
        if node.op == "TupleGetItem" and node.inputs[0] in needed:  # the compiler's own, of no layer
            needed.add(node.name)
    head = after - needed
    saved = tuple(entry for entry in graph.saved if entry.forward_name not in head)
    # Operators of backward that depend on nothing a layer made belong to the head.
    rest = find_dependents(graph.backward, (entry.backward_name for entry in saved if entry.forward_name in after))
    return replace(
        graph,
        forward=tuple(node for node in graph.forward if node.name not in head),
        backward=tuple(node for node in graph.backward if node.name in rest),
        saved=saved,
    )


# The embedding of newer models: a function of one rank (`Morph`), which reads its weight itself.
#
# MindFormers 1.9.0, VocabParallelEmbedding of training_graph/tensor_parallel/layers.py: tokens are cut over data and
# context parallel ranks, the rows of the weight over tensor parallel ranks if they can be divided. The compiler leaves
# no strategy on what is inside, and no `Load` before the weight. With sequence parallelism it ends in a ReduceScatter
# between two transposes of all tokens.

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


def shard_embedding(graph: Graph, tensor_ranks: int, token_ranks: int) -> Graph:
    """The step with the part of an embedding that one rank has; unchanged if it has another kind of embedding."""
    embedding = next((node for node in graph.forward if node.op == EMBEDDING and not node.cell_path), None)
    if embedding is None:
        return graph
    sources = [graph.index.forward_nodes[name] for name in embedding.inputs if name in graph.index.forward_nodes]
    weight_types = [node.outputs[0] for node in sources if node.op in WEIGHT_OPS and node.outputs]
    num_tokens = embedding.outputs[0].shape[0]
    num_elements = math.prod(embedding.outputs[0].shape)
    scattered: set[str] = set()  # values of which each tensor parallel rank has a part of the sequence

    def shard(node: Node) -> Node:
        if node.cell_path or node.layer_index is not None or not node.outputs:
            return node
        tensor_type = node.outputs[0]
        is_weight = node.op in WEIGHT_OPS or node.op == GRADIENT
        if is_weight and tensor_type in weight_types:
            return replace(node, outputs=(_rows(tensor_type, tensor_ranks),))
        if not is_weight and tensor_type.shape[:1] == (num_tokens,):
            return replace(node, outputs=(_rows(tensor_type, token_ranks), *node.outputs[1:]))
        moves_tokens = (
            node.op in ("ReduceScatter", "AllGather") or operator_info(node.op).split_rule is SplitRule.TRANSPOSE
        )
        if (moves_tokens or node.op in RESHAPING_OPS) and math.prod(tensor_type.shape) == num_elements:
            part = _tokens(tensor_type, token_ranks)
            if node.op == "ReduceScatter" or scattered.intersection(node.inputs):
                scattered.add(node.name)
                part = _tokens(part, tensor_ranks)
            return replace(node, outputs=(part,))
        # What was cut from whole tokens is the own part by now.
        return replace(node, op="Reshape") if node.op == "Slice" else node

    return replace(graph, forward=tuple(map(shard, graph.forward)), backward=tuple(map(shard, graph.backward)))


def _rows(tensor_type: TensorType, parts: int, axis: int = 0) -> TensorType:
    """One of equal parts of the rows; all of them if they cannot be divided."""
    if tensor_type.shape[axis] % parts:
        return tensor_type
    shape = (*tensor_type.shape[:axis], tensor_type.shape[axis] // parts, *tensor_type.shape[axis + 1 :])
    return TensorType(shape, tensor_type.dtype, tensor_type.size_bytes // parts)


def _tokens(tensor_type: TensorType, parts: int) -> TensorType:
    """One of equal parts of (samples, sequence, width) or (sequence, samples, width), cut where it is thinnest."""
    divisible = [axis for axis, size in enumerate(tensor_type.shape[:-1]) if size % parts == 0]
    return (
        _rows(tensor_type, parts, min(divisible, key=lambda axis: tensor_type.shape[axis]))
        if divisible
        else tensor_type
    )


# Casts of weights that all micro-batches share, where the parallel optimizer has nothing to gather.
#
# With `enable_parallel_optimizer` and several micro-batches MindSpore casts a float32 weight before the calls of the
# lazy_inline cell, not in it: step_parallel_utils.cc, FindChildCastWithFP32ToFP16 (follows the weight into the called
# function; pipeline or accumulation only, and only if all readers are casts) and CreateFP16Cast. CheckApplyZero lets a
# weight through in a pipeline that no other rank shares; `MicroStepAllGatherPass` then drops the AllGather and leaves
# the cast. So there is one copy in half precision, from the first micro-batch to the last, and no policy reaches it.
# Casts of gathered weights are in `graph.passes.gather`. Without the parallel optimizer each micro-batch has casts of
# its own.
#
# Without lazy_inline all micro-batches are in one graph. No side effect stands between their reads of a weight, so
# AutoMonadEliminator and the frontend's cse make one of equal casts, whatever their types.


def share_casts(step: GatheredStep, lacks_lazy_inline: bool = False) -> GatheredStep:
    """The step with casts of weights marked as made once, for all micro-batches.

    Those of gathered weights before the AllGather are so already; without lazy_inline casts of any type are, also those
    behind an AllGather.
    """
    weights: dict[str, str] = {}  # name of a value -> the parameter that it is
    readers: dict[str, list[Node]] = {}
    for node in step.graph.forward:
        name = weight_name(node)
        if name and node.outputs and (lacks_lazy_inline or node.outputs[0].dtype == "float32"):
            weights[node.name] = name
            continue
        for source in {weights[name] for name in node.inputs if name in weights}:
            if node.op == "TensorMove" or (lacks_lazy_inline and is_gathering(node)):
                weights[node.name] = source
            elif node.op not in BOOKKEEPING_OPS:
                readers.setdefault(source, []).append(node)
    shared = {
        node.name
        for nodes in readers.values()
        for node in nodes
        if not is_gathering(node) and (node.op == "Cast" if lacks_lazy_inline else all(map(is_narrowing, nodes)))
    }
    if not shared:
        return step
    forward = tuple(
        replace(node, attributes={**node.attributes, GATHER_MARK: False}) if node.name in shared else node
        for node in step.graph.forward
    )
    return replace(step, graph=replace(step.graph, forward=forward), computed_once=step.computed_once | shared)
