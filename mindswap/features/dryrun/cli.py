"""Command line of `mindswap dryrun`."""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from mindswap.command_line.options import (
    MAX_LAYERS,
    MAX_NUMBER,
    add_device,
    add_html,
    add_json,
    add_plot,
    answer,
    device_overrides,
    number_from,
    optional_path,
)
from mindswap.command_line.progress import PhaseLines
from mindswap.config.nodes import Document
from mindswap.config.problem import find_errors
from mindswap.config.render import document_from_data
from mindswap.config.source import load_document
from mindswap.errors import LaunchError
from mindswap.features.dryrun import DryRunOptions, run_stages
from mindswap.features.dryrun.insight import write_dry_run
from mindswap.features.dryrun.report import dry_run_to_json, format_dry_run
from mindswap.features.dryrun.snapshot import write_snapshot
from mindswap.features.dryrun.stage_runs import DryRunReport
from mindswap.features.dryrun.trainer import dry_run_trainer
from mindswap.features.dryrun.trainer_config import fully_recomputed_2x, switched_off_2x
from mindswap.features.dryrun.trainer_report import format_trainer_dry_run, trainer_dry_run_to_json
from mindswap.features.step import dry_run_file, load_step
from mindswap.files import require_folder, require_folders, unique_labels, write_new
from mindswap.policy.formats.mindformers2.read import find_mtp_layers, find_num_layers_2x
from mindswap.policy.formats.mindformers2.tables import ConfigFormat, find_format
from mindswap.rules.checker import check_document, policy_of
from mindswap.runtime.short_run import switched_off
from mindswap.runtime.training_command import load_trainable


def _numbers(least: int) -> Callable[[str], tuple[int, ...]]:
    one = number_from(least, MAX_NUMBER if least == 0 else MAX_LAYERS)

    def parse(text: str) -> tuple[int, ...]:
        return tuple(dict.fromkeys(one(part.strip()) for part in text.split(",")))

    return parse


# What `--against` compares with, besides files, and how reports call it.
OTHERS = {"none": "no swap, no recompute", "recompute": "full recompute"}
EPILOG = """\
examples:
  mindswap dryrun configs/llama2_7b/case4_swap_and_recompute.yaml
  mindswap dryrun llama2_7b.yaml --against none            # compared with no swap, no recompute
  mindswap dryrun llama2_7b.yaml --layers 4,6 --jobs 2     # extrapolated from 4 and 6 layers
  mindswap dryrun llama2_7b.yaml --full --ranks 0,4 --keep tables
  mindswap dryrun llama2_7b.yaml --html report.html
  mindswap dryrun llama2_7b.yaml --snapshot memory.pickle  # drop it on pytorch.org/memory_viz
  mindswap dryrun llama2_7b.yaml --insight step           # memory in MindStudio Insight; no times
  mindswap dryrun pretrain_2x.yaml --against none         # of MindFormers 2.x, in PyNative mode
  mindswap dryrun --json llama2_7b.yaml | jq '.stages[].used_peak_bytes'

It needs Linux with MindSpore 2.7.2 to 2.10.0 and MindFormers. Stand-ins for CANN's libraries are built from the wheel
once, in half a minute, by a C compiler or PyPI's ziglang. No kernel runs, so there are no times, no values, and
no error for lack of memory. Workspaces are simulated, because a dry run does not know them.
All layers run. If a stage has more than 16 and they take more than three minutes, the memory is extrapolated from two
models with fewer layers, provided that the simulator's extrapolation from the same models is less than 1 % off.
A configuration of MindFormers 2.x (PyNative) runs with its own trainer, which needs mindformers 2.1.0 and mindspore
2.10.0 (docs/mindformers_2x.md): one rank per pipeline stage, each in its own process. Its options are --layers, --full,
--against, --cards, --keep and those of the device.
Exit code 1 if the peak with workspace exceeds the usable memory. If the memory pool of the device has no virtual memory
mapping, fragmentation counts as well (--fragments, docs/dryrun.md).
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the arguments and options of the command."""
    parser.add_argument("config", metavar="CONFIG", help="YAML of MindFormers")
    parser.add_argument(
        "--ranks",
        metavar="R,...",
        type=_numbers(0),
        default=(),
        help="ranks to run; default is the first of each pipeline stage",
    )
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--layers",
        metavar="N[,M]",
        type=_numbers(1),
        default=(),
        help="run models with this many layers; two are extrapolated to all layers",
    )
    either.add_argument("--full", action="store_true", help="run all layers, however long it takes")
    parser.add_argument(
        "--against",
        metavar="none|recompute|FILE",
        help="compare with another dry run; none: no swap, no recompute; recompute: full recompute, no swap",
    )
    parser.add_argument(
        "--cards",
        metavar="N",
        type=number_from(1, MAX_NUMBER),
        help="with MindFormers 2.x: number of cards of the training",
    )
    parser.add_argument(
        "--jobs", metavar="N", type=number_from(1, 64), default=1, help="number of parallel processes (1)"
    )
    parser.add_argument(
        "--keep", metavar="FOLDER", type=Path, help="keep logs and MindSpore's own tables in this folder"
    )
    parser.add_argument("--insight", metavar="DIR", type=optional_path, help="write folders for MindStudio Insight")
    parser.add_argument(
        "--snapshot", metavar="FILE", type=optional_path, help="write the memory for pytorch.org/memory_viz (.pickle)"
    )
    add_plot(parser)
    add_html(parser)
    add_json(parser)
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    """Dry run one configuration; 1 if it does not fit."""
    if len(args.layers) > 2:
        raise LaunchError(f"--layers {','.join(map(str, args.layers))}: one depth, or two to extrapolate from")
    document = load_document(args.config)
    if find_format(document) is ConfigFormat.PYNATIVE and not find_errors(document.problems):
        return run_2x(args, document)
    if args.cards is not None:
        raise LaunchError("--cards: of MindFormers 2.x only: a configuration of 1.9 specifies its number of cards")
    require_folders(args.plot, args.html, args.snapshot)
    require_folder(args.insight)
    against = _load_comparison(args.against, args.config, load_trainable(Path(args.config)))
    options = DryRunOptions(args.ranks, args.layers, args.full, args.jobs, args.keep and args.keep / "config")
    report_status = PhaseLines(time.monotonic(), sys.stderr)
    other: DryRunReport | None = None
    report = dry_run_file(args.config, options, report_status, args.device, device_overrides(args))
    if against is not None:
        options = replace(options, folder=args.keep and args.keep / "against")
        document, title = against
        load = partial(load_step, document, args.device, device_overrides(args))
        other = run_stages(document, options, report_status, title, load)
    if args.plot:
        from mindswap.features.dryrun.plots import plot_dry_run

        plot_dry_run(report, args.plot, other)
    if args.insight:
        write_dry_run(report, args.insight)
    if args.snapshot:
        write_snapshot(report, args.snapshot)
    if args.html:
        from mindswap.features.dryrun.page import format_dry_run_html

        write_new(args.html, format_dry_run_html(report, other), overwrite=True)
    data = dry_run_to_json(report) | ({"against": dry_run_to_json(other)} if other is not None else {})
    return answer(args, data, format_dry_run(report, other), report.fits)


def _load_comparison(name: str | None, config: str, document: Document) -> tuple[Document, str] | None:
    """Load the configuration to compare with, and its name; checked before the first dry run."""
    if name is None:
        return None
    if name in OTHERS:
        data = switched_off(document.data())
        if name == "recompute":
            data["recompute_config"]["recompute"] = True
        return document_from_data(data, document.file), OTHERS[name]
    other = load_trainable(Path(name))
    policy_of(other, check_document(other))
    return other, unique_labels([config, name])[1]


# Options of graph mode, whose data a run in PyNative mode does not have.
OF_GRAPH_MODE = ("ranks", "plot", "html", "insight", "snapshot")


def run_2x(args: argparse.Namespace, document: Document) -> int:
    """Dry run a configuration of MindFormers 2.x; 1 if it does not fit."""
    if given := [f"--{name}" for name in OF_GRAPH_MODE if getattr(args, name)]:
        raise LaunchError(
            f"{', '.join(given)}: of MindFormers 1.9 only (graph mode); {document.file} is of MindFormers 2.x\n"
            "    allowed: --layers, --full, --against, --cards, --keep, --json and those of the device"
        )
    titles = [(document, Path(args.config).stem)]
    if args.against is not None:
        titles.append(_load_comparison_2x(args.against, args.config, document))
    report_status = PhaseLines(time.monotonic(), sys.stderr)
    reports = [
        dry_run_trainer(
            each,
            DryRunOptions(layers=args.layers, folder=args.keep and args.keep / name),
            report_status,
            title,
            args.device,
            device_overrides(args),
            args.cards,
        )
        for name, (each, title) in zip(("config", "against"), titles, strict=False)
    ]
    data = trainer_dry_run_to_json(reports[0])
    data |= {"against": trainer_dry_run_to_json(reports[1])} if reports[1:] else {}
    return answer(args, data, format_trainer_dry_run(*reports), reports[0].fits)


def _load_comparison_2x(name: str, config: str, document: Document) -> tuple[Document, str]:
    """Load the configuration of MindFormers 2.x to compare with, and its name."""
    if name not in OTHERS:
        other = load_document(name)
        if find_errors(other.problems) or find_format(other) is not ConfigFormat.PYNATIVE:
            raise LaunchError(f"--against {name}: not a configuration of MindFormers 2.x, as {config} is")
        return other, unique_labels([config, name])[1]
    num_layers = (find_num_layers_2x(document) or 0) + find_mtp_layers(document)
    is_off = name == "none"
    data = switched_off_2x(document.data()) if is_off else fully_recomputed_2x(document.data(), num_layers)
    return document_from_data(data, document.file), OTHERS[name]
