"""Predict step time, peak memory and every stall of CONFIG on a device, and show them; simulated, no device.

examples:
  mindswap simulate configs/llama2_7b/pretrain_llama2_7b.yaml
  mindswap simulate llama2_7b.yaml --device atlas_800t_a2 --memory 54GiB --d2h 20GB/s
  mindswap simulate llama2_7b.yaml --html report.html
  mindswap simulate llama2_7b.yaml --trace step.json      # open in https://ui.perfetto.dev
  mindswap simulate llama2_7b.yaml --insight step         # step/rank_0_ascend_ms, import it in MindStudio Insight
  mindswap simulate --json llama2_7b.yaml | jq '.tokens_per_s'

The network is compiled once, without swap and recompute; what the policy makes of it is worked out by the rules
of the compiler. Settings of the device can also stand in the configuration, under `mindswap:`.
Exit code 1 if it does not fit into the memory.

options:
  CONFIG         YAML of MindFormers, or a step that `mindswap trace` recorded (.json)
  --trace FILE   write a Chrome trace (.json) for Perfetto
  --insight DIR  write folders for MindStudio Insight
  --figures      list the figures of the device, with their sources
  --html
  --no-cache
  --json
  --expert-skew
  --device
"""

import argparse
from pathlib import Path

from mindswap.command_line.options import answer, device_overrides, optional_path
from mindswap.errors import DataError
from mindswap.features.simulate.report import format_simulation, simulation_to_json
from mindswap.features.step import load_step
from mindswap.files import is_recorded_step, require_folder, require_folders

ARGUMENTS = {
    "--trace": {"type": optional_path},
    "--insight": {"type": optional_path},
}


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
    """`--trace` of other commands reads a recorded step; here it would write over it."""
    if target is not None and target.is_file():
        with target.open("rb") as file:
            if is_recorded_step(file.read(200)):
                raise DataError(
                    f"--trace {target}: is a step that `mindswap trace` recorded; the Chrome trace needs another name\n"
                    f"    fix:     to simulate that step: mindswap simulate {target}"
                )
