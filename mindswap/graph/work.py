"""How much an operator computes and moves: the ground of every cost model. Pure.

Counts only; how long it takes is for `cost/` to say.
"""

import math
from dataclasses import dataclass

from mindswap.graph.model import Graph, Node, TensorType
from mindswap.graph.storage import VIEW_OPS

__all__ = ["Work", "measure_work"]

MATMUL_OPS = frozenset({"MatMul", "MatMulExt", "BatchMatMul", "BatchMatMulExt"})
# Operators of the compiler's own, views, and reads of weights: no work. Copies are the links' work.
NO_WORK_OPS = frozenset(
    {*VIEW_OPS, "TupleGetItem", "MakeTuple", "Load", "UpdateState", "Partial", "MoveTo", "Return", "Constant"}
)
# Scores and output are a matrix product each; backward makes the scores again and four products more.
ATTENTION_PRODUCTS = {"FlashAttentionScore": 2, "FlashAttentionScoreGrad": 5}


@dataclass(frozen=True)
class Work:
    """What one run of an operator takes.

    Attributes:
        flops: floating point operations; a multiply-add counts as two. Attention counts every pair of
            positions, also where a causal mask lets a kernel skip half of them.
        read_bytes: bytes of the inputs, each once.
        written_bytes: bytes of the outputs.
    """

    flops: int
    read_bytes: int
    written_bytes: int


def measure_work(graph: Graph) -> dict[str, Work]:
    """Work of every operator, by its name; forward and backward.

    Names are unique within a function; where backward has the name of a forward operator, the key of
    the backward one ends with `'`.
    """
    work: dict[str, Work] = {}
    for nodes, is_forward in ((graph.forward, True), (graph.backward, False)):
        types = _value_types(graph, is_forward)
        for node in nodes:
            key = node.name if node.name not in work else f"{node.name}'"
            work[key] = _measure(node, [types[name] for name in node.inputs if name in types])
    return work


def _value_types(graph: Graph, is_forward: bool) -> dict[str, TensorType]:
    """First output of each value that operators read; saved values by the name they have in backward."""
    forward = {node.name: node.outputs[0] for node in graph.forward if node.outputs}
    if is_forward:
        return forward
    saved = {s.backward_name: forward[s.forward_name] for s in graph.saved if s.forward_name in forward}
    return {**saved, **{node.name: node.outputs[0] for node in graph.backward if node.outputs}}


def _measure(node: Node, inputs: list[TensorType]) -> Work:
    if node.op in NO_WORK_OPS:
        return Work(0, 0, 0)
    return Work(_count_flops(node, inputs), sum(tensor.size_bytes for tensor in inputs), node.size_bytes)


def _count_flops(node: Node, inputs: list[TensorType]) -> int:
    elements = sum(math.prod(output.shape) for output in node.outputs)
    if node.op in MATMUL_OPS and inputs and node.outputs and node.outputs[0].shape:
        # The first operand has one number for each output row and each of the summed products.
        num_rows = elements // node.outputs[0].shape[-1]
        return 2 * elements * (math.prod(inputs[0].shape) // max(num_rows, 1))
    if node.op in ATTENTION_PRODUCTS and len(inputs) >= 2:
        query, key = inputs[0].shape, inputs[1].shape
        num_keys = key[2] if len(key) == 4 else key[-2]
        return ATTENTION_PRODUCTS[node.op] * 2 * math.prod(query) * num_keys
    return elements
