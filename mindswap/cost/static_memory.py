"""Device memory that is taken during the whole step, and the time of the work at its end. Pure.

Follows MindFormers 1.9.0: `core/optim/` for the optimizers, `wrapper/wrapper.py` for gradients, and MindSpore's
`context.py` for the parallel optimizer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mindswap.cost.hardware import Device
from mindswap.cost.transfer import collective_ns
from mindswap.errors import CostError
from mindswap.policy.wording import closest_names
from mindswap.units import NS_PER_S

__all__ = [
    "OPTIMIZERS",
    "Optimizer",
    "Parameter",
    "StaticMemory",
    "estimate_gradient_ns",
    "estimate_optimizer_ns",
    "estimate_static_memory",
    "estimate_weight_gather_ns",
    "find_optimizer",
]

FLOAT32_BYTES = 4
# Smaller parameters are not cut over data parallel ranks (parallel_optimizer_threshold).
SHARD_THRESHOLD_BYTES = 64 * 1024
# Messages smaller than this are sent together (comm_fusion, mode auto).
FUSION_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Parameter:
    """A weight as one rank has it before the parallel optimizer cuts it.

    Attributes:
        name: of the parameter.
        size_bytes: as it is stored (`param_init_type`).
        num_elements: numbers in it.
    """

    name: str
    size_bytes: int
    num_elements: int


@dataclass(frozen=True)
class Optimizer:
    """What an optimizer keeps for each weight.

    Attributes:
        num_float32_states: tensors of its shape in float32, whatever the type of the weight.
        num_like_states: tensors of its shape and type.
    """

    num_float32_states: int
    num_like_states: int = 0


# None of them keeps a float32 copy of a half precision weight: MindFormers keeps the weight itself in
# `param_init_type` and casts it for the step.
OPTIMIZERS = {
    "AdamW": Optimizer(2),
    "FusedAdamW": Optimizer(2),
    "PmaAdamW": Optimizer(3),
    "FusedPmaAdamW": Optimizer(3),
    "Adam": Optimizer(0, 2),
    "AdamWeightDecay": Optimizer(0, 2),
    "Momentum": Optimizer(0, 1),
    "SGD": Optimizer(0, 2),
}


@dataclass(frozen=True)
class StaticMemory:
    """Bytes on one rank that do not change during forward and backward.

    Attributes:
        parameter_bytes: weights as they are stored; copies in `compute_dtype` are activations of the graph.
        gradient_bytes: gradients once backward has ended, and what they are summed up in over micro-batches.
        optimizer_bytes: optimizer state.
        workspace_bytes: what operators need while they run.
        constant_bytes: constants and inputs of the graph, such as a causal mask without compression.
    """

    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    workspace_bytes: int
    constant_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """All of it."""
        state_bytes = self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes
        return state_bytes + self.workspace_bytes + self.constant_bytes


def find_optimizer(name: str) -> Optimizer:
    """What an optimizer keeps, by its name in `optimizer.type`.

    Raises:
        CostError: if it is not known; the text lists those that are.
    """
    if name in OPTIMIZERS:
        return OPTIMIZERS[name]
    closest = closest_names(name, OPTIMIZERS)[0]
    raise CostError(f"optimizer '{name}': its memory is not known; closest: {closest}; known: {', '.join(OPTIMIZERS)}")


def estimate_static_memory(
    parameters: Iterable[Parameter],
    optimizer: Optimizer,
    num_shards: int = 1,
    is_accumulating: bool = False,
    is_accumulator_sharded: bool = False,
    is_state_offloaded: bool = False,
    workspace_bytes: int = 0,
) -> StaticMemory:
    """Static memory of one rank.

    Args:
        parameters: weights of this rank and pipeline stage, cut by tensor parallel already.
        optimizer: from `find_optimizer`.
        num_shards: ranks over which `enable_parallel_optimizer` cuts weights, optimizer state and gradients (data
            parallel ranks, or optimizer_weight_shard_size); 1 without it.
        is_accumulating: gradients are summed up over micro-batches (pipeline, gradient accumulation): a tensor for
            each weight besides the gradients of the current micro-batch.
        is_accumulator_sharded: this sum is cut as well (optimizer_level level2, gradient_accumulation_shard).
        is_state_offloaded: the state is in host memory (`swap: True` of the optimizer).
        workspace_bytes: what operators need while they run.

    Raises:
        ValueError: if num_shards is not positive.
    """
    if num_shards < 1:
        raise ValueError(f"num_shards is {num_shards}")
    weights = gradients = states = 0
    for parameter in parameters:
        shards = _num_shards(parameter, num_shards)
        own_bytes = _cut(parameter.size_bytes, shards)
        weights += own_bytes
        states += optimizer.num_float32_states * _cut(parameter.num_elements, shards) * FLOAT32_BYTES
        states += optimizer.num_like_states * own_bytes
        # A gradient is as its weight: backward casts it (seen in the compiled graph).
        gradients += own_bytes
        if is_accumulating:
            gradients += own_bytes if is_accumulator_sharded else parameter.size_bytes
    return StaticMemory(weights, gradients, 0 if is_state_offloaded else states, workspace_bytes)


def estimate_optimizer_ns(
    parameters: Iterable[Parameter], optimizer: Optimizer, device: Device, num_shards: int = 1
) -> int:
    """Time of the optimizer step, in ns: every weight, gradient and state is read once and, but for gradients, written.

    One kernel for each weight, bound by memory: a fused optimizer. One that is not fused (`use_fused: False` at
    jit_level O0) runs some 15 kernels for each weight and takes several times as long.

    Raises:
        ValueError: if num_shards is not positive.
    """
    if num_shards < 1:
        raise ValueError(f"num_shards is {num_shards}")
    moved = num_kernels = 0
    for parameter in parameters:
        shards = _num_shards(parameter, num_shards)
        own_bytes = _cut(parameter.size_bytes, shards)
        state_bytes = optimizer.num_float32_states * _cut(parameter.num_elements, shards) * FLOAT32_BYTES
        moved += 3 * own_bytes + 2 * (state_bytes + optimizer.num_like_states * own_bytes)
        num_kernels += 1
    bandwidth = device.memory_bandwidth_bytes_per_s * device.memory_permille
    return -(-moved * NS_PER_S * 1000 // bandwidth) + num_kernels * device.op_latency_ns["vector"]


def estimate_gradient_ns(
    parameters: Sequence[Parameter], num_ranks: int, device: Device, is_sharded: bool = False
) -> int:
    """Time of handing gradients to the data parallel ranks, in ns, if nothing hides it.

    Args:
        parameters: weights of this rank; gradients have their size.
        num_ranks: data parallel ranks.
        device: where it runs.
        is_sharded: with the parallel optimizer, a ReduceScatter instead of an AllReduce.
    """
    kind = "ReduceScatter" if is_sharded else "AllReduce"
    return sum(collective_ns(kind, size, num_ranks, device) for size in _fused_messages(parameters))


def estimate_weight_gather_ns(
    parameters: Sequence[Parameter], num_ranks: int, device: Device, bytes_per_element: int = 2
) -> int:
    """Time of gathering the weights that the parallel optimizer cut, once, in ns, if nothing hides it.

    Args:
        parameters: weights of this rank, whole.
        num_ranks: ranks over which they are cut.
        device: where it runs.
        bytes_per_element: of `compute_dtype`: weights are cast before they are gathered.
    """
    cast = [Parameter(p.name, p.num_elements * bytes_per_element, p.num_elements) for p in parameters]
    return sum(collective_ns("AllGather", size, num_ranks, device) for size in _fused_messages(cast))


def _fused_messages(parameters: Iterable[Parameter]) -> Iterable[int]:
    """Sizes of the messages when neighbours are sent together until FUSION_BYTES are reached."""
    size = 0
    for parameter in parameters:
        size += parameter.size_bytes
        if size >= FUSION_BYTES:
            yield size
            size = 0
    if size:
        yield size


def _num_shards(parameter: Parameter, num_shards: int) -> int:
    return num_shards if parameter.size_bytes >= SHARD_THRESHOLD_BYTES else 1


def _cut(size: int, shards: int) -> int:
    return -(-size // shards)
