"""Step overhead: time of gradient processing and of the optimizer, one function per term.

Gradients are accumulated over micro-batches, reduced over data parallel ranks, scaled, clipped, checked, and applied by
the optimizer. All kernels are memory bound. A term is a list of kernels with the tensors that each reads and writes, as
MindFormers 1.9.0 defines them in Python and MindSpore launches them one by one; with `jit_level: O1` consecutive ones
are fused (`clusterable_ops_with_level_dvm` of graph_kernel_cluster.cc has all of their operators).
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

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

# Optimizers that consist of many operators (mindformers/core/optim/adamw.py, pma_adamw.py). The average of PmaAdamW is
# updated once in `interleave_step` steps and not modelled. All others are one fused kernel per weight.
UNFUSED_OPTIMIZERS = ("AdamW", "PmaAdamW")


# Kernels of each term, as "inputs>outputs" per element of a weight, one letter per tensor. W has the dtype of the
# weight, G that of the gradient, F is float32; upper case is read from or written to device memory, lower case (and b,
# of one byte) is a temporary that may be in the cache. "!" marks a cast, which is no kernel if the dtypes are equal. In
# pairs the second is the fused form of `jit_level: O1`.
SUM = "WW>W"
SCALE = ("W>f! f>F", "W>F")
SCALE_SUMS = ("W>w w>W", "W>W")
CLEAR_SUMS = ("W>b b>w w>w w>W", "W>W")
CLIP = ("G>g g> G>f! f>f f>G!", "G> G>G")
OVERFLOW = "G>"
# Of one weight, in the order of execution of a dry run (docs/internals/notes.md#launches-of-a-step).
ADAM = (
    "W>f! f>f "  # weight decay
    "G>f! G>f F>f f>f ff>f f>F "  # first moment: copied, times beta1, sum with the gradient times 1 - beta1
    "F>f f>f fff>f f>F "  # second moment: copied, times beta2, sum with the square
    "F>f F>f f>f f>f f>f "  # both moments copied, the second corrected, its root, eps
    "ff>f f>f ff>f f>w! w>W",  # the step
    "F>f f>f Gf>F "  # first moment: copied, times beta1, sum
    "F>f f>f fG>F "  # second moment: copied, times beta2, sum of it and the square
    "W>f "  # weight decay
    "F>f F>f fff>F f>W!",  # both moments copied, the step
)


def accumulate_ns(parameters: Iterable[Parameter], settings: StepSettings, device: Device) -> int:
    """Return the time of accumulating the gradients of all micro-batches, in ns; 0 for one.

    Source: accu_grads of MFPipelineWithLossScaleCell has the types of the weights; VirtualAssignAdd adds to it in
    the backward of each micro-batch.
    """
    if not settings.is_accumulating:
        return 0
    return settings.num_micro_steps * _kernels_ns(SUM, parameters, _num_sum_shards(settings), device)


def scale_ns(parameters: Sequence[Parameter], settings: StepSettings, device: Device) -> int:
    """Return the time of dividing gradients by the loss scale and zeroing the accumulators, in ns.

    Source: mindformers/wrapper/wrapper.py, tensor_grad_scale, which gives float32, for one micro-batch;
    tensor_shard_grad_scale_pipeline for several.
    """
    if not settings.is_accumulating:
        return _kernels_ns(SCALE[settings.is_fused], parameters, settings.num_optimizer_shards, device)
    scale_ns = _kernels_ns(SCALE_SUMS[settings.is_fused], parameters, settings.num_optimizer_shards, device)
    return scale_ns + _kernels_ns(CLEAR_SUMS[settings.is_fused], parameters, _num_sum_shards(settings), device)


def clip_ns(parameters: Iterable[Parameter], settings: StepSettings, device: Device) -> int:
    """Return the time of clipping by the global norm (`use_clip_grad`), in ns.

    Source: mindformers/core/clip_grad.py: squares and their sum, then each gradient times a factor in float32.
    """
    return _of_gradients_ns(CLIP[settings.is_fused], parameters, settings, device)


def overflow_ns(parameters: Iterable[Parameter], settings: StepSettings, device: Device) -> int:
    """Return the time of the overflow check of gradients, in ns.

    Source: mindspore/nn/wrap/loss_scale.py, get_overflow_status: AllFinite on Atlas A2; both wrapper cells of
    MindFormers call it in every step.
    """
    return _of_gradients_ns(OVERFLOW, parameters, settings, device)


def optimize_ns(parameters: Iterable[Parameter], settings: StepSettings, device: Device) -> int:
    """Return the time of the optimizer, in ns.

    The host reads the overflow flag of the device before it launches the optimizer (`if not overflow:` of MindFormers'
    wrapper cells), so the device waits where an update takes less time than its launches. In forward and backward the
    host is ahead (docs/internals/simulator.md#steps-below-21-s).
    """
    states = find_states(settings.optimizer)
    is_operators = settings.optimizer in UNFUSED_OPTIMIZERS
    kernels = ADAM[settings.is_fused] if is_operators else f"WG{states}>W{states}"
    updates = [
        _work_of(kernels, weight, settings.num_optimizer_shards, device, settings.is_accumulating)
        for weight in parameters
    ]
    if settings.is_launched_at_once or not device.launch_ns:
        return _duration_ns(updates, device)
    end_ns = launched_ns = 0
    for update in updates:
        launched_ns += update.num_kernels * device.launch_ns
        end_ns = max(end_ns + _duration_ns([update], device), launched_ns)
    return end_ns


def move_states_ns(parameters: Iterable[Parameter], settings: StepSettings, device: Device) -> int:
    """Return the exposed time of prefetching and offloading optimizer states (`optimizer.swap: True`), in ns.

    By the order of execution of dry runs (docs/internals/notes.md#optimizer-states-on-the-host), no copy overlaps
    backward: the first prefetch waits for the overflow flag, which reads all gradients. Each prefetch waits for the
    kernel before it. AdamW as single operators prefetches a state, updates it, and offloads it while the next state
    comes; but the last kernel of a weight waits for its offloads. A fused update prefetches all states of a weight, and
    offloads them while those of the next weight come. Kernels are counted in full, also those that overlap copies.

    Source: mindformers/core/optim/adamw.py and fused_adamw.py, `device='CPU'` of the states.
    """
    sizes = [state_sizes(parameter, settings) for parameter in parameters]
    if settings.optimizer in UNFUSED_OPTIMIZERS:
        return sum(_pipelined_copies_ns(states, device) for states in sizes)
    return _pipelined_copies_ns([sum(states) for states in sizes if states], device)


def _pipelined_copies_ns(sizes: Sequence[int], device: Device) -> int:
    """Return the time to prefetch and offload tensors, in ns: one is offloaded while the next one is prefetched."""
    in_ns = [copy_ns(size, device.prefetch, device) for size in sizes]
    out_ns = [copy_ns(size, device.offload, device) for size in sizes]
    both_ns = (_both_ways_ns(*pair, device) for pair in zip(out_ns[:-1], in_ns[1:], strict=True))
    return sum(in_ns[:1]) + sum(both_ns) + sum(out_ns[-1:])


def _both_ways_ns(out_ns: int, in_ns: int, device: Device) -> int:
    """Return the time of an offload and a prefetch that start together, in ns; they slow each other down."""
    shorter_ns, longer_ns = sorted((out_ns, in_ns))
    return longer_ns - shorter_ns + ceil_div(shorter_ns * 1000, device.contended_permille)


def reduce_gradient_ns(parameter: Parameter, settings: StepSettings, device: Device) -> int:
    """Return the time of reducing the gradient of a weight over the data parallel ranks, in ns, without overlap.

    With the parallel optimizer, sharded weights use ReduceScatter, others AllReduce. Each gradient has its own
    collective: fusion is off unless `parallel.comm_fusion` enables it (AllReduceFusion and ReduceScatterFusion in
    GEBackendOptimizeACL depend on `enable_all_reduce_fusion` and `enable_reduce_scatter_fusion` of the context, which
    are False by default in 2.9.0).
    """
    kind = "ReduceScatter" if settings.num_optimizer_shards > 1 and parameter.is_sharded else "AllReduce"
    num_ranks, stride = settings.data_parallel, settings.data_parallel_stride
    if parameter.num_copies is not None:  # of experts: their ranks are one after the other
        num_ranks, stride = parameter.num_copies, max(1, num_ranks * stride // parameter.num_copies)
    return collective_ns(kind, parameter.size_bytes, num_ranks, device, stride) if num_ranks > 1 else 0


def _num_sum_shards(settings: StepSettings) -> int:
    """Return the ranks over which the gradient accumulators are sharded."""
    return settings.num_optimizer_shards if settings.is_accumulator_sharded else 1


def _of_gradients_ns(kernels: str, parameters: Iterable[Parameter], settings: StepSettings, device: Device) -> int:
    """Return the time of kernels that read scaled gradients; accumulators have the dtypes of the weights."""
    return _kernels_ns(kernels, parameters, settings.num_optimizer_shards, device, settings.is_accumulating)


def _kernels_ns(
    kernels: str,
    parameters: Iterable[Parameter],
    num_shards: int,
    device: Device,
    are_gradients_like_weights: bool = False,
) -> int:
    """Return the time of kernels for every weight, in ns, rounded up once."""
    work = [_work_of(kernels, weight, num_shards, device, are_gradients_like_weights) for weight in parameters]
    return _duration_ns(work, device)


class _Work(NamedTuple):
    """Work of the kernels of one weight."""

    far_bytes: int  # read from or written to device memory
    near_bytes: int  # temporaries in the cache
    num_kernels: int


def _work_of(
    kernels: str, parameter: Parameter, num_shards: int, device: Device, are_gradients_like_weights: bool
) -> _Work:
    """Measure the work of the kernels of a weight: temporaries are in the cache if the kernel's tensors fit in it."""
    far_bytes = near_bytes = num_kernels = 0
    elements = ceil_div(parameter.num_elements, num_parameter_shards(parameter, num_shards))
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
    return _Work(far_bytes, near_bytes, num_kernels)


def _duration_ns(work: Sequence[_Work], device: Device) -> int:
    """Return the time of the kernels of some weights on the device, in ns, rounded up once."""
    bandwidth = device.memory_bandwidth_bytes_per_s * device.memory_permille
    near_bytes = sum(entry.near_bytes for entry in work)
    far_ns = ceil_div(sum(entry.far_bytes for entry in work) * NS_PER_S * 1000, bandwidth)
    near_ns = ceil_div(near_bytes * NS_PER_S, device.cache_bandwidth_bytes_per_s) if near_bytes else 0
    return far_ns + near_ns + sum(entry.num_kernels for entry in work) * device.op_latency_ns["vector"]
