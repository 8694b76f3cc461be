"""State of an adaptive run on disk, completed by the logs of its running attempt."""

from pathlib import Path

from mindswap.errors import LogError
from mindswap.runtime.attempt.model import State
from mindswap.runtime.attempt.state import StateError, StateFile, attempt_folder, is_locked, state_path
from mindswap.runtime.attempt.watch import RunWatch


def read_run(folder: Path) -> tuple[State, bool]:
    """Read the state of the adaptive run in a folder, updated by the logs of a running attempt.

    Returns:
        The state, and whether a process is running it.

    Raises:
        LogError: if there is none, or it cannot be read.
    """
    try:
        state = StateFile(folder).load()
    except StateError as problem:
        raise LogError(f"{state_path(folder)} {problem}") from None
    if state is None:
        raise LogError(f"{folder}: no adaptive run here\n    fix:     give its run directory, the --log_dir of msrun")
    is_at_work = is_locked(folder)
    return _with_logs(state, folder), is_at_work


def _with_logs(state: State, folder: Path) -> State:
    """Update the state by the logs of a running attempt."""
    current = state.running
    if current is None:
        return state
    logs = attempt_folder(folder, current.number).glob("worker_*.log")
    watch = RunWatch(dict(enumerate(sorted(logs))))
    progress = watch.poll()
    watch.close()
    return state.with_current(
        last_step=max(current.last_step, progress.step),
        num_steps=progress.num_steps or current.num_steps,
        measured_peak_bytes=progress.peak_bytes if progress.peak_bytes is not None else current.measured_peak_bytes,
        measured_step_ns=progress.step_time_ns or current.measured_step_ns,
    )
