"""Compare simulated step time and peak memory of several configurations and baselines; no device.

examples:
  mindswap compare a.yaml b.yaml --d2h 20GB/s
  mindswap compare llama2_7b.yaml none full-recompute default-swap --plot compare.png
  mindswap compare --json llama2_7b.yaml select-recompute | jq '.configurations[].step_time_ns'

Baselines are tried on the network of the first configuration:
{baselines}

Exit code 1 if none of them fits.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mindswap.api.run import Run, outside_line
from mindswap.api.step import Step, load_step
from mindswap.commands.options import add_common, add_device_arguments, device_overrides
from mindswap.config.nodes import Document, show
from mindswap.errors import SimulationError
from mindswap.files import require_folders
from mindswap.policy.coverage import BASELINES, baseline_policy
from mindswap.report.plots import TradeOff, plot_tradeoffs
from mindswap.report.problems import answer_text
from mindswap.report.tables import format_table
from mindswap.units import format_bytes, format_time

# What tells one model from another -> where it stands below `model:`, in legacy or in newer configurations.
MODEL_KEYS = {
    "model": (("arch", "type"), ("model_config", "model_type")),
    "layers": (("model_config", "num_layers"), ("model_config", "num_hidden_layers")),
    "hidden size": (("model_config", "hidden_size"),),
}
HEADER = ("configuration", "step time", "tokens/s/card", "against first", "peak memory", "exposed copies", "fits")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    baselines = "\n".join(f"  {name:<17} {baseline.meaning}" for name, baseline in BASELINES.items())
    parser.epilog = (parser.epilog or "").format(baselines=baselines)
    parser.add_argument(
        "configs",
        metavar="CONFIG|BASELINE",
        nargs="+",
        help="the first one is a YAML of MindFormers, or a step of `mindswap trace` (.json)",
    )
    add_common(parser, "--plot", "--no-cache", "--json", "--expert-skew")
    add_device_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Simulate all of them; 1 if none of them fits."""
    if args.configs[0] in BASELINES:
        raise SimulationError(f"'{args.configs[0]}' is a baseline: name a configuration before it")
    for name in args.configs:
        if name not in BASELINES and not Path(name).exists():
            raise SimulationError(f"'{name}' is neither a file nor a baseline; baselines are {', '.join(BASELINES)}")
    require_folders(args.plot)
    first: Step | None = None
    runs: list[tuple[str, Run]] = []
    documents: list[tuple[str, Document]] = []
    for name in args.configs:
        if name in BASELINES and first is not None:
            runs.append((name, first.simulate(baseline_policy(name, first.model.captured.trees))))
            continue
        step = load_step(name, args.device, device_overrides(args), not args.no_cache, expert_skew=args.expert_skew)
        first = first or step
        documents.append((Path(name).stem, step.document))
        runs.append((Path(name).stem, step.simulate()))
    device = runs[0][1].device
    if args.plot:
        points = [TradeOff(name, run.step_time_ns, run.peak_bytes) for name, run in runs]
        plot_tradeoffs(
            points,
            args.plot,
            title="Step time and peak memory",
            caption=device.title,
            budget_bytes=device.usable_memory_bytes,
        )
    fits_any = any(run.fits for _, run in runs)
    if args.json:
        print(answer_text("compare", {"configurations": [_to_json(*entry) for entry in runs]}, fits_any))
        return 0 if fits_any else 1
    rows = [_row(*entry, runs[0][1].step_time_ns) for entry in runs]
    print(f"simulated on {device.title}, {format_bytes(device.usable_memory_bytes)} usable\n")
    print(format_table(HEADER, rows))
    for note in other_models(documents):
        print(f"\nnote: {note}")
    if beside := outside_line(runs[0][1].model, device):
        print(f"\n{beside}")
    return 0 if fits_any else 1


def other_models(documents: Sequence[tuple[str, Document]]) -> list[str]:
    """Configurations that train another model than the first, by name, number of layers and width."""
    (first, document), *others = documents
    wanted = _model_of(document)
    notes = []
    for name, other in others:
        found = _model_of(other)
        differs = [key for key in found if key in wanted and found[key] != wanted[key]]
        if differs:
            what = ", ".join(f"{key}: {found[key]}, not {wanted[key]}" for key in differs)
            notes.append(f"{name} is another model than {first} ({what}): their step times are of different work")
    return notes


def _model_of(document: Document) -> dict[str, str]:
    """Value that the configuration states; the first place goes before the others."""
    stated = ((key, document.get("model", *path)) for key, paths in MODEL_KEYS.items() for path in reversed(paths))
    return {key: show(node) for key, node in stated if node is not None}


def _row(name: str, run: Run, first_ns: int) -> tuple[str, ...]:
    return (
        name,
        format_time(run.step_time_ns),
        f"{run.tokens_per_s:.0f}",
        f"{100 * (run.step_time_ns / first_ns - 1):+.1f} %",
        format_bytes(run.peak_bytes),
        format_time(run.simulated.timeline.exposed_copy_ns),
        "yes" if run.fits else "no",
    )


def _to_json(name: str, run: Run) -> dict[str, Any]:
    return {
        "name": name,
        "simulated": True,
        "device": run.device.name,
        "step_time_ns": run.step_time_ns,
        "tokens_per_s": run.tokens_per_s,
        "peak_bytes": run.peak_bytes,
        "exposed_copy_ns": run.simulated.timeline.exposed_copy_ns,
        "fits": run.fits,
    }
