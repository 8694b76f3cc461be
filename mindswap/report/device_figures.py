"""The figures of a device that a simulation used, in words, for every report."""

from mindswap.cost.hardware import Device
from mindswap.report.simulation_model import DeviceFigure
from mindswap.units import format_bandwidth, format_bytes, format_time

__all__ = ["device_figures"]


def device_figures(device: Device, dtype: str) -> tuple[DeviceFigure, ...]:
    """Every figure with its source; those that decide most are marked for captions.

    Args:
        device: as used, options included.
        dtype: that the network computes in; peaks of other types are left out.

    Raises:
        KeyError: if the device has no figure for the dtype.
    """
    collective = f"{device.intranode.efficiency_permille / 10:g} %"
    main = (
        (f"matrix_{dtype}", f"{dtype} matrix", _flops(device.peak_flops[dtype])),
        ("compute_fraction", "of it reached", f"{device.compute_permille / 10:g} %"),
        ("memory_bandwidth", "memory bandwidth", format_bandwidth(device.memory_bandwidth_bytes_per_s)),
        ("memory_fraction", "of it reached", f"{device.memory_permille / 10:g} %"),
        ("usable_memory", "usable memory", format_bytes(device.usable_memory_bytes)),
        ("d2h", "copy out (D2H)", format_bandwidth(device.offload.bandwidth_bytes_per_s)),
        ("h2d", "copy in (H2D)", format_bandwidth(device.prefetch.bandwidth_bytes_per_s)),
        ("contended_fraction", "both directions at once", f"{device.contended_permille / 10:g} % of each"),
    )
    host = device.host_bandwidth_bytes_per_s
    rest = (
        (f"vector_{dtype}", f"{dtype} vector", _flops(device.vector_flops[dtype])),
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
        ("collective_fraction", "collectives reach", collective),
    )
    return tuple(
        DeviceFigure(name, value, device.sources.get(key, "not said"), is_main)
        for figures, is_main in ((main, True), (rest, False))
        for key, name, value in figures
    )


def _flops(flops: int) -> str:
    return f"{flops / 10**12:g} TFLOPS"
