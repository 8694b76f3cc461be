"""Command line of `mindswap compare`."""

import argparse

from mindswap.command_line.options import (
    add_device,
    add_expert_skew,
    add_json,
    add_no_cache,
    add_plot,
    answer,
    device_overrides,
)
from mindswap.features.compare import compare_configs
from mindswap.files import require_folders
from mindswap.planner.problem import Compared
from mindswap.policy.coverage import BASELINES
from mindswap.report.plots import plot_tradeoffs

_BASELINES = "\n".join(f"  {name:<20} {baseline.meaning}" for name, baseline in BASELINES.items())
EPILOG = f"""\
examples:
  mindswap compare a.yaml b.yaml --d2h 20GB/s
  mindswap compare llama2_7b.yaml none full-recompute default-swap --plot compare.png
  mindswap compare --json llama2_7b.yaml select-recompute | jq '.configurations[].step_time_ns'

Baselines are tried on the network of the first configuration:
{_BASELINES}

Exit code 1 if none fits.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the arguments and options of the command."""
    parser.add_argument(
        "configs",
        metavar="CONFIG|BASELINE",
        nargs="+",
        help="the first one is a YAML of MindFormers, or a step of `mindswap trace` (.json)",
    )
    add_plot(parser)
    add_no_cache(parser)
    add_json(parser)
    add_expert_skew(parser)
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    """Simulate all of them; 1 if none of them fits."""
    require_folders(args.plot)
    comparison = compare_configs(args.configs, args.device, device_overrides(args), not args.no_cache, args.expert_skew)
    device = comparison.runs[0][1].device
    if args.plot:
        plot_tradeoffs(
            [Compared(name, run.step_time_ns, run.actual_peak_bytes, run.fits) for name, run in comparison.runs],
            args.plot,
            title="Step time and peak memory",
            caption=device.title,
            budget_bytes=device.usable_memory_bytes,
        )
    return answer(args, {"configurations": comparison.data()}, comparison, comparison.fits_any)
