"""Command line of `mindswap simulate`."""

import argparse
from pathlib import Path

from mindswap.command_line.options import (
    add_device,
    add_expert_skew,
    add_html,
    add_json,
    add_no_cache,
    answer,
    device_overrides,
    optional_path,
)
from mindswap.errors import DataError
from mindswap.features.simulate.report import format_simulation, simulation_to_json
from mindswap.features.step import load_step
from mindswap.files import is_recorded_step, require_folder, require_folders

EPILOG = """\
examples:
  mindswap simulate configs/llama2_7b/pretrain_llama2_7b.yaml
  mindswap simulate llama2_7b.yaml --device atlas_800t_a2 --memory 54GiB --d2h 20GB/s
  mindswap simulate llama2_7b.yaml --html report.html
  mindswap simulate llama2_7b.yaml --trace step.json      # open in https://ui.perfetto.dev
  mindswap simulate llama2_7b.yaml --insight step         # step/rank_0_ascend_ms, import it in MindStudio Insight
  mindswap simulate --json llama2_7b.yaml | jq '.tokens_per_s'

The network is compiled once, without swap and recompute; the policy is then applied to the graph by the rules of the
compiler. Settings of the device can also be given in the configuration, under `mindswap:`.
Exit code 1 if the peak memory does not fit.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the arguments and options of the command."""
    parser.add_argument(
        "config", metavar="CONFIG", help="YAML of MindFormers, or a step that `mindswap trace` recorded (.json)"
    )
    parser.add_argument("--trace", metavar="FILE", type=optional_path, help="write a Chrome trace (.json) for Perfetto")
    parser.add_argument("--insight", metavar="DIR", type=optional_path, help="write folders for MindStudio Insight")
    parser.add_argument("--figures", action="store_true", help="list the figures of the device, with their sources")
    add_html(parser)
    add_no_cache(parser)
    add_json(parser)
    add_expert_skew(parser)
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    """Simulate one configuration; 1 if it does not fit."""
    require_folders(args.trace, args.html)
    require_folder(args.insight)
    _refuse_recorded(args.trace)
    run = load_step(
        args.config, args.device, device_overrides(args), not args.no_cache, expert_skew=args.expert_skew
    ).simulate()
    if args.trace:
        run.save_trace(args.trace)
    if args.insight:
        run.save_insight(args.insight)
    if args.html:
        run.save_html(args.html)
    report = run.report()
    return answer(args, simulation_to_json(report), format_simulation(report, args.figures), run.fits)


def _refuse_recorded(target: Path | None) -> None:
    """Refuse to overwrite a recorded step, because `--trace` of other commands reads one."""
    if target is not None and target.is_file():
        with target.open("rb") as file:
            if is_recorded_step(file.read(200)):
                raise DataError(
                    f"--trace {target}: is a step that `mindswap trace` recorded; the Chrome trace needs another name\n"
                    f"    fix:     to simulate that step: mindswap simulate {target}"
                )
