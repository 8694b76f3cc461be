"""Time of the work on weights and gradients that is no part of the network: one function per term.

Gradients are summed up over micro-batches, handed to the data parallel ranks, scaled, clipped and checked, and the
optimizer uses them. All of it is bound by memory. A term is a list of kernels, each with the tensors that it reads
and writes, as MindFormers 1.9.0 states them in Python and MindSpore runs them one by one; with `jit_level: O1`
neighbours are one kernel (`clusterable_ops_with_level_dvm` of graph_kernel_cluster.cc has all of their operators).
"""

from collections.abc import Iterable, Sequence

from mindswap.config.step_settings import StepSettings
from mindswap.simulator.cost.hardware import Device
from mindswap.simulator.cost.static_memory import (
    FLOAT32_BYTES,
    Parameter,
    find_states,
    num_parameter_shards,
    state_sizes,
)
from mindswap.simulator.cost.transfer import collective_ns, copy_ns
from mindswap.units import NS_PER_S, ceil_div

# Optimizers that are written as single operations (mindformers/core/optim/adamw.py, pma_adamw.py). The average of
# PmaAdamW is renewed once in `interleave_step` steps and left out. All others are one kernel for each weight.
UNFUSED_OPTIMIZERS = ("AdamW", "PmaAdamW")


# The kernels of each term: what each reads and writes for each number of a weight, one letter for each tensor. W has
# the type of the weight, G that of the gradient, F is float32. These are in memory and have been there for long; their
# small letters, and b of one byte, are results of the kernels before. "!" marks a kernel that only changes the type: it
# is none where the types are the same. Of two texts the second is what `jit_level: O1` makes of the first.
SUM = "WW>W"
SCALE = ("W>f! f>F", "W>F")
SCALE_SUMS = ("W>w w>W", "W>W")
CLEAR_SUMS = ("W>b b>w w>w w>W", "W>W")
CLIP = ("G>g g> G>f! f>f f>G!", "G> G>G")
OVERFLOW = "G>"
ADAM = (
    "W>f! f>f "  # weight decay
    "G>f! F>f G>f ff>f f>F "  # first moment
    "F>f fff>f f>F "  # second moment
    "f>f f>f f>f "  # corrected, its root, eps
    "ff>f f>f ff>f f>w! w>W"  # the step
)


def accumulate_ns(parameters: Iterable[Parameter], settings: StepSettings, device: Device) -> int:
    """Adding up the gradients of all micro-batches, in ns; 0 for one.

    Source: accu_grads of MFPipelineWithLossScaleCell has the types of the weights; VirtualAssignAdd adds to it in
    the backward of each micro-batch. Without it (`micro_batch_interleave_num`) the passes add to each other.
    """
    num_sums = settings.num_micro_steps - (0 if settings.is_accumulating else 1)
    num_shards = _num_sum_shards(settings) if settings.is_accumulating else 1
    return num_sums * _kernels_ns(SUM, parameters, num_shards, device) if num_sums else 0


def scale_ns(parameters: Sequence[Parameter], settings: StepSettings, device: Device) -> int:
    """Dividing gradients by the loss scale, and setting the sums to zero, in ns.

    Source: mindformers/wrapper/wrapper.py, tensor_grad_scale, which gives float32, for one micro-batch;
    tensor_shard_grad_scale_pipeline for several.
    """
    if not settings.is_accumulating:
        return _kernels_ns(SCALE[settings.is_fused], parameters, settings.num_optimizer_shards, device)
    scale_ns = _kernels_ns(SCALE_SUMS[settings.is_fused], parameters, settings.num_optimizer_shards, device)
    return scale_ns + _kernels_ns(CLEAR_SUMS[settings.is_fused], parameters, _num_sum_shards(settings), device)


def clip_ns(parameters: Iterable[Parameter], settings: StepSettings, device: Device) -> int:
    """Clipping by the global norm (`use_clip_grad`), in ns.

    Source: mindformers/core/clip_grad.py: squares and their sum, then each gradient times a factor in float32.
    """
    return _of_gradients_ns(CLIP[settings.is_fused], parameters, settings, device)


def overflow_ns(parameters: Iterable[Parameter], settings: StepSettings, device: Device) -> int:
    """Looking for infinite gradients, in ns.

    Source: mindspore/nn/wrap/loss_scale.py, get_overflow_status: AllFinite on Atlas A2; both wrapper cells of
    MindFormers call it in every step.
    """
    return _of_gradients_ns(OVERFLOW, parameters, settings, device)


def optimize_ns(parameters: Iterable[Parameter], settings: StepSettings, device: Device) -> int:
    """Return the time of the optimizer's kernels, in ns."""
    states = find_states(settings.optimizer)
    kernels = ADAM if is_optimized_by_operators(settings) else f"WG{states}>W{states}"
    return _of_gradients_ns(kernels, parameters, settings, device)


def is_optimized_by_operators(settings: StepSettings) -> bool:
    """The optimizer is many operators, and not one kernel for each weight."""
    return settings.optimizer in UNFUSED_OPTIMIZERS and not settings.is_fused


def move_states_ns(parameters: Iterable[Parameter], settings: StepSettings, device: Device) -> int:
    """Bringing optimizer states from host memory and taking them back (`optimizer.swap: True`), in ns.

    Source: mindformers/core/optim/adamw.py, `device='CPU'` of the states. Assumed: one state after the other and
    beside nothing else, as gradients are complete only then.
    """
    sizes = [size for parameter in parameters for size in state_sizes(parameter, settings)]
    return sum(copy_ns(size, way, device) for size in sizes for way in (device.prefetch, device.offload))


def exchange_gradient_ns(parameter: Parameter, settings: StepSettings, device: Device) -> int:
    """Time of handing the gradient of a weight of this rank to the data parallel ranks, in ns, if nothing hides it.

    With the parallel optimizer it is a ReduceScatter instead of an AllReduce of the weights that it cuts. Each
    gradient has a collective of its own: fusion of collectives is off unless `parallel.comm_fusion` switches it on
    (AllReduceFusion and ReduceScatterFusion in GEBackendOptimizeACL stand behind `enable_all_reduce_fusion` and
    `enable_reduce_scatter_fusion` of the context, which are False by default in 2.9.0).
    """
    kind = "ReduceScatter" if settings.num_optimizer_shards > 1 and parameter.is_cut else "AllReduce"
    num_ranks, stride = settings.data_parallel, settings.data_parallel_stride
    if parameter.num_copies is not None:  # of experts: their ranks are one after the other
        num_ranks, stride = parameter.num_copies, max(1, num_ranks * stride // parameter.num_copies)
    return collective_ns(kind, parameter.size_bytes, num_ranks, device, stride) if num_ranks > 1 else 0


def _num_sum_shards(settings: StepSettings) -> int:
    """Ranks over which the sums of gradients are cut."""
    return settings.num_optimizer_shards if settings.is_accumulator_sharded else 1


def _of_gradients_ns(kernels: str, parameters: Iterable[Parameter], settings: StepSettings, device: Device) -> int:
    """Kernels that read what gradients are by then; sums of them have the types of the weights."""
    return _kernels_ns(kernels, parameters, settings.num_optimizer_shards, device, settings.is_accumulating)


def _kernels_ns(
    kernels: str,
    parameters: Iterable[Parameter],
    num_shards: int,
    device: Device,
    are_gradients_like_weights: bool = False,
) -> int:
    """Return the time of kernels for every weight, in ns, rounded up once.

    Tensors in memory are read at its rate, results of the kernel before at that of the cache, if it holds all that a
    kernel moves.
    """
    far_bytes = near_bytes = num_kernels = 0
    for parameter in parameters:
        shards = num_parameter_shards(parameter, num_shards)
        elements = ceil_div(parameter.num_elements, shards)
        width = parameter.size_bytes // max(parameter.num_elements, 1)
        widths = {"F": FLOAT32_BYTES, "W": width, "G": width if are_gradients_like_weights else FLOAT32_BYTES, "B": 1}
        for kernel in kernels.split():
            letters = [letter for letter in kernel if letter.isalpha()]
            sizes = [widths[letter.upper()] for letter in letters]
            if kernel.endswith("!") and len(set(sizes)) == 1:
                continue
            moved = sum(sizes) * elements
            near = sum(size for letter, size in zip(letters, sizes, strict=True) if letter.islower()) * elements
            near_bytes += near if moved <= device.cache_bytes else 0
            far_bytes += moved - (near if moved <= device.cache_bytes else 0)
            num_kernels += 1
    bandwidth = device.memory_bandwidth_bytes_per_s * device.memory_permille
    far_ns = ceil_div(far_bytes * NS_PER_S * 1000, bandwidth)
    near_ns = ceil_div(near_bytes * NS_PER_S, device.cache_bandwidth_bytes_per_s) if near_bytes else 0
    return far_ns + near_ns + num_kernels * device.op_latency_ns["vector"]
