"""`mindswap compare`: step time against peak memory of several configurations."""

import argparse
import json
from pathlib import Path

from mindswap.commands.stepping import LoadedStep, add_device_arguments, device_overrides, load_step, outside_line
from mindswap.commands.writing import require_folders
from mindswap.errors import SimulationError
from mindswap.policy.baselines import BASELINES, baseline_policy
from mindswap.report.tables import format_table
from mindswap.report.tradeoff_plots import TradeOff, plot_compare
from mindswap.simulate.step_model import SimulatedStep
from mindswap.units import format_bytes, format_time

HELP = "Compare simulated step time and peak memory of several configurations and baselines; no device."
EXAMPLES = f"""\
  mindswap compare a.yaml b.yaml --d2h 20GB/s
  mindswap compare llama2_7b.yaml none full-recompute default-swap --plot compare.png
  mindswap compare --json llama2_7b.yaml select-recompute | jq '.[].step_time_ns'

Baselines are tried on the network of the first configuration:
{chr(10).join(f"  {name:<17} {baseline.meaning}" for name, baseline in BASELINES.items())}
"""
HEADER = ("configuration", "step time", "tokens/s/card", "against first", "peak memory", "exposed copies", "fits")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("configs", metavar="CONFIG|BASELINE", nargs="+", help="the first one is a YAML of MindFormers")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="write a picture (.png, .svg, .pdf)")
    parser.add_argument("--no-cache", action="store_true", help="compile again, keep nothing")
    parser.add_argument("--json", action="store_true", help="for machines")
    add_device_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Simulate all of them."""
    if args.configs[0] in BASELINES:
        raise SimulationError(f"'{args.configs[0]}' is a baseline: name a configuration before it")
    for name in args.configs:
        if name not in BASELINES and not Path(name).exists():
            raise SimulationError(f"'{name}' is no file and no baseline; baselines are {', '.join(BASELINES)}")
    require_folders(args.plot)
    first: LoadedStep | None = None
    steps: list[tuple[str, LoadedStep, SimulatedStep]] = []
    for name in args.configs:
        if name in BASELINES and first is not None:
            steps.append((name, first, first.model.simulate(baseline_policy(name, first.model.captured.trees))))
            continue
        loaded = load_step(name, args.device, device_overrides(args), not args.no_cache)
        first = first or loaded
        steps.append((Path(name).stem, loaded, loaded.simulate()))
    device = steps[0][1].device
    if args.plot:
        points = [TradeOff(name, step.step_time_ns, step.peak_bytes) for name, _, step in steps]
        caption = device.title
        budget = device.usable_memory_bytes
        plot_compare(points, args.plot, title="Step time and peak memory", caption=caption, budget_bytes=budget)
    if args.json:
        print(json.dumps([_to_json(*entry) for entry in steps], indent=1))
        return 0
    rows = [_row(*entry, steps[0][2].step_time_ns) for entry in steps]
    print(f"simulated on {device.title}, {format_bytes(device.usable_memory_bytes)} usable\n")
    print(format_table(HEADER, rows))
    beside = outside_line(steps[0][1])
    if beside:
        print(f"\n{beside}")
    return 0


def _tokens_per_s(loaded: LoadedStep, step: SimulatedStep) -> float:
    settings = loaded.model.settings
    return settings.num_tokens * 1e9 / step.step_time_ns / settings.num_cards


def _row(name: str, loaded: LoadedStep, step: SimulatedStep, first_ns: int) -> tuple[str, ...]:
    return (
        name,
        format_time(step.step_time_ns),
        f"{_tokens_per_s(loaded, step):.0f}",
        f"{100 * (step.step_time_ns / first_ns - 1):+.1f} %",
        format_bytes(step.peak_bytes),
        format_time(step.timeline.exposed_copy_ns),
        "yes" if step.peak_bytes <= loaded.device.usable_memory_bytes else "no",
    )


def _to_json(name: str, loaded: LoadedStep, step: SimulatedStep) -> dict:
    return {
        "name": name,
        "simulated": True,
        "device": loaded.device.name,
        "step_time_ns": step.step_time_ns,
        "tokens_per_s": _tokens_per_s(loaded, step),
        "peak_bytes": step.peak_bytes,
        "exposed_copy_ns": step.timeline.exposed_copy_ns,
        "fits": step.peak_bytes <= loaded.device.usable_memory_bytes,
    }
