"""Report of a calibration as text and JSON."""

from dataclasses import asdict

from mindswap.report.device_figures import format_figure
from mindswap.report.tables import attributes, format_table
from mindswap.simulator.profile.calibration import Calibration, FigureFit
from mindswap.simulator.profile.profile import Profile
from mindswap.units import format_bandwidth, format_bytes, format_count, format_time

# Limit of operators without a measurement that the report lists.
MAX_SHOWN_OTHERS = 6


def calibration_header(profile: Profile, based_on: str) -> dict[str, object]:
    """Return the header of the section `calibration` in a device file."""
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
    """Return the calibration as JSON data, with units in the names; `output` is None if no file was written."""
    return {
        **calibration_header(profile, result.device.name),
        "output": output,
        "figures": [{**asdict(figure), "is_accepted": figure.is_accepted} for figure in result.figures],
        "links": {name: asdict(fit) for name, fit in result.links.items()},
        "others_ns": dict(result.unmeasured_ns),
        **attributes(result, "kernels_ns num_covered covered_ns"),
        "num_operators": len(result.measurements),
        "notes": list(result.notes),
    }


def format_calibration(profile: Profile, result: Calibration, title: str) -> str:
    """Format measurements, figures before and after the fit, fits of links, and operators without a measurement."""
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
    if result.unmeasured_ns:
        unmeasured = ", ".join(f"{name} {format_time(time)}" for name, time in result.unmeasured_ns[:MAX_SHOWN_OTHERS])
        lines.append(f"not measured, longest first: {unmeasured}")
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
    return [
        f"{', '.join(figure_names)} stay{'s' * (len(figure_names) == 1)}: {objection}"
        for objection, figure_names in names.items()
    ]
