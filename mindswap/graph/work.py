"""How much an operator computes and moves: the ground of every cost model. Pure.

Counts only; how long it takes is for `cost/` to say.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from mindswap.graph.model import Graph, Node, TensorType
from mindswap.graph.storage import VIEW_OPS

__all__ = ["ATTENTION_OPS", "MATMUL_OPS", "NO_WORK_OPS", "Work", "count_attention_pairs", "measure_work"]

MATMUL_OPS = frozenset({"MatMul", "MatMulExt", "BatchMatMul", "BatchMatMulExt", "GroupedMatmul"})
# Operators of the compiler's own, views, and reads of weights: no work. Copies are the links' work.
NO_WORK_OPS = frozenset(
    {*VIEW_OPS, "TupleGetItem", "MakeTuple", "Load", "UpdateState", "Partial", "MoveTo", "Return", "Constant"}
)
# Products with the head size of queries and keys, and with that of values: scores and output; in backward scores
# again, the gradients of scores and values, and those of queries and keys.
ATTENTION_OPS = {"FlashAttentionScore": (1, 1), "FlashAttentionScoreGrad": (3, 2)}
# These read only the rows that they give, not the whole of their first input.
PARTIAL_READ_OPS = frozenset({"Gather", "StridedSlice", "Slice", "SliceExt", "Embedding"})
# Where the sequence is in the operands of attention, by layout number (FASInputLayoutMode of MindSpore).
SEQUENCE_AXIS = {0: 1, 1: 2, 2: 0, 3: 1, 4: 0}  # BSH, BNSD, SBH, BSND, TND
# Last inputs of both attention operators: tokens before, tokens after, inner precision, layout, sparse mode.
NUM_ATTENTION_INTEGERS = 5
MASK_DTYPES = ("bool", "uint8")


@dataclass(frozen=True)
class Work:
    """What one run of an operator takes.

    Attributes:
        flops: floating point operations. A multiply-add of a matrix product counts as two, any other operator
            as one for each element. Attention counts the pairs of positions that its mask leaves: kernels skip the
            rest.
        read_bytes: bytes of the inputs, each once.
        written_bytes: bytes of the outputs.
        inputs: types of the tensors it reads, members of tuples one by one.
    """

    flops: int
    read_bytes: int
    written_bytes: int
    inputs: tuple[TensorType, ...] = ()


def measure_work(graph: Graph) -> tuple[tuple[Work, ...], tuple[Work, ...]]:
    """Work of every operator of forward and of backward, in the order of the nodes."""
    forward_types = {**_types(graph.types), **{node.name: node.outputs for node in graph.forward}}
    # The types of a graph that was cut for one rank are those of its nodes: they go before those of parameters.
    saved = {s.backward_name: forward_types[s.forward_name] for s in graph.saved if s.forward_name in forward_types}
    backward_types = {**_types(graph.types), **saved, **{node.name: node.outputs for node in graph.backward}}
    return (
        tuple(_measure(graph, node, forward_types) for node in graph.forward),
        tuple(_measure(graph, node, backward_types) for node in graph.backward),
    )


def _types(types: Mapping[str, TensorType]) -> dict[str, tuple[TensorType, ...]]:
    return {name: (known,) for name, known in types.items()}


def _measure(graph: Graph, node: Node, types: Mapping[str, tuple[TensorType, ...]]) -> Work:
    if node.op in NO_WORK_OPS:
        return Work(0, 0, 0)
    inputs = tuple(known for name in node.inputs for known in types.get(name, ()))
    read_bytes = sum(known.size_bytes for known in inputs)
    if node.op in PARTIAL_READ_OPS and inputs:
        read_bytes += min(node.size_bytes, inputs[0].size_bytes) - inputs[0].size_bytes
    return Work(_count_flops(graph, node, inputs), read_bytes, node.size_bytes, inputs)


def _count_flops(graph: Graph, node: Node, inputs: tuple[TensorType, ...]) -> int:
    elements = sum(math.prod(output.shape) for output in node.outputs)
    if node.op in MATMUL_OPS and inputs and node.outputs and node.outputs[0].shape:
        # The first operand has one number for each output row and each of the summed products.
        num_rows = elements // max(node.outputs[0].shape[-1], 1)
        return 2 * elements * (math.prod(inputs[0].shape) // max(num_rows, 1))
    if node.op in ATTENTION_OPS and len(inputs) >= 3:
        return _count_attention_flops(graph, node, inputs)
    # A reduction has work though its output is small.
    whole_reads = inputs[1:] if node.op in PARTIAL_READ_OPS else inputs
    return max(elements, *(math.prod(known.shape) for known in whole_reads), 0)


def _count_attention_flops(graph: Graph, node: Node, inputs: tuple[TensorType, ...]) -> int:
    query, key = inputs[0].shape, inputs[1].shape
    # As large as the attention output: heads of the query, head size of the value. Backward is handed its gradient.
    output = node.outputs[-1].shape if node.op == "FlashAttentionScore" else inputs[3].shape
    given = [graph.constants.get(name) for name in node.inputs[-NUM_ATTENTION_INTEGERS:]]
    before, after, _, layout, sparse_mode = (*given, *[None] * NUM_ATTENTION_INTEGERS)[:NUM_ATTENTION_INTEGERS]
    axis = SEQUENCE_AXIS[1 if layout is None else layout]
    num_queries, num_keys = query[axis], key[axis]
    pairs = num_queries * num_keys
    if sparse_mode is not None and before is not None and after is not None:
        has_mask = any(known.dtype in MASK_DTYPES for known in inputs)
        pairs = count_attention_pairs(num_queries, num_keys, sparse_mode, before, after, has_mask)
    with_keys, with_values = ATTENTION_OPS[node.op]
    per_pair = with_keys * math.prod(query) // num_queries + with_values * math.prod(output) // num_queries
    return 2 * pairs * per_pair


@functools.lru_cache(maxsize=256)
def count_attention_pairs(
    num_queries: int, num_keys: int, sparse_mode: int, before: int, after: int, has_mask: bool
) -> int:
    """Pairs of a query and a key that attention computes, for one head of one sequence.

    Blocks that the mask leaves empty are skipped; those that it leaves in part are counted in part here.

    Args:
        num_queries, num_keys: positions.
        sparse_mode: of FlashAttentionScore; 0 band by `before` and `after` where there is a mask, 1 whole mask,
            2 causal from the first key, 3 causal to the last key, 4 band counted from the last key. Others count
            every pair.
        before, after: keys that a query sees behind and ahead of its own position.
        has_mask: a mask is given.

    Source:
        Documentation of mindspore.ops.flash_attention_score and of CANN's aclnnFlashAttentionScore.
    """
    if sparse_mode == 2:
        shift, before, after = 0, num_queries + num_keys, 0
    elif sparse_mode == 3:
        shift, before, after = num_keys - num_queries, num_queries + num_keys, 0
    elif sparse_mode == 4:
        shift = num_keys - num_queries
    elif sparse_mode == 0 and has_mask:
        shift = 0
    else:
        return num_queries * num_keys
    pairs = 0
    for query in range(num_queries):
        first, last = max(0, query + shift - before), min(num_keys - 1, query + shift + after)
        pairs += max(0, last - first + 1)
    return pairs
