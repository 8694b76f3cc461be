"""Operator -> duration: measured where a profile has it, by the roofline where not.

By the roofline: the larger of what it computes and what it moves, and a fixed cost. Figures are those of kernels in
real profiles; `docs/device_figures.md` has the samples.

- Matrix products reach a share of the peak; those with a transposed first operand less. Their output goes over the
  cores in tiles, in whole rounds, so that few tiles leave cores idle.
- Flash attention has shares of its own, forward and backward: its softmax runs on the vector units meanwhile.
- Other kernels are bound by memory, or by the cache if all they move fits. Norms, softmax and activation functions
  take the vector units long enough to have a rate of their own.

What it leaves out: whether an input is still in the cache from the operator before, and the layout of transposed
tensors. Fusion of element-wise operators (jit_level O1) is in their work already, see `graph.passes.fusion`.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mindswap.graph.analysis.work import Work
from mindswap.graph.model import Node, TensorType
from mindswap.graph.ops import OP_OF_KERNEL, ComputeUnit, OpClass, classify, is_kernel, operator_info
from mindswap.simulator.cost.hardware import Device
from mindswap.units import NS_PER_S, ceil_div

# Rows and columns of the output tiles of a product: the base tile of CANN's MatMulV3 for 16 bit types.
TILE = (128, 256)


def operator_ns(node: Node, work: Work, device: Device) -> int:
    """Time of one operator on an otherwise idle device, in ns, rounded up; 0 if it has no kernel.

    That of communication depends on the ranks (`transfer.collective_ns`).
    """
    kind = classify(node.op)
    if kind is OpClass.NONE:
        return 0
    # What is no float (masks, indices) is worked on at the rate of float32.
    dtype = work.inputs[0].dtype if work.inputs else node.outputs[0].dtype if node.outputs else ""
    if kind.unit is ComputeUnit.MATRIX:
        peak = device.peak_flops.get(dtype, device.peak_flops["float32"])
        if kind is OpClass.MATMUL:
            compute = _product_ns(node, work, peak, device)
        else:
            is_forward = node.op == "FlashAttentionScore"
            permille = device.attention_permille if is_forward else device.attention_grad_permille
            compute = ceil_div(work.flops * NS_PER_S * 1000, peak * permille)
        memory = _memory_ns(work.read_bytes + work.written_bytes, device)
        return max(compute, memory) + (0 if work.is_fused else device.op_latency_ns["matrix"])
    bound = operator_info(node.op).rate
    rate = device.vector_rates[bound] if bound else 0
    # One operation per element otherwise: memory bounds such a kernel until it does some 50.
    compute = ceil_div(work.flops * NS_PER_S, rate or device.vector_flops.get(dtype, device.vector_flops["float32"]))
    memory = moving_ns(work.read_bytes + work.written_bytes, device)
    return max(compute, memory) + (0 if work.is_fused else device.op_latency_ns["vector"])


def moving_ns(size_bytes: int, device: Device) -> int:
    """Time in which the vector units read and write so many bytes in one kernel, in ns, rounded up."""
    if 0 < size_bytes <= device.cache_bytes:
        return ceil_div(size_bytes * NS_PER_S, device.cache_bandwidth_bytes_per_s)
    return _memory_ns(size_bytes, device)


def _memory_ns(size_bytes: int, device: Device) -> int:
    return ceil_div(size_bytes * NS_PER_S * 1000, device.memory_bandwidth_bytes_per_s * device.memory_permille)


def _product_ns(node: Node, work: Work, peak: int, device: Device) -> int:
    """Time of a product of matrices on the matrix units: its share of the peak while all cores have tiles."""
    permille = device.weight_gradient_permille if work.is_weight_gradient else device.compute_permille
    num_tiles = num_slots = 1
    if device.num_matrix_cores and node.outputs and len(node.outputs[0].shape) >= len(TILE):
        *batch, num_rows, num_columns = node.outputs[0].shape
        num_tiles = math.prod(batch) * ceil_div(num_rows, TILE[0]) * ceil_div(num_columns, TILE[1])
        num_slots = ceil_div(num_tiles, device.num_matrix_cores) * device.num_matrix_cores
    if not num_tiles:
        return 0
    return ceil_div(work.flops * NS_PER_S * 1000 * num_slots, peak * permille * num_tiles)


# Measured durations of operators: under which key they are known, and how they stand in a file.

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


@dataclass(frozen=True, eq=False)
class CostTable:
    """Costs of the operators of a step on a device."""

    device: Device
    # mean duration of operators in ns, from a profile; they go before the roofline
    measured: Mapping[MeasuredKey, int] = field(default_factory=dict)

    def operator_ns(self, node: Node, work: Work) -> int:
        """Duration of one operator that is no communication, in ns; 0 if it has no kernel."""
        if self.measured and is_kernel(node.op):
            found = self.measured.get(measured_key(node.op, work.inputs, node.outputs))
            if found is not None:
                return found
        return operator_ns(node, work, self.device)
