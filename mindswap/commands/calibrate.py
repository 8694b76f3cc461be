"""`mindswap calibrate`: a device file from a profile of a real machine."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from mindswap.cost.calibrate import Calibration, calibrate
from mindswap.cost.calibration_file import format_device_file
from mindswap.cost.device_file import DEFAULT_DEVICE, list_devices, load_device
from mindswap.cost.figures import FIGURES, Kind
from mindswap.cost.profile_files import Profile, load_profile
from mindswap.datasets.staged_file import refuse_existing, staged
from mindswap.report.tables import format_table
from mindswap.units import format_bandwidth, format_bytes, format_time

HELP = "Make a device file from a profile of MindSpore on a real machine: measured operators, copies, achieved shares."
EXAMPLES = """\
  mindswap calibrate ./profile -o device.yaml
  mindswap calibrate ./profile/host_20260101_ascend_ms -o device.yaml --device atlas_800t_a2_376t
  mindswap calibrate ./profile -o device.yaml --json | jq '.changes'

PROFILE_DIR is the output_path of mindspore.Profiler, or the folder of one rank in it; profile a few steps with
profiler_level=ProfilerLevel.Level1. What the profile does not show keeps the figure of --device.
"""
MAX_SHOWN_OPERATORS = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("profile", metavar="PROFILE_DIR", type=Path, help="what the profiler wrote")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help="device file to write (.yaml)")
    parser.add_argument(
        "--device", metavar="NAME", default=DEFAULT_DEVICE, help=f"begin with: a file, or {', '.join(list_devices())}"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace FILE")
    parser.add_argument("--json", action="store_true", help="for machines")


def run(args: argparse.Namespace) -> int:
    """Read one profile, write one device file."""
    if not args.overwrite:
        refuse_existing([args.output])
    device = load_device(args.device)
    profile = load_profile(args.profile)
    result = calibrate(profile, device)
    with staged(args.output, overwrite=args.overwrite) as path:
        text = format_device_file(
            result.device, _header(profile, device.name), result.measurements, "Made by mindswap calibrate."
        )
        path.write_text(text, encoding="utf-8")
    if args.json:
        print(json.dumps(_to_json(profile, result, args.output), indent=1))
    else:
        print(_format(profile, result, device.title, args.output))
    return 0


def _header(profile: Profile, based_on: str) -> dict[str, object]:
    header: dict[str, object] = {"based_on": based_on, "profile": profile.folder, "num_kernels": len(profile.kernels)}
    if profile.steps_ns:
        header["mean_step_ns"] = sum(profile.steps_ns) // len(profile.steps_ns)
    if profile.peak_memory_bytes is not None:
        header["peak_memory_bytes"] = profile.peak_memory_bytes
    return header


def _to_json(profile: Profile, result: Calibration, output: Path) -> dict[str, object]:
    return {
        **_header(profile, result.device.name),
        "output": str(output),
        "changes": [asdict(change) for change in result.changes],
        "links": {name: asdict(fit) for name, fit in result.links.items()},
        "kernels_ns": result.kernels_ns,
        "num_covered": result.num_covered,
        "covered_ns": result.covered_ns,
        "num_operators": len(result.measurements),
        "roofline_error_permille": result.roofline_error_permille,
        "middle_error_permille": result.middle_error_permille,
        "notes": list(result.notes),
    }


def _format(profile: Profile, result: Calibration, title: str, output: Path) -> str:
    share = 100 * result.covered_ns / result.kernels_ns if result.kernels_ns else 0.0
    lines = [
        f"profile: {profile.folder}",
        f"device:  {title}, then what was measured",
        "",
        f"{len(result.measurements)} operators measured: {result.num_covered} of {result.num_kernels} kernels, "
        f"{share:.0f} % of their {format_time(result.kernels_ns)}",
    ]
    if profile.steps_ns:
        mean_ns = sum(profile.steps_ns) // len(profile.steps_ns)
        lines.append(f"{len(profile.steps_ns)} steps of {format_time(mean_ns)} on average")
    if profile.peak_memory_bytes is not None:
        lines.append(f"highest use of the memory pool: {format_bytes(profile.peak_memory_bytes)}")
    if result.changes:
        rows = [
            (change.name, _show(change.name, change.before), _show(change.name, change.after), change.basis)
            for change in result.changes
        ]
        lines += ["", format_table(("figure", "before", "measured", "from"), rows)]
    for name, fit in result.links.items():
        middle, largest = (f"{error / 10:.1f} %" for error in (fit.middle_error_permille, fit.largest_error_permille))
        line = f"t = {format_time(fit.latency_ns)} + size / {format_bandwidth(fit.bandwidth_bytes_per_s)}"
        lines.append(f"{name}: {line}; off by {middle} for the middle copy, {largest} at most")
    if result.roofline_error_permille is not None and result.middle_error_permille is not None:
        lines.append(
            f"roofline with these figures: {result.roofline_error_permille / 10:+.1f} % of the measured time in total, "
            f"off by {result.middle_error_permille / 10:.1f} % for the middle operator"
        )
    if result.measurements:
        rows = [
            (m.key.op, str(m.count), format_time(m.duration_ns), format_time(m.count * m.duration_ns))
            for m in result.measurements[:MAX_SHOWN_OPERATORS]
        ]
        lines += ["", format_table(("operator", "runs", "each", "together"), rows)]
    lines += ["", *(f"note: {note}" for note in result.notes)] if result.notes else []
    return "\n".join([*lines, "", f"written: {output}"])


def _show(name: str, value: int) -> str:
    kind = FIGURES[name].kind
    if kind is Kind.BANDWIDTH:
        return format_bandwidth(value)
    return format_time(value) if kind is Kind.TIME else f"{value / 1000:.3f}"
