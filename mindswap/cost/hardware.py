"""A device as data: every figure with its unit in the name, every figure with a source in its YAML file."""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter

from mindswap.cost.figures import FIGURES

# Source of a figure that an option or a configuration replaces.
SET_BY_USER = "set by the user"
DTYPES = ("float16", "bfloat16", "float32")
OP_KINDS = ("matrix", "vector", "communication")
RATES = ("norm", "norm_grad", "softmax", "activation", "activation_grad")
# Figures that are an attribute of a device, or of a link or network of it.
ATTRIBUTES = {
    "compute_fraction": "compute_permille",
    "weight_gradient_fraction": "weight_gradient_permille",
    "num_matrix_cores": "num_matrix_cores",
    "attention_fraction": "attention_permille",
    "attention_grad_fraction": "attention_grad_permille",
    "memory_bandwidth": "memory_bandwidth_bytes_per_s",
    "memory_bandwidth_fraction": "memory_permille",
    "cache_size": "cache_bytes",
    "cache_bandwidth": "cache_bandwidth_bytes_per_s",
    "device_memory": "memory_bytes",
    "usable_memory": "usable_memory_bytes",
    "margin": "margin_permille",
    "hccl_buffer": "hccl_buffer_bytes",
    "kernel_workspace": "kernel_workspace_bytes",
    "pool_alignment": "pool_alignment_bytes",
    "d2h": "offload.bandwidth_bytes_per_s",
    "d2h_latency": "offload.latency_ns",
    "h2d": "prefetch.bandwidth_bytes_per_s",
    "h2d_latency": "prefetch.latency_ns",
    "contended_fraction": "contended_permille",
    "num_cards_per_node": "num_cards_per_node",
    "host_memory": "host_memory_bytes",
    "host_bandwidth": "host_bandwidth_bytes_per_s",
    "intranode_bandwidth": "intranode.bandwidth_bytes_per_s",
    "intranode_latency": "intranode.latency_ns",
    "num_mesh_cards": "intranode.num_mesh_cards",
    "internode_bandwidth": "internode.bandwidth_bytes_per_s",
    "internode_latency": "internode.latency_ns",
    "collective_fraction": "intranode.efficiency_permille",
    "internode_fraction": "internode.efficiency_permille",
}


@dataclass(frozen=True)
class Link:
    """One direction of the way between device and host, as one card sees it."""

    bandwidth_bytes_per_s: int  # of large copies
    latency_ns: int  # fixed part of a copy


@dataclass(frozen=True)
class Network:
    """What cards talk over, as one card sees it."""

    bandwidth_bytes_per_s: int  # of one card, one direction, to all others together
    latency_ns: int  # of one step of a collective
    efficiency_permille: int  # share of the bandwidth that collectives reach, in thousandths
    # cards with a link of their own between each two (full mesh): a group of n of them has n - 1 of the
    # `num_mesh_cards` - 1 links of a card; 0 for a switch, where a group has all
    num_mesh_cards: int = 0


@dataclass(frozen=True)
class Device:
    """One card and its place in a node."""

    name: str  # key of the file
    title: str  # as people call it
    peak_flops: Mapping[str, int]  # floating point operations per second of the matrix units, by dtype
    vector_flops: Mapping[str, int]  # the same of the vector units, by dtype
    compute_permille: int  # share of the matrix peak that products reach, in thousandths
    weight_gradient_permille: int  # the same of products whose first operand is transposed
    num_matrix_cores: int  # cores over which the output tiles of a product go in whole rounds; 0 if not known
    attention_permille: int  # share of the matrix peak of flash attention
    attention_grad_permille: int  # and of its gradient
    memory_bandwidth_bytes_per_s: int  # of device memory
    memory_permille: int  # the share of it that kernels reach
    cache_bytes: int  # of the cache that all cores share
    cache_bandwidth_bytes_per_s: int  # what kernels reach within it
    # elements per second of kernels that the vector units bound, by kind (`graph.ops`); 0 where only memory bounds them
    vector_rates: Mapping[str, int]
    op_latency_ns: Mapping[str, int]  # fixed cost of an operator, by kind: matrix, vector, communication
    memory_bytes: int  # of the device
    usable_memory_bytes: int  # the part that MindSpore can take
    margin_permille: int  # share of the usable memory that a plan leaves free unless a budget is named, in thousandths
    hccl_buffer_bytes: int  # of a communicator in one direction; HCCL takes it outside the pool of MindSpore
    kernel_workspace_bytes: int  # what a kernel of the matrix units takes beside its tensors
    pool_alignment_bytes: int  # the memory of a tensor is a multiple of it
    offload: Link  # to the host (D2H)
    prefetch: Link  # back (H2D)
    contended_permille: int  # rate of a copy while the other direction copies too
    num_cards_per_node: int  # cards that share host memory
    host_memory_bytes: int  # of a node
    host_bandwidth_bytes_per_s: int  # sum over all cards of a node that copy in one direction; 0 for no common limit
    intranode: Network  # between cards of a node
    internode: Network  # of different nodes
    sources: Mapping[str, str]  # where each figure is from, by key of the file


def with_figures(device: Device, values: Mapping[str, int], sources: Mapping[str, str] | None = None) -> Device:
    """The device with other figures, by their names in `FIGURES`."""
    figures, known = {**figure_values(device), **values}, {**device.sources, **(sources or {})}
    return make_device(device.name, device.title, figures, known)


def make_device(name: str, title: str, value: Mapping[str, int], sources: dict[str, str]) -> Device:
    """A device of figures by their names in `FIGURES`."""
    return Device(
        name=name,
        title=title,
        peak_flops={dtype: value[f"matrix_{dtype}"] for dtype in DTYPES},
        vector_flops={dtype: value[f"vector_{dtype}"] for dtype in DTYPES},
        vector_rates={kind: value[f"{kind}_rate"] for kind in RATES},
        op_latency_ns={kind: value[f"{kind}_op_latency"] for kind in OP_KINDS},
        offload=Link(value["d2h"], value["d2h_latency"]),
        prefetch=Link(value["h2d"], value["h2d_latency"]),
        intranode=Network(
            value["intranode_bandwidth"],
            value["intranode_latency"],
            value["collective_fraction"],
            value["num_mesh_cards"],
        ),
        internode=Network(value["internode_bandwidth"], value["internode_latency"], value["internode_fraction"]),
        sources=sources,
        **{attribute: value[figure] for figure, attribute in ATTRIBUTES.items() if "." not in attribute},
    )


def figure_values(device: Device) -> dict[str, int]:
    """Every figure of a device by its name in `FIGURES`, each in its smallest unit."""
    values = {
        **{f"matrix_{dtype}": device.peak_flops[dtype] for dtype in DTYPES},
        **{f"vector_{dtype}": device.vector_flops[dtype] for dtype in DTYPES},
        **{f"{kind}_rate": device.vector_rates[kind] for kind in RATES},
        **{f"{kind}_op_latency": device.op_latency_ns[kind] for kind in OP_KINDS},
        **{figure: attrgetter(attribute)(device) for figure, attribute in ATTRIBUTES.items()},
    }
    return {name: values[name] for name in FIGURES}
