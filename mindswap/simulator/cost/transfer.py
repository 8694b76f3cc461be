"""Time of copies between device and host, and of collectives between cards."""

import math

from mindswap.simulator.cost.hardware import Device, Link, Network
from mindswap.units import NS_PER_S, ceil_div

# Ring algorithms: number of rounds in which each card sends num_ranks - 1 shards of the message.
COLLECTIVES = {"AllReduce": 2, "AllGather": 1, "ReduceScatter": 1, "AllToAll": 1, "SendReceive": 2}


def copy_ns(size_bytes: int, link: Link, device: Device) -> int:
    """Return the time of one copy between device and host on an idle link, in ns.

    Model: latency + size / bandwidth, rounded up; 0 for an empty tensor. All cards of a node run the same step and copy
    at the same time, so each has its fraction of the host's bandwidth.
    """
    if size_bytes == 0:
        return 0
    bandwidth = link.bandwidth_bytes_per_s
    if device.host_bandwidth_bytes_per_s:
        bandwidth = min(bandwidth, device.host_bandwidth_bytes_per_s // device.num_cards_per_node)
    return link.latency_ns + ceil_div(size_bytes * NS_PER_S, bandwidth)


def collective_ns(kind: str, size_bytes: int, num_ranks: int, device: Device, stride: int = 1) -> int:
    """Return the time of one collective on an idle network, in ns.

    Model: fixed cost + steps * latency + sent bytes / bandwidth, first within nodes, then between them. With n
    ranks, each sends (n - 1) / n of the message (twice for AllReduce). A group over several nodes does its part
    within each node first, so that only the part of one card crosses: 1 / l of the message with l ranks in a node.
    AllToAll sends every pair its own part, so all of that crosses. The steps are those of the quicker of the usual
    algorithms, n - 1 of the ring or log2(n) of halving and doubling, which move the same bytes.

    Args:
        kind: one of COLLECTIVES.
        size_bytes: the whole message: what AllReduce and AllToAll have on each rank, what AllGather gives and
            ReduceScatter takes on each rank.
        num_ranks: of the group.
        device: whose network it is.
        stride: from one rank of the group to the next: 1 for tensor parallel ranks; data parallel ranks have the
            tensor and context parallel ones between them.

    Source:
        Thakur, Rabenseifner, Gropp: Optimization of Collective Communication Operations in MPICH, 2005
        (alpha-beta model); share of a full mesh as in msmodeling, tensor_cast/performance_model/comm_analytic.py;
        levels of HCCL: CANN documentation, HCCL, "collective communication algorithms" (within a server, then
        between servers).
    """
    if num_ranks == 1 or size_bytes == 0:
        return 0
    if kind == "SendReceive":  # to the next rank of a ring, then from the one before: the slowest link counts
        return 2 * send_ns(size_bytes, num_ranks * stride <= device.num_cards_per_node, device)
    num_local = min(num_ranks, max(device.num_cards_per_node // stride, 1))
    num_nodes = ceil_div(num_ranks, num_local)
    if kind == "AllToAll":
        crossing = size_bytes * (num_ranks - num_local) // num_ranks
        levels = [(device.intranode, num_local, size_bytes * num_local // num_ranks)]
        between_ns = ceil_div(crossing * NS_PER_S, _bandwidth(device.internode, num_nodes))
        between_ns += (num_ranks - num_local) * device.internode.latency_ns
    else:
        levels = [(device.intranode, num_local, size_bytes), (device.internode, num_nodes, size_bytes // num_local)]
        between_ns = 0
    within_ns = sum(_level_ns(kind, part, ranks, network) for network, ranks, part in levels)
    return device.op_latency_ns["communication"] + within_ns + between_ns


def _level_ns(kind: str, size_bytes: int, num_ranks: int, network: Network) -> int:
    """Return the time of a collective over one network level, in ns."""
    if num_ranks == 1:
        return 0
    rounds = COLLECTIVES[kind]
    num_steps = rounds * (num_ranks - 1 if kind == "AllToAll" else math.ceil(math.log2(num_ranks)))
    sent = rounds * size_bytes * (num_ranks - 1)
    return num_steps * network.latency_ns + ceil_div(sent * NS_PER_S, num_ranks * _bandwidth(network, num_ranks))


def send_ns(size_bytes: int, is_within_node: bool, device: Device) -> int:
    """Return the time of sending a tensor to one other card, as between pipeline stages, in ns."""
    network = device.intranode if is_within_node else device.internode
    time_ns = ceil_div(size_bytes * NS_PER_S, _bandwidth(network, 2))
    return device.op_latency_ns["communication"] + network.latency_ns + time_ns


def _bandwidth(network: Network, num_ranks: int) -> int:
    """Return the bytes/s that one card of a group of `num_ranks` can send."""
    bandwidth = network.bandwidth_bytes_per_s * network.efficiency_permille // 1000
    if num_ranks <= network.num_mesh_cards:
        bandwidth = bandwidth * (num_ranks - 1) // (network.num_mesh_cards - 1)
    return bandwidth
