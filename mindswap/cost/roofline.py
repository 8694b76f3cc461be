"""Time of an operator from what it computes and moves: the larger of the two, and a fixed cost. Pure.

What it leaves out: kernels that read their inputs from the cache, and the special functions of the vector
units. Fusion of element-wise operators (jit_level O1) is in their work already, see `graph.fusion`. An operator
that goes once through its inputs is bound by memory on every device known here until it does some 50 operations
per element, so one is counted.
"""

from enum import Enum

from mindswap.cost.hardware import Device
from mindswap.graph.model import Node
from mindswap.graph.work import ATTENTION_OPS, MATMUL_OPS, NO_WORK_OPS, Work
from mindswap.units import NS_PER_S

__all__ = ["COMMUNICATION_OPS", "OpClass", "classify", "is_kernel", "operator_ns"]

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
    is_matrix = kind in ON_MATRIX_UNITS
    peaks = device.peak_flops if is_matrix else device.vector_flops
    # What is no float (masks, indices) is worked on at the rate of float32.
    dtype = work.inputs[0].dtype if work.inputs else node.outputs[0].dtype if node.outputs else ""
    peak = peaks.get(dtype, peaks["float32"])
    compute = -(-work.flops * NS_PER_S * 1000 // (peak * device.compute_permille))
    bandwidth = device.memory_bandwidth_bytes_per_s * device.memory_permille
    memory = -(-(work.read_bytes + work.written_bytes) * NS_PER_S * 1000 // bandwidth)
    latency = 0 if work.is_fused else device.op_latency_ns["matrix" if is_matrix else "vector"]
    return max(compute, memory) + latency
