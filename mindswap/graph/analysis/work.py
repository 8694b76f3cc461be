"""Floating point operations and bytes of an operator, the input of every cost model."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from mindswap.graph.model import Graph, Node, TensorType
from mindswap.graph.ops import MATMUL_OPS, NO_WORK_OPS, PARTIAL_READ_OPS, OpClass, classify, operator_info
from mindswap.graph.ring_attention import ring_axes, ring_flops
from mindswap.graph.sequences import cache_readers

# Axis of the sequence in the operands of attention, by layout number (FASInputLayoutMode of MindSpore).
BNSD = 1
SEQUENCE_AXIS = {0: 1, 1: 2, 2: 0, 3: 1, 4: 0}  # BSH, BNSD, SBH, BSND, TND
# Trailing inputs of both attention operators: tokens before, tokens after, inner precision, layout, sparse mode.
NUM_ATTENTION_INTEGERS, LAYOUT = 5, 3
MASK_DTYPES = ("bool", "uint8")
# Trailing inputs of a matrix product: whether the first and the second operand are transposed.
NUM_TRANSPOSES = 2
# Types of the tensors of each value.
_Types = Mapping[str, tuple[TensorType, ...]]


@dataclass(frozen=True)
class Work:
    """Work of one execution of an operator."""

    # floating point operations: two for each multiply-add of a matrix product, one for each element otherwise.
    # Attention counts only the (query, key) pairs that its mask allows, because kernels skip the others
    flops: int
    read_bytes: int  # total size of the inputs, each counted once
    written_bytes: int  # total size of the outputs
    inputs: tuple[TensorType, ...] = ()  # types of the tensors it reads, members of tuples one by one
    is_fused: bool = False  # runs in the kernel of a preceding operator (`graph.passes.fusion`)
    is_weight_gradient: bool = False  # a matrix product with a transposed first operand, as gradients of weights are
    # attention of a sequence in pieces: `flops` of each piece; the field `flops` is their mean
    piece_flops: tuple[int, ...] = ()


def measure_work(graph: Graph) -> tuple[tuple[Work, ...], tuple[Work, ...]]:
    """Return the work of every operator of forward and of backward, in the order of the nodes."""
    meter = WorkMeter(graph)
    forward = tuple(meter.measure(node, is_forward=True) for node in graph.forward)
    return forward, tuple(meter.measure(node, is_forward=False) for node in graph.backward)


class WorkMeter:
    """Measures the work of single operators of a graph."""

    def __init__(self, graph: Graph):
        self.graph = graph
        parameter_types = {name: (tensor_type,) for name, tensor_type in graph.types.items()}
        forward_types = {**parameter_types, **{node.name: node.outputs for node in graph.forward}}
        # Nodes of a sharded graph have types per rank, and the types of parameters stay unsharded: nodes have priority.
        saved = {s.backward_name: forward_types[s.forward_name] for s in graph.saved if s.forward_name in forward_types}
        # Operators recomputed by `graph.passes.swap_recompute` read weights under their forward names.
        backward_types = {**forward_types, **saved, **{node.name: node.outputs for node in graph.backward}}
        self._types: tuple[_Types, _Types] = (backward_types, forward_types)
        self._has_pieces = bool(cache_readers(graph))

    def measure(self, node: Node, is_forward: bool) -> Work:
        """Return the work of one operator."""
        return _measure(self.graph, node, self._types[is_forward], self._has_pieces)


def _with_pieces(work: Work) -> Work:
    """Return the work of attention for each piece of a sequence: the first sees only its own keys, the last all keys.

    Piece i with q queries has i q^2 + q (q + 1) / 2 of the n q^2 pairs, because MindSpore shifts the band of the mask
    by i q (solve_flash_attention_score_for_seqpipe.cc; flash_attention_score_info.cc,
    `ComputeSparseInfoForFlashAttentionScore`). `work` is that of the last piece.
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


@functools.lru_cache(maxsize=4096)  # the same step is measured under many policies, and layers are equal
def count_work(
    op: str, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...], attention: tuple[int | None, ...] = ()
) -> Work:
    """Return the work of one operator.

    Args:
        op: type of the operator.
        inputs: tensors that it reads.
        outputs: tensors that it writes.
        attention: last five inputs of an attention operator; if empty, all pairs of positions count.
    """
    if op in NO_WORK_OPS:
        return Work(0, 0, 0)
    read_bytes = sum(tensor_type.size_bytes for tensor_type in inputs)
    written_bytes = sum(tensor_type.size_bytes for tensor_type in outputs)
    if op in PARTIAL_READ_OPS and inputs:
        read_bytes += min(written_bytes, inputs[0].size_bytes) - inputs[0].size_bytes
    flops = _count_flops(op, inputs, outputs, attention)
    return Work(flops, read_bytes, written_bytes, inputs, is_weight_gradient=_is_transposed(op, inputs, outputs))


def _is_transposed(op: str, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> bool:
    """Return whether the first operand is transposed according to the shapes; False for square operands."""
    if op not in MATMUL_OPS or not inputs or not outputs or len(inputs[0].shape) < 2 or len(outputs[0].shape) < 2:
        return False
    num_rows, num_columns = inputs[0].shape[-2:]
    return outputs[0].shape[-2] == num_columns != num_rows


def _count_flops(
    op: str, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...], attention: tuple[int | None, ...]
) -> int:
    elements = sum(math.prod(output.shape) for output in outputs)
    if op in MATMUL_OPS and inputs and outputs and outputs[0].shape:
        # Elements of the first operand = rows of the output * length of the summed dimension.
        num_rows = elements // max(outputs[0].shape[-1], 1)
        return 2 * elements * (math.prod(inputs[0].shape) // max(num_rows, 1))
    # The attention output has the heads of the query and the head size of the value. Backward reads its gradient.
    if op == "FlashAttentionScore" and len(inputs) >= 3 and outputs:
        return _count_attention_flops(op, inputs, outputs[-1].shape, attention)
    if op == "FlashAttentionScoreGrad" and len(inputs) >= 4:
        return _count_attention_flops(op, inputs, inputs[3].shape, attention)
    # A reduction has work although its output is small.
    full_reads = inputs[1:] if op in PARTIAL_READ_OPS else inputs
    return max(elements, *(math.prod(tensor_type.shape) for tensor_type in full_reads), 0)


# In training, fewer queries than keys means that queries are sharded over ranks. MindSpore shifts the mask of each rank
# to its shard (flash_attention_score_info.cc, `GetAttentionMaskAttrs`), so the last rank has the most pairs and all
# others wait for it. On the last rank these modes of the full sequence act as the modes that count from the last key.
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
    """Count the (query, key) pairs that attention computes for one head of one sequence.

    Blocks that the mask excludes entirely are skipped; partly excluded blocks count in part.

    Args:
        num_queries: length of the query sequence.
        num_keys: length of the key sequence.
        sparse_mode: of FlashAttentionScore: 0 band of `before` and `after` if there is a mask, 1 full mask, 2 causal
            from the first key, 3 causal to the last key, 4 band counted from the last key. Other modes count every
            pair.
        before: keys before its own position that a query attends to.
        after: keys after its own position that a query attends to.
        has_mask: whether there is a mask tensor.

    Source:
        Documentation of mindspore.ops.flash_attention_score and of CANN's aclnnFlashAttentionScore.
    """
    if sparse_mode not in (2, 3, 4) and not (sparse_mode == 0 and has_mask):
        return num_queries * num_keys
    if sparse_mode in (2, 3):
        before, after = num_queries + num_keys, 0
    diagonal_keys = np.arange(num_queries) + (num_keys - num_queries if sparse_mode in (3, 4) else 0)
    first, last = np.maximum(diagonal_keys - before, 0), np.minimum(diagonal_keys + after, num_keys - 1)
    return int(np.maximum(last - first + 1, 0).sum())
