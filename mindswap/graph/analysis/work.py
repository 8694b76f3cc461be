"""Floating point operations and bytes of an operator: the ground of every cost model.

Counts only; how long it takes is for `cost/` to say.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from mindswap.graph.model import Graph, Node, TensorType
from mindswap.graph.ops import MATMUL_OPS, NO_WORK_OPS, PARTIAL_READ_OPS, OpClass, classify, operator_info
from mindswap.graph.passes.interleaved_halves import ring_axes, ring_flops
from mindswap.graph.sequences import cache_readers

# Where the sequence is in the operands of attention, by layout number (FASInputLayoutMode of MindSpore).
BNSD = 1
SEQUENCE_AXIS = {0: 1, 1: 2, 2: 0, 3: 1, 4: 0}  # BSH, BNSD, SBH, BSND, TND
# Last inputs of both attention operators: tokens before, tokens after, inner precision, layout, sparse mode.
NUM_ATTENTION_INTEGERS, LAYOUT = 5, 3
MASK_DTYPES = ("bool", "uint8")
# Last inputs of a product: whether its first and its second operand are transposed.
NUM_TRANSPOSES = 2
# Types of the tensors behind each value.
_Types = Mapping[str, tuple[TensorType, ...]]


@dataclass(frozen=True)
class Work:
    """Work of one run of an operator."""

    # floating point operations. A multiply-add of a matrix product counts as two, any other operator as one for each
    # element. Attention counts the pairs of positions that its mask leaves: kernels skip the rest
    flops: int
    read_bytes: int  # of the inputs, each once
    written_bytes: int  # of the outputs
    inputs: tuple[TensorType, ...] = ()  # types of the tensors it reads, members of tuples one by one
    is_fused: bool = False  # it runs in the kernel of an operator before it (`graph.passes.fusion`)
    is_weight_gradient: bool = False  # a product with a transposed first operand, as gradients of weights are
    # of attention of cut sequences, `flops` of each piece, whose mean `flops` is then
    piece_flops: tuple[int, ...] = ()


def measure_work(graph: Graph) -> tuple[tuple[Work, ...], tuple[Work, ...]]:
    """Work of every operator of forward and of backward, in the order of the nodes."""
    meter = WorkMeter(graph)
    forward = tuple(meter.measure(node, is_forward=True) for node in graph.forward)
    return forward, tuple(meter.measure(node, is_forward=False) for node in graph.backward)


class WorkMeter:
    """Measures operators of a graph, those that are asked for."""

    def __init__(self, graph: Graph):
        self.graph = graph
        given = {name: (tensor_type,) for name, tensor_type in graph.types.items()}
        forward_types = {**given, **{node.name: node.outputs for node in graph.forward}}
        # The types of a graph that was cut for one rank are those of its nodes: they go before those of parameters.
        saved = {s.backward_name: forward_types[s.forward_name] for s in graph.saved if s.forward_name in forward_types}
        # Operators that `graph.passes.swap_recompute` lets run again read weights under their names in forward.
        backward_types = {**forward_types, **saved, **{node.name: node.outputs for node in graph.backward}}
        self._types: tuple[_Types, _Types] = (backward_types, forward_types)
        self._has_pieces = bool(cache_readers(graph))

    def measure(self, node: Node, is_forward: bool) -> Work:
        """Work of an operator of forward or of backward."""
        return _measure(self.graph, node, self._types[is_forward], self._has_pieces)


def _with_pieces(work: Work) -> Work:
    """Attention of pieces of a sequence: the first sees its own keys, the last one those of all.

    Piece i of n with q queries each has i q q + q (q + 1) / 2 pairs of n q q: MindSpore moves the band of the mask by
    i q (solve_flash_attention_score_for_seqpipe.cc; flash_attention_score_info.cc,
    `ComputeSparseInfoForFlashAttentionScore`). What is counted without pieces is the last one.
    """
    num_queries, num_keys = (tensor_type.shape[SEQUENCE_AXIS[BNSD]] for tensor_type in work.inputs[:2])
    pairs = [i * num_queries**2 + num_queries * (num_queries + 1) // 2 for i in range(num_keys // num_queries)]
    flops = tuple(work.flops * piece_pairs // pairs[-1] for piece_pairs in pairs)
    return replace(work, flops=sum(flops) // len(flops), piece_flops=flops)


def _measure(graph: Graph, node: Node, types: _Types, has_pieces: bool) -> Work:
    inputs = tuple([tensor_type for name in node.inputs for tensor_type in types.get(name, ())])
    is_attention = classify(node.op) is OpClass.ATTENTION
    if not is_attention and node.op not in MATMUL_OPS:
        return count_work(node.op, inputs, node.outputs)
    constants = [graph.constants.get(name) for name in node.inputs[-NUM_ATTENTION_INTEGERS:]]
    work = count_work(node.op, inputs, node.outputs, tuple(constants) if is_attention else ())
    num_ranks, _ = ring_axes(graph, node) if is_attention else (1, 1)
    if num_ranks > 1:
        layout = constants[LAYOUT]
        num_queries = inputs[0].shape[SEQUENCE_AXIS[BNSD if layout is None else layout]]
        work = replace(work, flops=ring_flops(work.flops, num_queries, num_ranks))
    if has_pieces and is_attention and len(inputs) > 1:
        return _with_pieces(work)
    if node.op in MATMUL_OPS and len(constants) >= NUM_TRANSPOSES and constants[-NUM_TRANSPOSES] is not None:
        is_gradient = bool(constants[-NUM_TRANSPOSES])
        return work if work.is_weight_gradient == is_gradient else replace(work, is_weight_gradient=is_gradient)
    return work


@functools.lru_cache(maxsize=4096)  # steps are measured under many policies, and layers are alike
def count_work(
    op: str, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...], attention: tuple[int | None, ...] = ()
) -> Work:
    """Work of one operator; of attention with its last five inputs, without which every pair of positions counts."""
    if op in NO_WORK_OPS:
        return Work(0, 0, 0)
    read_bytes = sum(tensor_type.size_bytes for tensor_type in inputs)
    written_bytes = sum(tensor_type.size_bytes for tensor_type in outputs)
    if op in PARTIAL_READ_OPS and inputs:
        read_bytes += min(written_bytes, inputs[0].size_bytes) - inputs[0].size_bytes
    flops = _count_flops(op, inputs, outputs, attention)
    return Work(flops, read_bytes, written_bytes, inputs, is_weight_gradient=_is_transposed(op, inputs, outputs))


def _is_transposed(op: str, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> bool:
    """The first operand of a product is transposed, by the shapes alone; those of a square one do not say."""
    if op not in MATMUL_OPS or not inputs or not outputs or len(inputs[0].shape) < 2 or len(outputs[0].shape) < 2:
        return False
    num_rows, num_columns = inputs[0].shape[-2:]
    return outputs[0].shape[-2] == num_columns != num_rows


def _count_flops(
    op: str, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...], attention: tuple[int | None, ...]
) -> int:
    elements = sum(math.prod(output.shape) for output in outputs)
    if op in MATMUL_OPS and inputs and outputs and outputs[0].shape:
        # The first operand has one number for each output row and each of the summed products.
        num_rows = elements // max(outputs[0].shape[-1], 1)
        return 2 * elements * (math.prod(inputs[0].shape) // max(num_rows, 1))
    # The attention output has the heads of the query and the head size of the value. Backward reads its gradient.
    if op == "FlashAttentionScore" and len(inputs) >= 3 and outputs:
        return _count_attention_flops(op, inputs, outputs[-1].shape, attention)
    if op == "FlashAttentionScoreGrad" and len(inputs) >= 4:
        return _count_attention_flops(op, inputs, inputs[3].shape, attention)
    # A reduction has work though its output is small.
    full_reads = inputs[1:] if op in PARTIAL_READ_OPS else inputs
    return max(elements, *(math.prod(tensor_type.shape) for tensor_type in full_reads), 0)


# Fewer queries than keys means, in training, that queries are cut over ranks. MindSpore shifts the mask of each rank to
# its part (flash_attention_score_info.cc, `GetAttentionMaskAttrs`), so the last rank has the most pairs, and the others
# wait for it. These modes of the whole sequence are for the last rank those that count from the last key.
OF_LAST_RANK = {0: 4, 2: 3}


def _count_attention_flops(
    op: str, inputs: tuple[TensorType, ...], result: tuple[int, ...], attention: tuple[int | None, ...]
) -> int:
    query, key = inputs[0].shape, inputs[1].shape
    before, after, _, layout, sparse_mode = (*attention, *[None] * NUM_ATTENTION_INTEGERS)[:NUM_ATTENTION_INTEGERS]
    axis = SEQUENCE_AXIS[BNSD if layout is None else layout]
    num_queries, num_keys = query[axis], key[axis]
    pairs = num_queries * num_keys
    if sparse_mode is not None and before is not None and after is not None:
        has_mask = any(tensor_type.dtype in MASK_DTYPES for tensor_type in inputs)
        if num_queries < num_keys:
            sparse_mode = OF_LAST_RANK.get(sparse_mode, sparse_mode) if has_mask else sparse_mode
        pairs = count_attention_pairs(num_queries, num_keys, sparse_mode, before, after, has_mask)
    with_keys, with_values = operator_info(op).products or (0, 0)
    per_pair = with_keys * math.prod(query) // num_queries + with_values * math.prod(result) // num_queries
    return 2 * pairs * per_pair


@functools.lru_cache(maxsize=256)
def count_attention_pairs(
    num_queries: int, num_keys: int, sparse_mode: int, before: int, after: int, has_mask: bool
) -> int:
    """Pairs of a query and a key that attention computes, for one head of one sequence.

    Blocks that the mask leaves empty are skipped; those that it leaves in part are counted in part here.

    Args:
        sparse_mode: of FlashAttentionScore; 0 band by `before` and `after` where there is a mask, 1 whole mask,
            2 causal from the first key, 3 causal to the last key, 4 band counted from the last key. Others count
            every pair.
        before, after: keys that a query sees behind and ahead of its own position.

    Source:
        Documentation of mindspore.ops.flash_attention_score and of CANN's aclnnFlashAttentionScore.
    """
    if sparse_mode not in (2, 3, 4) and not (sparse_mode == 0 and has_mask):
        return num_queries * num_keys
    if sparse_mode in (2, 3):
        before, after = num_queries + num_keys, 0
    own_key = np.arange(num_queries) + (num_keys - num_queries if sparse_mode in (3, 4) else 0)
    first, last = np.maximum(own_key - before, 0), np.minimum(own_key + after, num_keys - 1)
    return int(np.maximum(last - first + 1, 0).sum())
