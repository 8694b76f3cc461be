"""Show how an adaptive run stands: restarts, budgets, predicted against measured memory and step time.

examples:
  mindswap status output/msrun_log
  mindswap status --json output/msrun_log | jq '.attempts[-1]'

DIR is the run directory: the --log_dir of msrun. It may be asked at any time, from any terminal.

options:
  DIR  run directory of `mindswap run --adaptive-...`
  --json
"""

import argparse
from pathlib import Path

from mindswap.command_line.options import answer
from mindswap.features.adaptive.report import format_summary, summary_to_json
from mindswap.features.adaptive.run_status import read_run

ARGUMENTS = {
    "DIR": {"dest": "directory", "type": Path},
}


def run(args: argparse.Namespace) -> int:
    """Show one run."""
    state, is_at_work = read_run(args.directory)
    text = format_summary(state)
    if is_at_work:
        text += "\nrunning"
    elif not state.exit_reason:
        text += "\nnot running, and it did not end by itself: the same command goes on with it"
    return answer(args, summary_to_json(state, is_at_work), text)
