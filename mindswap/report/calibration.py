"""A calibration as text and as plain data for JSON."""

from dataclasses import asdict

from mindswap.report.tables import format_table
from mindswap.simulator.cost.calibrate import Calibration, FigureFit
from mindswap.simulator.cost.hardware import FIGURES, Device, FigureKind
from mindswap.simulator.cost.profile import Profile
from mindswap.simulator.summary_model import DeviceFigure
from mindswap.units import format_bandwidth, format_bytes, format_count, format_time

# The figures of a device that a simulation used, in words, for every report.


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
    return format_time(value)


def _share(permille: int) -> str:
    return f"{permille / 10:g} %"


def _rate(elements_per_s: int) -> str:
    return f"{elements_per_s / 10**9:g} Gelements/s" if elements_per_s else "bound by memory only"


def _flops(flops: int) -> str:
    return f"{flops / 10**12:g} TFLOPS"


MAX_SHOWN_OTHERS = 6


def calibration_header(profile: Profile, based_on: str) -> dict[str, object]:
    """Header of `calibration` in a device file."""
    header: dict[str, object] = {
        "based_on": based_on,
        "profile": profile.folder,
        "num_ranks": profile.num_ranks,
        "num_kernels": len(profile.kernels),
    }
    if profile.steps:
        header["mean_step_ns"] = sum(step.total_ns for step in profile.steps) // len(profile.steps)
    if profile.peak_memory_bytes is not None:
        header["peak_memory_bytes"] = profile.peak_memory_bytes
    return header


def calibration_json(profile: Profile, result: Calibration, output: str | None) -> dict[str, object]:
    """Everything, with units in the names; `output` is None if no file was written."""
    return {
        **calibration_header(profile, result.device.name),
        "output": output,
        "figures": [{**asdict(figure), "is_accepted": figure.is_accepted} for figure in result.figures],
        "links": {name: asdict(fit) for name, fit in result.links.items()},
        "others_ns": dict(result.others),
        "kernels_ns": result.kernels_ns,
        "num_covered": result.num_covered,
        "covered_ns": result.covered_ns,
        "num_operators": len(result.measurements),
        "notes": list(result.notes),
    }


def format_calibration(profile: Profile, result: Calibration, title: str) -> str:
    """Measurements, the figures of links before and after, and operators that were not measured."""
    share = 100 * result.covered_ns / result.kernels_ns if result.kernels_ns else 0.0
    ranks = f", {profile.num_ranks} ranks" if profile.num_ranks > 1 else ""
    level = f", profiler {profile.level}" if profile.level else ""
    lines = [
        f"profile: {profile.folder}{ranks}{level}",
        f"device:  {title}, then what was measured",
        "",
        f"{len(result.measurements)} operators measured: {result.num_covered} of {result.num_kernels} kernels, "
        f"{share:.0f} % of their {format_time(result.kernels_ns)}",
    ]
    lines += _steps(profile)
    if profile.peak_memory_bytes is not None:
        lines.append(f"highest use of the memory pool: {format_bytes(profile.peak_memory_bytes)}")
    lines += ["", *_figures(result.figures)]
    lines += _objections(result.figures)
    for name, fit in result.links.items():
        middle, largest = (f"{error / 10:.1f} %" for error in (fit.middle_error_permille, fit.largest_error_permille))
        line = f"t = {format_time(fit.latency_ns)} + size / {format_bandwidth(fit.bandwidth_bytes_per_s)}"
        lines.append(f"{name}: {line}; off by {middle} for the middle copy, {largest} at most")
    if result.others:
        others = ", ".join(f"{name} {format_time(time)}" for name, time in result.others[:MAX_SHOWN_OTHERS])
        lines.append(f"not measured, longest first: {others}")
    lines += ["", *(f"note: {note}" for note in result.notes)] if result.notes else []
    return "\n".join(line.rstrip() for text in lines for line in text.split("\n"))


def _steps(profile: Profile) -> list[str]:
    if not profile.steps:
        return []
    count = len(profile.steps)
    total = sum(step.total_ns for step in profile.steps)
    parts = {
        "computing": [step.computing_ns for step in profile.steps],
        "communication not overlapped": [step.exposed_communication_ns for step in profile.steps],
        "free": [step.free_ns for step in profile.steps],
    }
    shares = ", ".join(f"{name} {100 * sum(part) / total if total else 0:.0f} %" for name, part in parts.items())
    return [f"{format_count(count, 'step')} of {format_time(total // count)} on average: {shares}"]


def _figures(figures: tuple[FigureFit, ...]) -> list[str]:
    rows = [
        (
            figure.name,
            format_figure(figure.name, figure.before),
            format_figure(figure.name, figure.fitted),
            str(figure.num_samples),
            "-" if figure.residual_permille is None else f"{figure.residual_permille / 10:.1f} %",
            "" if figure.is_accepted else "stays",
        )
        for figure in figures
        if figure.fitted is not None
    ]
    return [format_table(("figure", "before", "fitted", "samples", "median error", ""), rows)] if rows else []


def _objections(figures: tuple[FigureFit, ...]) -> list[str]:
    names: dict[str, list[str]] = {}
    for figure in figures:
        if figure.objection:
            names.setdefault(figure.objection, []).append(figure.name)
    return [f"{', '.join(found)} stay{'s' * (len(found) == 1)}: {why}" for why, found in names.items()]
