"""The figures of a device that a simulation used, in words, for every report."""

from mindswap.simulator.cost.figures import FigureKind
from mindswap.simulator.cost.hardware import FIGURES, Device
from mindswap.simulator.summary_model import DeviceFigure
from mindswap.units import format_bandwidth, format_bytes, format_time


def device_figures(device: Device, dtype: str) -> tuple[DeviceFigure, ...]:
    """Every figure of a device, options included, with its source; those that decide most are marked for captions.

    Peaks of other types than `dtype`, which the network computes in, are left out.

    Raises:
        KeyError: if the device has no figure for the dtype.
    """
    main = (
        (f"matrix_{dtype}", f"{dtype} matrix", _flops(device.peak_flops[dtype])),
        ("compute_fraction", "of it reached", _share(device.compute_permille)),
        ("attention_fraction", "by flash attention", _share(device.attention_permille)),
        ("memory_bandwidth", "memory bandwidth", format_bandwidth(device.memory_bandwidth_bytes_per_s)),
        ("memory_bandwidth_fraction", "of it reached", _share(device.memory_permille)),
        ("usable_memory", "usable memory", format_bytes(device.usable_memory_bytes)),
        ("margin", "of it left free by plans", _share(device.margin_permille)),
        ("fragments", "of what is used, lost by the pool", _share(device.fragments_permille)),
        ("d2h", "copy out (D2H)", format_bandwidth(device.offload.bandwidth_bytes_per_s)),
        ("h2d", "copy in (H2D)", format_bandwidth(device.prefetch.bandwidth_bytes_per_s)),
        ("contended_fraction", "both directions at once", f"{device.contended_permille / 10:g} % of each"),
    )
    host = device.host_bandwidth_bytes_per_s
    rest = (
        ("weight_gradient_fraction", "of the matrix peak, weight gradients", _share(device.weight_gradient_permille)),
        ("attention_grad_fraction", "of it, backward of flash attention", _share(device.attention_grad_permille)),
        ("num_matrix_cores", "matrix cores", str(device.num_matrix_cores) if device.num_matrix_cores else "no limit"),
        (f"vector_{dtype}", f"{dtype} vector", _flops(device.vector_flops[dtype])),
        ("cache_size", "cache", format_bytes(device.cache_bytes) if device.cache_bytes else "none"),
        ("cache_bandwidth", "kernels within it", format_bandwidth(device.cache_bandwidth_bytes_per_s)),
        *(
            (f"{kind}_rate", f"{kind.replace('_', ' ')} kernels", _rate(rate))
            for kind, rate in device.vector_rates.items()
        ),
        *(
            (f"{kind}_op_latency", f"fixed cost of a {kind} operator", format_time(time_ns))
            for kind, time_ns in device.op_latency_ns.items()
        ),
        ("device_memory", "memory of the card", format_bytes(device.memory_bytes)),
        ("hccl_buffer", "buffer of HCCL, 2 for each communicator", format_bytes(device.hccl_buffer_bytes)),
        ("kernel_workspace", "workspace of a matrix kernel", format_bytes(device.kernel_workspace_bytes)),
        ("pool_alignment", "memory of a tensor is a multiple of", format_bytes(device.pool_alignment_bytes)),
        ("d2h_latency", "fixed part of a copy out", format_time(device.offload.latency_ns)),
        ("h2d_latency", "fixed part of a copy in", format_time(device.prefetch.latency_ns)),
        ("num_cards_per_node", "cards in a node", str(device.num_cards_per_node)),
        ("host_memory", "host memory of a node", format_bytes(device.host_memory_bytes)),
        ("host_bandwidth", "copies of all cards, one direction", format_bandwidth(host) if host else "no limit"),
        ("intranode_bandwidth", "within a node", format_bandwidth(device.intranode.bandwidth_bytes_per_s)),
        ("internode_bandwidth", "between nodes", format_bandwidth(device.internode.bandwidth_bytes_per_s)),
        ("collective_fraction", "collectives reach within a node", _share(device.intranode.efficiency_permille)),
        ("internode_fraction", "and between nodes", _share(device.internode.efficiency_permille)),
    )
    return tuple(
        DeviceFigure(name, value, device.sources.get(key, "not said"), is_main)
        for figures, is_main in ((main, True), (rest, False))
        for key, name, value in figures
    )


def format_figure(name: str, value: int) -> str:
    """A figure of a device file, in its smallest unit, as calibrations show it: shares in parts of 1."""
    kind = FIGURES[name].kind
    if kind is FigureKind.BANDWIDTH:
        return format_bandwidth(value)
    if kind is FigureKind.FRACTION:
        return f"{value / 1000:.3f}"
    return format_time(value) if kind is FigureKind.TIME else f"{value / 10**9:.1f} G/s"


def _share(permille: int) -> str:
    return f"{permille / 10:g} %"


def _rate(elements_per_s: int) -> str:
    return f"{elements_per_s / 10**9:g} Gelements/s" if elements_per_s else "bound by memory only"


def _flops(flops: int) -> str:
    return f"{flops / 10**12:g} TFLOPS"
