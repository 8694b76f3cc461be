"""Operator -> duration: measured where a profile has it, by the roofline where not."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mindswap.graph.model import Node, TensorType
from mindswap.graph.ops import is_kernel
from mindswap.graph.work import Work
from mindswap.simulator.cost.hardware import Device
from mindswap.simulator.cost.roofline import operator_ns

# Measured durations of operators: under which key they are known, and how they stand in a file.

# Kernels of CANN and the operators of MindSpore that they run.
OP_OF_KERNEL = {
    "BatchMatMulV2": "BatchMatMul", "BatchMatMulV3": "BatchMatMul", "ConcatD": "Concat", "ConcatV2": "Concat",
    "MatMulV2": "MatMul", "MatMulV3": "MatMul", "MatMulExt": "MatMul", "BatchMatMulExt": "BatchMatMul",
    "Swish": "SiLU", "SwishGrad": "SiLUGrad", "Silu": "SiLU", "SiluGrad": "SiLUGrad", "TransposeD": "Transpose",
    "GatherV2": "Gather", "ReduceSumD": "ReduceSum", "StridedSliceD": "StridedSlice", "SplitD": "Split",
    "SplitVD": "SplitWithSize", "SplitV": "SplitWithSize", "LayerNormV3": "LayerNorm", "SoftmaxV2": "Softmax",
    "LogSoftmaxV2": "LogSoftmax", "TileD": "Tile", "UnsortedSegmentSumD": "UnsortedSegmentSum",
    "FastGelu": "FastGeLU", "FastGeluGrad": "FastGeLUGrad", "Gelu": "GeLU", "GeluGrad": "GeLUGrad",
}  # fmt: skip
# Shapes, axes and lengths that kernels take as tensors and graphs as constants.
ARGUMENT_DTYPE = "int64"

Shapes = tuple[tuple[tuple[int, ...], str], ...]


@dataclass(frozen=True)
class MeasuredKey:
    """Key of an operator in a profile."""

    op: str  # name in MindSpore
    # inputs, outputs: shape and dtype of each tensor, without those of one element and without integer arguments, which
    # profiles and graphs do not show alike
    inputs: Shapes
    outputs: Shapes


@dataclass(frozen=True)
class Measurement:
    """Duration of an operator in a profile."""

    key: MeasuredKey
    duration_ns: int  # middle of its runs
    count: int  # how many there were


def measured_key(op: str, inputs: Iterable[TensorType], outputs: Iterable[TensorType]) -> MeasuredKey:
    """The key of an operator, from a kernel of a profile or from a node of a graph."""
    return MeasuredKey(OP_OF_KERNEL.get(op, op), _shapes(inputs), _shapes(outputs))


def _shapes(tensors: Iterable[TensorType]) -> Shapes:
    return tuple((t.shape, t.dtype) for t in tensors if math.prod(t.shape) > 1 and t.dtype != ARGUMENT_DTYPE)


def types_of(shapes: Shapes) -> tuple[TensorType, ...]:
    """Shapes and dtypes of a key as types, which have their bytes."""
    return tuple(TensorType.of(shape, dtype) for shape, dtype in shapes)


@dataclass(frozen=True, eq=False)
class CostTable:
    """Costs of the operators of a step on a device."""

    device: Device
    # mean duration of operators in ns, from a profile; they go before the roofline
    measured: Mapping[MeasuredKey, int] = field(default_factory=dict)

    def operator_ns(self, node: Node, work: Work) -> int:
        """Duration of one operator, in ns; 0 if it has no kernel.

        Raises:
            ValueError: for communication.
        """
        if self.measured and is_kernel(node.op):
            found = self.measured.get(measured_key(node.op, work.inputs, node.outputs))
            if found is not None:
                return found
        return operator_ns(node, work, self.device)
