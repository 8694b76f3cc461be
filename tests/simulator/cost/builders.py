"""Devices and operators for cost tests."""

from dataclasses import replace

from mindswap.config.render import document_from_data
from mindswap.config.step_settings import StepSettings, read_step_settings
from mindswap.config.weight_sharding import WeightSharding
from mindswap.graph.model import Node, TensorType
from mindswap.simulator.cost.device_file import load_device
from mindswap.simulator.cost.hardware import Device
from mindswap.simulator.profile.profile import ProfiledKernel
from tests.graph.builders import node

# 100 TFLOPS matrix, 10 TFLOPS vector (float16), 1 TB/s memory, 10 GB/s links; no losses, no latencies.
GENERIC = load_device("generic")
BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "int32": 4, "int64": 8, "uint8": 1}


def device(**changes) -> Device:
    """The generic device with other figures."""
    return replace(GENERIC, **changes)


def step_settings(num_shards: int = 1, num_micro_batches: int = 1, **changes) -> StepSettings:
    """A step with AdamW whose weights the parallel optimizer cuts over so many ranks."""
    settings = read_step_settings(document_from_data({}, "a step"))
    return replace(
        settings, sharding=WeightSharding(num_ranks=num_shards), num_micro_batches=num_micro_batches, **changes
    )


def tensor(*shape: int, dtype: str = "float16") -> TensorType:
    """Type of a tensor."""
    size = BYTES[dtype]
    for dim in shape:
        size *= dim
    return TensorType(shape, dtype, size)


def operator(op: str, *outputs: TensorType) -> Node:
    """An operator that gives these tensors."""
    return replace(node(op.lower(), op), outputs=outputs)


def matmul(duration_ns: int, dtype: str = "float16", core: str = "AI_CORE") -> ProfiledKernel:
    """1000 x 1000 x 1000: 20 us at the peak for float16."""
    square = tensor(1000, 1000, dtype=dtype)
    return ProfiledKernel("MatMulV2", duration_ns, (square, square), (square,), core)


def mul(duration_ns: int, core: str = "AI_VECTOR_CORE") -> ProfiledKernel:
    """A million numbers: 6 MB, 6 us at the peak."""
    numbers = tensor(1000, 1000)
    return ProfiledKernel("Mul", duration_ns, (numbers, numbers), (numbers,), core)
