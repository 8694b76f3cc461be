"""Duration of operators: measured if a profile has the operator, otherwise by the roofline model.

The roofline is the maximum of compute time and memory time, plus a fixed cost. Its parameters are fitted to kernels of
real profiles; `docs/device_figures.md` has the samples.

- Matrix products reach a fraction of peak FLOPS, less with a transposed first operand. Output tiles are distributed
  over the cores in full rounds, so that few tiles leave cores idle.
- Flash attention has separate fractions for forward and backward, because its softmax runs on the vector units.
- Other kernels are bound by memory bandwidth, or by the cache if all their tensors fit. Norms, softmax and activation
  functions are bound by the vector units and have separate rates.

Not modelled: inputs that are still in the cache from the previous operator, and layouts of transposed tensors. Fusion
of element-wise operators (jit_level O1) is already part of their work, see `graph.passes.fusion`.
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
    """Return the duration of one operator on an idle device by the roofline model.

    Args:
        node: an operator other than communication (see `transfer.collective_ns`).
        work: its operations and bytes.
        device: device parameters.

    Returns:
        ns, rounded up; 0 if it has no kernel.
    """
    kind = classify(node.op)
    if kind is OpClass.NONE:
        return 0
    # Masks and indices are processed at the rate of float32.
    dtype = work.inputs[0].dtype if work.inputs else node.outputs[0].dtype if node.outputs else ""
    if kind.unit is ComputeUnit.MATRIX:
        peak = device.peak_flops.get(dtype) or device.peak_flops["float32"]
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
    # The default rate is one operation per element; below about 50 operations such a kernel is memory bound.
    compute = ceil_div(work.flops * NS_PER_S, rate or device.vector_flops.get(dtype) or device.vector_flops["float32"])
    memory = moving_ns(work.read_bytes + work.written_bytes, device)
    return max(compute, memory) + (0 if work.is_fused else device.op_latency_ns["vector"])


def moving_ns(size_bytes: int, device: Device) -> int:
    """Return the time in which one kernel reads and writes so many bytes, in ns, rounded up."""
    if 0 < size_bytes <= device.cache_bytes:
        return ceil_div(size_bytes * NS_PER_S, device.cache_bandwidth_bytes_per_s)
    return _memory_ns(size_bytes, device)


def _memory_ns(size_bytes: int, device: Device) -> int:
    return ceil_div(size_bytes * NS_PER_S * 1000, device.memory_bandwidth_bytes_per_s * device.memory_permille)


def _product_ns(node: Node, work: Work, peak: int, device: Device) -> int:
    """Return the compute time of a matrix product in ns: a fraction of peak FLOPS, less for idle cores."""
    permille = device.weight_gradient_permille if work.is_weight_gradient else device.compute_permille
    num_tiles = num_slots = 1
    if device.num_matrix_cores and node.outputs and len(node.outputs[0].shape) >= len(TILE):
        *batch, num_rows, num_columns = node.outputs[0].shape
        num_tiles = math.prod(batch) * ceil_div(num_rows, TILE[0]) * ceil_div(num_columns, TILE[1])
        num_slots = ceil_div(num_tiles, device.num_matrix_cores) * device.num_matrix_cores
    if not num_tiles:
        return 0
    return ceil_div(work.flops * NS_PER_S * 1000 * num_slots, peak * permille * num_tiles)


# Measured durations of operators, and their keys.

# Shapes, axes and lengths that kernels take as tensors and graphs as constants.
ARGUMENT_DTYPE = "int64"

Shapes = tuple[tuple[tuple[int, ...], str], ...]


@dataclass(frozen=True)
class MeasuredKey:
    """Key of a measured operator: its name and tensor types."""

    op: str  # name in MindSpore
    # inputs, outputs: shape and dtype of each tensor, without those of one element and without integer arguments, which
    # profiles and graphs do not show alike
    inputs: Shapes
    outputs: Shapes


@dataclass(frozen=True)
class Measurement:
    """Duration of an operator in a profile."""

    key: MeasuredKey
    duration_ns: int  # median of its runs
    count: int  # number of runs


def measured_key(op: str, inputs: Iterable[TensorType], outputs: Iterable[TensorType]) -> MeasuredKey:
    """Return the key of an operator, from a kernel of a profile or from a node of a graph."""
    return MeasuredKey(OP_OF_KERNEL.get(op, op), _shapes(inputs), _shapes(outputs))


def _shapes(tensors: Iterable[TensorType]) -> Shapes:
    return tuple((t.shape, t.dtype) for t in tensors if math.prod(t.shape) > 1 and t.dtype != ARGUMENT_DTYPE)


@dataclass(frozen=True, eq=False)
class CostTable:
    """Costs of the operators of a step on a device."""

    device: Device
    # median duration of operators in ns, from a profile; they take precedence over the roofline
    measured: Mapping[MeasuredKey, int] = field(default_factory=dict)

    def operator_ns(self, node: Node, work: Work) -> int:
        """Return the duration of one operator other than communication, in ns; 0 if it has no kernel."""
        if self.measured and is_kernel(node.op):
            measured_ns = self.measured.get(measured_key(node.op, work.inputs, node.outputs))
            if measured_ns is not None:
                return measured_ns
        return operator_ns(node, work, self.device)
