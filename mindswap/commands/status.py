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

from mindswap.commands.options import answer
from mindswap.errors import LogError
from mindswap.report.adaptive import format_summary, summary_to_json
from mindswap.training.adaptive.model import State
from mindswap.training.adaptive.state import StateFile, StateProblem, attempt_folder, is_locked, state_path
from mindswap.training.adaptive.watch import RunWatch

ARGUMENTS = {
    "DIR": {"dest": "directory", "type": Path},
}


def run(args: argparse.Namespace) -> int:
    """Show one run."""
    folder = args.directory
    try:
        state = StateFile(folder).load()
    except StateProblem as problem:
        raise LogError(f"{state_path(folder)} {problem}") from None
    if state is None:
        raise LogError(f"{folder}: no adaptive run here\n    fix:     give its run directory, the --log_dir of msrun")
    is_at_work = is_locked(folder)
    state = _with_logs(state, folder)
    text = format_summary(state)
    if is_at_work:
        text += "\nrunning"
    elif not state.exit_reason:
        text += "\nnot running, and it did not end by itself: the same command goes on with it"
    return answer(args, summary_to_json(state, is_at_work), text)


def _with_logs(state: State, folder: Path) -> State:
    """The state with what the logs of a running attempt say by now."""
    current = state.running
    if current is None:
        return state
    logs = attempt_folder(folder, current.number).glob("worker_*.log")
    watch = RunWatch(dict(enumerate(sorted(logs))))
    seen = watch.poll()
    watch.close()
    return state.with_current(
        last_step=max(current.last_step, seen.step),
        num_steps=seen.num_steps or current.num_steps,
        measured_peak_bytes=seen.peak_bytes if seen.peak_bytes is not None else current.measured_peak_bytes,
        measured_step_ns=seen.step_time_ns or current.measured_step_ns,
    )
