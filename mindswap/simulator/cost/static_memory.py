"""Static device memory: weights, optimizer state, gradient accumulators, workspace, constants, HCCL buffers.

Follows MindFormers 1.9.0: `core/optim/` for the optimizers, `wrapper/wrapper.py` for gradients, and MindSpore's
`context.py` for the parallel optimizer.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mindswap.config.device_memory import hccl_bytes
from mindswap.config.step_settings import StepSettings
from mindswap.errors import CostError
from mindswap.graph.model import Node
from mindswap.graph.ops import ComputeUnit, classify
from mindswap.policy.wording import closest_names
from mindswap.simulator.cost.hardware import Device
from mindswap.simulator.memory_parts import MemoryPart
from mindswap.units import ceil_div

FLOAT32_BYTES = 4


@dataclass(frozen=True)
class Parameter:
    """A weight of one rank, after tensor parallel sharding and before the parallel optimizer."""

    name: str
    size_bytes: int  # in its stored dtype (`param_init_type`)
    num_elements: int
    is_sharded: bool = True  # the parallel optimizer shards it, if enabled (`config.weight_sharding`)
    num_copies: int | None = None  # ranks with the same weight; None: the data parallel ranks
    layer_index: int | None = None  # index among the compiled layers; None outside the layers
    is_after_layers: bool = False  # outside the layers and read after them (final norm, head)
    shape: tuple[int, ...] = ()  # shape on this rank
    num_shards: int | None = None  # ranks over which it is sharded; None: the parallel optimizer's default
    is_trained: bool = True  # False: it has no gradient and no optimizer state


# States of each optimizer, one letter per tensor of the shape of the weight: F is float32, W has the dtype of the
# weight. None of them keeps a float32 copy of a half precision weight: MindFormers stores the weight itself in
# `param_init_type` and casts it for the step.
OPTIMIZERS = {
    "AdamW": "FF",
    "FusedAdamW": "FF",
    "PmaAdamW": "FFF",
    "FusedPmaAdamW": "FFF",
    "Adam": "WW",
    "AdamWeightDecay": "WW",
    "Momentum": "W",
    "SGD": "WW",
}


@dataclass(frozen=True)
class StaticMemory:
    """Bytes on one rank that do not change during forward and backward."""

    parameter_bytes: int  # weights in their stored dtype; copies in `compute_dtype` are activations of the graph
    # accumulators of gradients over micro-batches (`accu_grads` of MindFormers); gradients themselves are simulated as
    # activation memory
    gradient_bytes: int
    optimizer_bytes: int  # optimizer state
    workspace_bytes: int  # largest workspace of an operator
    constant_bytes: int = 0  # constants and inputs of the graph, such as a causal mask without compression
    host_bytes: int = 0  # optimizer states in host memory; not in `total_bytes`

    @property
    def parts(self) -> dict[MemoryPart, int]:
        """Static memory of a rank by part."""
        return {
            MemoryPart.WEIGHTS: self.parameter_bytes,
            MemoryPart.OPTIMIZER_STATES: self.optimizer_bytes,
            MemoryPart.ACCUMULATED_GRADIENTS: self.gradient_bytes,
            MemoryPart.CONSTANTS: self.constant_bytes,
            MemoryPart.WORKSPACE: self.workspace_bytes,
        }

    @property
    def total_bytes(self) -> int:
        """Return all static memory of a rank."""
        return sum(self.parts.values())


def find_states(name: str) -> str:
    """Return the states of an optimizer, encoded as in `OPTIMIZERS`.

    Args:
        name: value of `optimizer.type`.

    Raises:
        CostError: if the optimizer is unknown; the text lists the known ones.
    """
    if name in OPTIMIZERS:
        return OPTIMIZERS[name]
    closest = closest_names(name, OPTIMIZERS)[0]
    raise CostError(f"optimizer '{name}': its memory is not known; closest: {closest}; known: {', '.join(OPTIMIZERS)}")


def state_sizes(parameter: Parameter, settings: StepSettings) -> list[int]:
    """Return the bytes of each optimizer state of a weight on one rank; none if the weight is not trained."""
    if not parameter.is_trained:
        return []
    shards = num_parameter_shards(parameter, settings.num_optimizer_shards)
    sizes = {"F": ceil_div(parameter.num_elements, shards) * FLOAT32_BYTES, "W": ceil_div(parameter.size_bytes, shards)}
    return [sizes[letter] for letter in find_states(settings.optimizer)]


def estimate_static_memory(
    parameters: Iterable[Parameter], settings: StepSettings, workspace_bytes: int = 0
) -> StaticMemory:
    """Compute the static memory of one rank, without gradients of a step of one micro-step.

    Args:
        parameters: weights of this rank and pipeline stage, after tensor parallel sharding.
        settings: optimizer, and sharding of weights, optimizer states and accumulators.
        workspace_bytes: workspace of kernels.

    Raises:
        CostError: if the optimizer is unknown.
    """
    parameters = list(parameters)
    tensors = [parameter_tensors(parameter, settings) for parameter in parameters]
    state_bytes = sum(sum(state_sizes(parameter, settings)) for parameter in parameters)
    return StaticMemory(
        parameter_bytes=sum(entry.weight_bytes for entry in tensors),
        gradient_bytes=sum(entry.accumulator_bytes for entry in tensors),
        optimizer_bytes=sum(sum(entry.state_bytes) for entry in tensors),
        workspace_bytes=workspace_bytes,
        host_bytes=state_bytes if settings.is_state_offloaded else 0,
    )


class ParameterTensors(NamedTuple):
    """Sizes in bytes of the tensors of a weight on one rank that stay during the step."""

    weight_bytes: int
    accumulator_bytes: int  # accumulated gradient; 0 without one
    state_bytes: tuple[int, ...]  # optimizer states; empty where they are on the host


def parameter_tensors(parameter: Parameter, settings: StepSettings) -> ParameterTensors:
    """Return the sizes of the tensors of a weight that stay on one rank during the step."""
    shard_bytes = ceil_div(parameter.size_bytes, num_parameter_shards(parameter, settings.num_optimizer_shards))
    accumulator_bytes = 0
    if settings.num_micro_steps > 1 and parameter.is_trained:  # clones of the weights (MFPipelineWithLossScaleCell)
        accumulator_bytes = shard_bytes if settings.is_accumulator_sharded else parameter.size_bytes
    states = () if settings.is_state_offloaded else tuple(state_sizes(parameter, settings))
    return ParameterTensors(shard_bytes, accumulator_bytes, states)


def num_parameter_shards(parameter: Parameter, num_shards: int) -> int:
    """Return the ranks over which a parameter is sharded: 1 if the parallel optimizer leaves it unsharded."""
    return parameter.num_shards or num_shards if parameter.is_sharded and num_shards > 1 else 1


# Device memory that is no tensor: workspace of kernels within MindSpore's pool, buffers of HCCL outside it.

# Gradients of query, key and value come first among the outputs of the backward kernel.
NUM_ATTENTION_GRADIENTS = 3


def workspace_bytes(nodes: Iterable[Node], device: Device) -> int:
    """Return the largest workspace of an operator in bytes; MindSpore allocates it in its pool while the kernel runs.

    Source:
        Tiling of CANN's kernels: `WORK_SPACE_RESERVE_SIZE` of flash attention and `GetLibApiWorkSpaceSize` of matrix
        products (`kernel_workspace` of the device). FlashAttentionScoreGrad also accumulates the gradients of query,
        key and value in float32 (`dqWorkspaceLen`, `dkWorkspaceLen`, `dvWorkspaceLen` in its opInfo).
    """
    return max(
        (_workspace_of(node, device) for node in nodes if classify(node.op).unit is ComputeUnit.MATRIX), default=0
    )


def _workspace_of(node: Node, device: Device) -> int:
    if node.op != "FlashAttentionScoreGrad" or not device.kernel_workspace_bytes:
        return device.kernel_workspace_bytes
    sums = sum(math.prod(types.shape) * FLOAT32_BYTES for types in node.outputs[:NUM_ATTENTION_GRADIENTS])
    return device.kernel_workspace_bytes + sums


def communication_bytes(communicators: Sequence[str], device: Device) -> int:
    """Return the bytes of HCCL buffers, outside the pool: `hccl_buffer` to send and to receive, per communicator."""
    return hccl_bytes(device.hccl_buffer_bytes, len(communicators))
