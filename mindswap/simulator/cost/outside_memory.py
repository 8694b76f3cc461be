"""Device memory beside tensors: workspace of kernels within MindSpore's pool, buffers of HCCL outside it."""

import math
from collections.abc import Iterable, Sequence

from mindswap.config.step import StepSettings
from mindswap.graph.model import Node
from mindswap.graph.ops import ComputeUnit, classify
from mindswap.simulator.cost.hardware import Device
from mindswap.simulator.cost.static_memory import FLOAT32_BYTES

# Gradients of query, key and value come first among the outputs of the backward kernel.
NUM_ATTENTION_GRADIENTS = 3


def workspace_bytes(nodes: Iterable[Node], device: Device) -> int:
    """The largest workspace of an operator; MindSpore takes it from its pool while the kernel runs.

    Source:
        Tiling of CANN's kernels: `WORK_SPACE_RESERVE_SIZE` of flash attention and `GetLibApiWorkSpaceSize` of matrix
        products (`kernel_workspace` of the device). FlashAttentionScoreGrad also sums up the gradients of query, key
        and value in float32 (`dqWorkspaceLen`, `dkWorkspaceLen`, `dvWorkspaceLen` in its opInfo).
    """
    return max(
        (_workspace_of(node, device) for node in nodes if classify(node.op).unit is ComputeUnit.MATRIX), default=0
    )


def _workspace_of(node: Node, device: Device) -> int:
    if node.op != "FlashAttentionScoreGrad" or not device.kernel_workspace_bytes:
        return device.kernel_workspace_bytes
    sums = sum(math.prod(known.shape) * FLOAT32_BYTES for known in node.outputs[:NUM_ATTENTION_GRADIENTS])
    return device.kernel_workspace_bytes + sums


def list_communicators(settings: StepSettings) -> tuple[str, ...]:
    """What the communicators of one rank are for: each is a group of MindSpore with more than one card.

    Source:
        MindSpore's `hccl_world_group`; groups of the splits of operators; in a pipeline forward and backward to the
        other stages (`pipeline_transformer.cc`, CreateForwardGroup), the group of MindFormers' `wrapper.py`, and one
        of its own for weights (`overlap_opt_shard_in_pipeline.cc`, `_parallel_optimizer`).
    """
    names = []
    if settings.num_cards > 1:
        names.append("world")
    if settings.model_parallel > 1:
        names.append("tensor parallel")
    if settings.context_parallel > 1:
        names.append("context parallel")
    if settings.data_parallel > 1:
        names.append("data parallel")
    if settings.pipeline.num_stages > 1:
        names += ["pipeline forward", "pipeline backward", "pipeline loss"]
        if settings.num_optimizer_shards > 1 and settings.data_parallel * settings.context_parallel > 1:
            names.append("weights")
    return tuple(names)


def communication_bytes(communicators: Sequence[str], device: Device) -> int:
    """Buffers of HCCL: each communicator has two of `hccl_buffer`, to send and to receive; outside the pool."""
    return 2 * device.hccl_buffer_bytes * len(communicators)
