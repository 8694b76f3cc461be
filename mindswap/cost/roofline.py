"""Time of an operator from what it computes and moves: the larger of the two, and a fixed cost. Pure.

Figures are those of kernels in real profiles; `docs/device_figures.md` has the samples.

- Matrix products reach a share of the peak; those with a transposed first operand less. Their output goes over the
  cores in tiles, in whole rounds, so that few tiles leave cores idle.
- Flash attention has shares of its own, forward and backward: its softmax runs on the vector units meanwhile.
- Other kernels are bound by memory, or by the cache if all they move fits. Norms, softmax and activation functions
  take the vector units long enough to have a rate of their own.

What it leaves out: whether an input is still in the cache from the operator before, and the layout of transposed
tensors. Fusion of element-wise operators (jit_level O1) is in their work already, see `graph.fusion`.
"""

import math
from enum import Enum

from mindswap.cost.hardware import Device
from mindswap.graph.model import Node
from mindswap.graph.work import ATTENTION_OPS, MATMUL_OPS, NO_WORK_OPS, Work
from mindswap.units import NS_PER_S

__all__ = ["COMMUNICATION_OPS", "OpClass", "VECTOR_RATES", "classify", "is_kernel", "moving_ns", "operator_ns"]

# What a rank sends to others; their time depends on the ranks, see `transfer.collective_ns`.
COMMUNICATION_OPS = frozenset({"AllReduce", "AllGather", "ReduceScatter", "AllToAll", "AlltoAll", "Send", "Receive"})
NORM_OPS = frozenset(
    {"RmsNorm", "RmsNormGrad", "LayerNorm", "LayerNormGrad", "LayerNormV3", "LayerNormGradV3", "LayerNormExt"}
)
SOFTMAX_OPS = frozenset({"Softmax", "SoftmaxGrad", "SoftmaxBackward", "LogSoftmax", "LogSoftmaxGrad"})
EMBEDDING_OPS = frozenset({"Gather", "GatherD", "UnsortedSegmentSum", "OneHot", "Embedding", "EmbeddingDenseBackward"})
MOVING_OPS = frozenset(
    {"Transpose", "Concat", "Split", "SplitWithSize", "StridedSlice", "StridedSliceGrad", "Slice", "Tile",
     "BroadcastTo", "Stack", "Pad", "TensorMove", "Contiguous"}
)  # fmt: skip


class OpClass(Enum):
    """Kinds of operators, as reports group them."""

    MATMUL = "matrix product"
    ATTENTION = "attention"
    NORM = "norm"
    SOFTMAX = "softmax"
    EMBEDDING = "embedding"
    CAST = "cast"
    MOVE = "data movement"
    ELEMENTWISE = "element-wise"
    COMMUNICATION = "communication"
    NONE = "no kernel"


CLASS_OF_OP = {
    **dict.fromkeys(MATMUL_OPS, OpClass.MATMUL),
    **dict.fromkeys(ATTENTION_OPS, OpClass.ATTENTION),
    **dict.fromkeys(NORM_OPS, OpClass.NORM),
    **dict.fromkeys(SOFTMAX_OPS, OpClass.SOFTMAX),
    **dict.fromkeys(EMBEDDING_OPS, OpClass.EMBEDDING),
    **dict.fromkeys(MOVING_OPS, OpClass.MOVE),
    **dict.fromkeys(COMMUNICATION_OPS, OpClass.COMMUNICATION),
    **dict.fromkeys(NO_WORK_OPS, OpClass.NONE),
    "Cast": OpClass.CAST,
}
ON_MATRIX_UNITS = (OpClass.MATMUL, OpClass.ATTENTION)
# Kernels that the vector units bound -> their rate in `Device.vector_rates`.
VECTOR_RATES = {
    **dict.fromkeys(("RmsNorm", "LayerNorm", "LayerNormV3", "LayerNormExt"), "norm"),
    **dict.fromkeys(("RmsNormGrad", "LayerNormGrad", "LayerNormGradV3"), "norm_grad"),
    **dict.fromkeys(SOFTMAX_OPS, "softmax"),
    **dict.fromkeys(("SiLU", "GeLU", "FastGeLU"), "activation"),
    **dict.fromkeys(("SiLUGrad", "GeLUGrad", "FastGeLUGrad"), "activation_grad"),
}
# Rows and columns of the output tiles of a product: the base tile of CANN's MatMulV3 for 16 bit types.
TILE = (128, 256)


def classify(op: str) -> OpClass:
    """What kind of operator this is; element-wise where nothing else is known."""
    return CLASS_OF_OP.get(op, OpClass.ELEMENTWISE)


def is_kernel(op: str) -> bool:
    """Whether the device runs something for this operator: views, tuples and reads of weights have no kernel.

    Positions of operators, as `backward_prefetch` counts them, are those of kernels. `MoveTo` is none.
    """
    return classify(op) is not OpClass.NONE


def operator_ns(node: Node, work: Work, device: Device) -> int:
    """Time of one operator on an otherwise idle device, in ns, rounded up; 0 if it has no kernel.

    Args:
        node: the operator.
        work: its work, from `graph.work.measure_work`.
        device: where it runs.

    Raises:
        ValueError: for communication, whose time depends on the ranks (`transfer.collective_ns`).
    """
    kind = classify(node.op)
    if kind is OpClass.NONE:
        return 0
    if kind is OpClass.COMMUNICATION:
        raise ValueError(f"{node.op} is communication: its time is not that of an operator")
    # What is no float (masks, indices) is worked on at the rate of float32.
    dtype = work.inputs[0].dtype if work.inputs else node.outputs[0].dtype if node.outputs else ""
    if kind in ON_MATRIX_UNITS:
        peak = device.peak_flops.get(dtype, device.peak_flops["float32"])
        if kind is OpClass.MATMUL:
            compute = _product_ns(node, work, peak, device)
        else:
            is_forward = node.op == "FlashAttentionScore"
            permille = device.attention_permille if is_forward else device.attention_grad_permille
            compute = _ceil_div(work.flops * NS_PER_S * 1000, peak * permille)
        memory = _memory_ns(work.read_bytes + work.written_bytes, device)
        return max(compute, memory) + (0 if work.is_fused else device.op_latency_ns["matrix"])
    rate = device.vector_rates[VECTOR_RATES[node.op]] if node.op in VECTOR_RATES else 0
    # One operation per element otherwise: memory bounds such a kernel until it does some 50.
    compute = _ceil_div(work.flops * NS_PER_S, rate or device.vector_flops.get(dtype, device.vector_flops["float32"]))
    memory = moving_ns(work.read_bytes + work.written_bytes, device)
    return max(compute, memory) + (0 if work.is_fused else device.op_latency_ns["vector"])


def moving_ns(size_bytes: int, device: Device) -> int:
    """Time in which the vector units read and write so many bytes in one kernel, in ns, rounded up."""
    if 0 < size_bytes <= device.cache_bytes:
        return _ceil_div(size_bytes * NS_PER_S, device.cache_bandwidth_bytes_per_s)
    return _memory_ns(size_bytes, device)


def _memory_ns(size_bytes: int, device: Device) -> int:
    return _ceil_div(size_bytes * NS_PER_S * 1000, device.memory_bandwidth_bytes_per_s * device.memory_permille)


def _product_ns(node: Node, work: Work, peak: int, device: Device) -> int:
    """Time of a product of matrices on the matrix units: its share of the peak while all cores have tiles."""
    permille = device.weight_gradient_permille if work.is_weight_gradient else device.compute_permille
    num_tiles = num_slots = 1
    if device.num_matrix_cores and node.outputs and len(node.outputs[0].shape) >= len(TILE):
        *batch, num_rows, num_columns = node.outputs[0].shape
        num_tiles = math.prod(batch) * _ceil_div(num_rows, TILE[0]) * _ceil_div(num_columns, TILE[1])
        num_slots = _ceil_div(num_tiles, device.num_matrix_cores) * device.num_matrix_cores
    if not num_tiles:
        return 0
    return _ceil_div(work.flops * NS_PER_S * 1000 * num_slots, peak * permille * num_tiles)


def _ceil_div(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)
