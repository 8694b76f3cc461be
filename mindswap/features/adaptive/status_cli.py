"""Command line of `mindswap status`."""

import argparse
from pathlib import Path

from mindswap.command_line.options import add_json, answer
from mindswap.features.adaptive.report import format_summary, summary_to_json
from mindswap.features.adaptive.run_status import read_run

EPILOG = """\
examples:
  mindswap status output/msrun_log
  mindswap status --json output/msrun_log | jq '.attempts[-1]'

DIR is the run directory: the --log_dir of msrun. The command works at any time, from any terminal.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the arguments and options of the command."""
    parser.add_argument("directory", metavar="DIR", type=Path, help="run directory of `mindswap run --adaptive-...`")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Show one run."""
    state, is_at_work = read_run(args.directory)
    text = format_summary(state)
    if is_at_work:
        text += "\nrunning"
    elif not state.exit_reason:
        text += "\nnot running, but not finished: the same command continues it"
    return answer(args, summary_to_json(state, is_at_work), text)
