"""`mindswap simulate`: step time, peak memory and every stall of a configuration, without a device."""

import argparse
import json
from pathlib import Path

from mindswap.commands.stepping import LoadedStep, add_device_arguments, device_overrides, load_step, outside_line
from mindswap.commands.writing import require_folders
from mindswap.policy.model import Policy
from mindswap.report.device_figures import device_figures
from mindswap.report.simulation.html import write_html
from mindswap.report.simulation.text import format_simulation, simulation_to_json
from mindswap.report.simulation.trace import write_trace
from mindswap.simulate.memory import profile_memory
from mindswap.simulate.step_model import SimulatedStep
from mindswap.simulate.summary import build_report
from mindswap.simulate.summary_model import SimulationReport

HELP = "Predict step time, peak memory and every stall of CONFIG on a device, and show them; simulated, no device."
EXAMPLES = """\
  mindswap simulate configs/llama2_7b/pretrain_llama2_7b.yaml
  mindswap simulate llama2_7b.yaml --device atlas_800t_a2 --memory 54GiB --d2h 20GB/s
  mindswap simulate llama2_7b.yaml --html report.html --plot step.png
  mindswap simulate llama2_7b.yaml --trace step.json      # open in https://ui.perfetto.dev
  mindswap simulate --json llama2_7b.yaml | jq '.tokens_per_s'

The network is compiled once, without swap and recompute; what the policy makes of it is worked out by the rules
of the compiler. Settings of the device can also stand in the configuration, under `mindswap:`.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("config", metavar="CONFIG", help="YAML of MindFormers")
    parser.add_argument("--trace", metavar="FILE", type=Path, help="write a Chrome trace (.json) for Perfetto")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="write a picture (.png, .svg, .pdf)")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page that opens offline in a browser")
    parser.add_argument("--no-cache", action="store_true", help="compile again, keep nothing")
    parser.add_argument("--json", action="store_true", help="for machines")
    add_device_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Simulate one configuration."""
    require_folders(args.trace, args.plot, args.html)
    loaded = load_step(args.config, args.device, device_overrides(args), not args.no_cache)
    report = report_step(loaded, loaded.policy, Path(args.config).stem, loaded.simulate())
    if args.trace:
        write_trace(report, args.trace)
    if args.plot:
        from mindswap.report.simulation.plots import plot_simulation

        plot_simulation(report, args.plot)
    if args.html:
        write_html(report, args.html)
    print(json.dumps(simulation_to_json(report), indent=1) if args.json else format_simulation(report))
    return 0


def report_step(loaded: LoadedStep, policy: Policy, title: str, step: SimulatedStep | None = None) -> SimulationReport:
    """Everything that is said about a step under a policy.

    Args:
        loaded: the configuration.
        policy: in layer indices.
        title: name of what was simulated.
        step: if it was simulated already.
    """
    model, settings, device = loaded.model, loaded.model.settings, loaded.device
    step = step or model.simulate(policy)
    profiles = [profile_memory(step.timeline, stage) for stage in range(step.timeline.program.num_stages)]
    return build_report(
        step.timeline,
        profiles,
        step.static,
        title=title,
        device_title=device.title,
        figures=device_figures(device, settings.compute_dtype),
        num_tokens=settings.num_tokens,
        model_flops=model.model_flops(),
        peak_flops=device.peak_flops[settings.compute_dtype],
        num_cards=settings.num_cards,
        num_cards_per_node=device.num_cards_per_node,
        budget_bytes=device.usable_memory_bytes,
        terms=step.terms,
        notes=model.captured.notes,
        outside_bytes=model.outside_bytes,
        outside=outside_line(loaded),
    )
