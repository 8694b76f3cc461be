"""A device as data: every figure with its unit in the name, every figure with a source in its YAML file."""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["SET_BY_USER", "Device", "Link", "Network"]

# Source of a figure that an option or a configuration replaces.
SET_BY_USER = "set by the user"


@dataclass(frozen=True)
class Link:
    """One direction of the way between device and host, as one card sees it.

    Attributes:
        bandwidth_bytes_per_s: of large copies.
        latency_ns: fixed part of a copy.
        efficiency: share of the bandwidth by size, as (size_bytes, permille) rising; the last entry whose size
            is not larger than the copy counts, 1000 below the first.
    """

    bandwidth_bytes_per_s: int
    latency_ns: int
    efficiency: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Network:
    """What cards talk over, as one card sees it.

    Attributes:
        bandwidth_bytes_per_s: of one card, one direction, to all others together.
        latency_ns: of one step of a collective.
        efficiency_permille: share of the bandwidth that collectives reach, in thousandths.
        num_mesh_cards: cards with a link of their own between each two (full mesh): a group of n of them
            has n - 1 of the `num_mesh_cards` - 1 links of a card; 0 for a switch, where a group has all.
    """

    bandwidth_bytes_per_s: int
    latency_ns: int
    efficiency_permille: int
    num_mesh_cards: int = 0


@dataclass(frozen=True)
class Device:
    """One card and its place in a node.

    Attributes:
        name: key of the file.
        title: as people call it.
        peak_flops: floating point operations per second of the matrix units, by dtype.
        vector_flops: the same of the vector units, by dtype.
        compute_permille: share of the matrix peak that products reach, in thousandths.
        weight_gradient_permille: the same of products whose first operand is transposed.
        num_matrix_cores: cores over which the output tiles of a product go in whole rounds; 0 if not known.
        attention_permille, attention_grad_permille: share of the matrix peak of flash attention and its gradient.
        memory_bandwidth_bytes_per_s, memory_permille: device memory, and the share that kernels reach.
        cache_bytes, cache_bandwidth_bytes_per_s: of the cache all cores share; what kernels reach within it.
        vector_rates: elements per second of kernels that the vector units bound, by kind (`graph.ops`);
            0 where only memory bounds them.
        op_latency_ns: fixed cost of an operator, by kind: matrix, vector, communication.
        memory_bytes, usable_memory_bytes: device memory, and the part that MindSpore can take.
        margin_permille: share of the usable memory that a plan leaves free unless a budget is named, in thousandths.
        hccl_buffer_bytes: of a communicator in one direction; HCCL takes it outside the pool of MindSpore.
        kernel_workspace_bytes: what a kernel of the matrix units takes beside its tensors.
        pool_alignment_bytes: the memory of a tensor is a multiple of it.
        offload, prefetch: link to the host (D2H) and back (H2D).
        contended_permille: rate of a copy while the other direction copies too.
        num_cards_per_node: cards that share host memory.
        host_memory_bytes: of a node.
        host_bandwidth_bytes_per_s: sum over all cards of a node that copy in one direction; 0 for no common limit.
        intranode, internode: between cards of a node, and of different nodes.
        sources: where each figure is from, by key of the file.
    """

    name: str
    title: str
    peak_flops: Mapping[str, int]
    vector_flops: Mapping[str, int]
    compute_permille: int
    weight_gradient_permille: int
    num_matrix_cores: int
    attention_permille: int
    attention_grad_permille: int
    memory_bandwidth_bytes_per_s: int
    memory_permille: int
    cache_bytes: int
    cache_bandwidth_bytes_per_s: int
    vector_rates: Mapping[str, int]
    op_latency_ns: Mapping[str, int]
    memory_bytes: int
    usable_memory_bytes: int
    margin_permille: int
    hccl_buffer_bytes: int
    kernel_workspace_bytes: int
    pool_alignment_bytes: int
    offload: Link
    prefetch: Link
    contended_permille: int
    num_cards_per_node: int
    host_memory_bytes: int
    host_bandwidth_bytes_per_s: int
    intranode: Network
    internode: Network
    sources: Mapping[str, str]
