"""The part of a compiled step on one pipeline stage."""

import math
from dataclasses import replace

from mindswap.graph.model import Graph, Node, TensorType, find_dependents
from mindswap.graph.ops import BOOKKEEPING_OPS, RESHAPING_OPS, WEIGHT_OPS, SplitRule, operator_info
from mindswap.graph.passes.gather import GATHER_MARK, WEIGHT_MARK, GatheredStep, is_gathering, is_narrowing, weight_name


def drop_head(graph: Graph) -> Graph:
    """Remove head and loss, everything after the last layer.

    In forward these are the operators that depend on a layer and on which no layer depends; in backward all operators
    before the first reader of the remaining saved values. The gradient that the next stage would send remains as the
    gradient of the last layer's output.
    """
    of_layers = {node.name for node in graph.forward if node.layer_index is not None}
    after = find_dependents(graph.forward, of_layers)
    needed = set(of_layers)  # by layers
    for node in reversed(graph.forward):
        if node.name in needed:
            needed.update(node.inputs)
    for node in graph.forward:
        if node.op == "TupleGetItem" and node.inputs[0] in needed:  # inserted by the compiler outside the layers
            needed.add(node.name)
    head = after - needed
    saved = tuple(entry for entry in graph.saved if entry.forward_name not in head)
    # Operators of backward that do not depend on the output of a layer belong to the head.
    kept = find_dependents(graph.backward, (entry.backward_name for entry in saved if entry.forward_name in after))
    return replace(
        graph,
        forward=tuple(node for node in graph.forward if node.name not in head),
        backward=tuple(node for node in graph.backward if node.name in kept),
        saved=saved,
    )


# Embedding of newer models: a function of one rank (`Morph`), which reads its weight directly.
#
# MindFormers 1.9.0, VocabParallelEmbedding of training_graph/tensor_parallel/layers.py: tokens are sharded over data
# and context parallel ranks, rows of the weight over tensor parallel ranks if they are divisible. The compiler leaves
# no strategy on its operators and no `Load` before the weight. With sequence parallelism it ends in a ReduceScatter
# between two transposes of all tokens.

EMBEDDING, GRADIENT = "Embedding", "EmbeddingDenseBackward"


def load_embedding(graph: Graph) -> Graph:
    """Return the graph with a `Load` before the weight of the embedding, as other operators have it."""
    forward: list[Node] = []
    for node in graph.forward:
        read = [name for name in node.inputs if node.op == EMBEDDING and WEIGHT_MARK in name and name in graph.types]
        names = {name: f"{name}@load" for name in read}
        for name in read:
            load = replace(node, op="Load", inputs=(name,), outputs=(graph.types[name],), attributes={}, paths=())
            forward.append(replace(load, name=names[name]))
        forward.append(node.with_renamed_inputs(names))
    return replace(graph, forward=tuple(forward))


def shard_embedding(graph: Graph, tensor_ranks: int, token_ranks: int) -> Graph:
    """Return the graph with the embedding sharded for one rank; unchanged for other kinds of embedding.

    Args:
        graph: the step.
        tensor_ranks: tensor parallel ranks, which shard the weight.
        token_ranks: data and context parallel ranks, which shard the tokens.
    """
    embedding = next((node for node in graph.forward if node.op == EMBEDDING and not node.cell_path), None)
    if embedding is None:
        return graph
    sources = [graph.index.forward_nodes[name] for name in embedding.inputs if name in graph.index.forward_nodes]
    weight_types = [node.outputs[0] for node in sources if node.op in WEIGHT_OPS and node.outputs]
    num_tokens = embedding.outputs[0].shape[0]
    num_elements = math.prod(embedding.outputs[0].shape)
    scattered: set[str] = set()  # values of which each tensor parallel rank holds a part of the sequence

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
            shard_type = _tokens(tensor_type, token_ranks)
            if node.op == "ReduceScatter" or scattered.intersection(node.inputs):
                scattered.add(node.name)
                shard_type = _tokens(shard_type, tensor_ranks)
            return replace(node, outputs=(shard_type,))
        # Slices of unsharded tokens select the shard, which the input already is.
        return replace(node, op="Reshape") if node.op == "Slice" else node

    return replace(graph, forward=tuple(map(shard, graph.forward)), backward=tuple(map(shard, graph.backward)))


def _rows(tensor_type: TensorType, parts: int, axis: int = 0) -> TensorType:
    """Return the type of one shard along an axis; unchanged if the axis is not divisible."""
    if tensor_type.shape[axis] % parts:
        return tensor_type
    shape = (*tensor_type.shape[:axis], tensor_type.shape[axis] // parts, *tensor_type.shape[axis + 1 :])
    return TensorType(shape, tensor_type.dtype, tensor_type.size_bytes // parts)


def _tokens(tensor_type: TensorType, parts: int) -> TensorType:
    """Return the type of a shard of (samples, sequence, width) or (sequence, samples, width), along its short axis."""
    divisible = [axis for axis, size in enumerate(tensor_type.shape[:-1]) if size % parts == 0]
    return (
        _rows(tensor_type, parts, min(divisible, key=lambda axis: tensor_type.shape[axis]))
        if divisible
        else tensor_type
    )


# Casts of weights shared by all micro-batches, where the parallel optimizer gathers nothing.
#
# With `enable_parallel_optimizer` and several micro-batches MindSpore casts a float32 weight before the calls of the
# lazy_inline cell: step_parallel_utils.cc, FindChildCastWithFP32ToFP16 (follows the weight into the called function;
# only with pipelining or accumulation, and only if all readers are casts) and CreateFP16Cast. CheckApplyZero accepts a
# weight that no other rank shares if there is a pipeline; `MicroStepAllGatherPass` then removes the AllGather and keeps
# the cast. One copy in half precision is therefore live from the first micro-batch to the last, and no policy affects
# it. Casts of gathered weights are in `graph.passes.gather`. Without the parallel optimizer each micro-batch has casts
# of its own.
#
# Without lazy_inline all micro-batches are in one graph. No side effect separates their reads of a weight, so
# AutoMonadEliminator and common subexpression elimination merge equal casts of any type.


def share_casts(step: GatheredStep, lacks_lazy_inline: bool = False) -> GatheredStep:
    """Mark the casts of weights that all micro-batches share.

    Args:
        step: casts before its AllGathers are marked already.
        lacks_lazy_inline: all equal casts are shared, including those after an AllGather.
    """
    weights: dict[str, str] = {}  # name of a value -> name of its parameter
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
