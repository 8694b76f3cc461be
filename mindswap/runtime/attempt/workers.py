"""Worker processes of one attempt: start, progress, and reason of their end."""

import json
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from mindswap.errors import LaunchError, PlanError, system_errors_as
from mindswap.graph.capture_cache import from_plain, to_plain
from mindswap.runtime.attempt.model import CLASSES, Corrections, Ended, NothingFits, Outcome, Planner, TrainingPlan
from mindswap.runtime.attempt.watch import LogFollower, LogProgress, MsrunOutput, RunWatch
from mindswap.runtime.crashes import KILLS, crash_signal, is_training_over
from mindswap.runtime.msrun import failure_report, worker_log
from mindswap.system.children import ask, tie_to_parent
from mindswap.system.process_tree import stop_descendants, worker_ranks
from mindswap.system.signals import held_signals

# The last log lines of the other workers arrive while msrun is already stopping them.
DRAIN_S = 2.0


class Workers:
    """Workers of an attempt, all of them descendants of this process.

    Attributes:
        step: last step in the logs.
    """

    def turn_to(self, folder: Path, ranks: Iterable[int], *, has_msrun: bool) -> None:
        """Switch to the workers of an attempt.

        Args:
            folder: folder of the attempt, with the log of each worker.
            ranks: ranks of the workers.
            has_msrun: whether msrun starts them and writes `msrun.log`; else the training writes `worker_0.log`.
        """
        self.step = 0
        self._folder = folder
        self._has_msrun = has_msrun
        self._worker_ranks = tuple(ranks)
        self._watch = RunWatch({rank: worker_log(folder, rank) for rank in self._worker_ranks})
        self._output = LogFollower(folder / "msrun.log" if has_msrun else worker_log(folder, 0))
        self._printed = MsrunOutput()
        self._process: subprocess.Popen[bytes] | None = None
        self._ranks: dict[int, int] = {}
        self._num_oom_kills = count_oom_kills()

    def start_words(self, words: list[str], environment: Mapping[str, str], working_folder: Path) -> None:
        """Start the workers.

        Raises:
            LaunchError: if the command cannot be started, or its log not be written.
        """
        log = self._output.path
        with system_errors_as(LaunchError, f"{log}: cannot be written"):
            file = log.open("wb")
        # Signals are held because Python drops exceptions during a fork, and the started process must be recorded.
        with system_errors_as(LaunchError, f"{words[0]} cannot be started"), file, held_signals():
            self._process = subprocess.Popen(
                words, cwd=working_folder, env=dict(environment), stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=tie_to_parent(),
            )  # fmt: skip

    def look(self) -> LogProgress:
        """Read the logs, and return the progress of the training."""
        progress = self._watch.poll()
        self.step = max(self.step, progress.step)
        return progress

    def ended(self) -> bool | None:
        """Return True if all workers succeeded, False if one failed, and None while all are running."""
        if self._process is None:
            raise AssertionError("the training was not started")
        if self._has_msrun:
            if not self.step:  # processes are still being started
                self._ranks.update(worker_ranks())
            self._output.poll(self._printed.take)
        code, exits = self._process.poll(), self._printed.exits()
        return None if code is None and not exits else code == 0 and not exits

    def explain(self) -> Ended:
        """Return why the workers ended."""
        if self._process is None:
            raise AssertionError("the training was not started")
        code = self._process.poll()
        deadline = time.monotonic() + (DRAIN_S if code != 0 else 0)
        while (progress := self.look()).out_of_memory is None and time.monotonic() < deadline:
            time.sleep(0.1)
        if code == 0 and not self._printed.exits():
            if not progress.num_finished and 0 < progress.step < progress.num_steps:
                return Ended(Outcome.KILLED, self.step, "msrun ended before the training did")
            return Ended(Outcome.FINISHED, self.step)
        if progress.out_of_memory is not None:
            worker, event = progress.out_of_memory
            return self._out_of_memory(worker, event.text, event.missing_bytes)
        return self._explain_exit(code)

    def _out_of_memory(self, worker: int, text: str, missing_bytes: int | None = None) -> Ended:
        return Ended(Outcome.OUT_OF_MEMORY, self.step, text, worker=worker, missing_bytes=missing_bytes)

    def _explain_exit(self, code: int | None) -> Ended:
        """Return why a process failed."""
        exits = self._printed.exits()
        pid, exit_code = next(iter(exits), (None, code or 0))
        worker = 0 if pid is None else self._ranks.get(pid, 0)
        name = f"worker {worker}" if pid is not None or not self._has_msrun else "msrun"
        if -exit_code in KILLS:
            if exit_code == -signal.SIGKILL and count_oom_kills() > self._num_oom_kills:
                return self._out_of_memory(worker, "killed by the system, whose memory ran out (oom_kill)")
            return Ended(Outcome.KILLED, self.step, f"{name} was killed by {signal.Signals(-exit_code).name}")
        crash = crash_signal(exit_code)
        is_late = is_training_over(self._folder, self._worker_ranks)
        if self._has_msrun and not exits and is_late:  # no worker failed
            return Ended(Outcome.FINISHED, self.step, "the scheduler of msrun failed after the training was over")
        if crash and is_late:
            return Ended(Outcome.FINISHED, self.step, f"{name} crashed with {crash} after the training was over")
        report = failure_report(self._folder, self._worker_ranks)
        if not crash:
            return Ended(Outcome.FAILED, self.step, report, exit_code or 1)
        return Ended(Outcome.FAILED, self.step, f"    {name} crashed with {crash}\n{report}", 1)

    def stop_all(self) -> None:
        """Stop all workers; their logs can still be read."""
        stop_descendants()
        if self._process is not None:
            self._process.poll()

    def close(self) -> None:
        """Close the logs."""
        self._output.close()
        self._watch.close()


def count_oom_kills() -> int:
    """Return the number of processes that the kernel's OOM killer ended since boot; 0 if unknown."""
    try:
        with Path("/proc/vmstat").open(encoding="ascii") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    except OSError:
        return 0


# The planner runs in a child process, so that this process imports no planner code: it starts fast and stays small
# compared to the training.


def planner_in_child(variables: Mapping[str, str]) -> Planner:
    """Return a planner that runs in a child process.

    Args:
        variables: additional environment variables of the child.

    Returns:
        Function that raises PlanError if the planner refuses or crashes.
    """

    def plan(config_path: Path, budget_bytes: int, corrections: Corrections) -> TrainingPlan | NothingFits:
        request = json.dumps([str(config_path), budget_bytes, to_plain(corrections)])
        answer = ask([request], None, "mindswap.features.adaptive.planner_process", variables)
        if answer.data is None:
            raise PlanError(f"the planner crashed, exit code {answer.exit_code}\n{answer.error}")
        if "refused" in answer.data:
            raise PlanError(answer.data["refused"])
        result = from_plain(answer.data, CLASSES)
        if not isinstance(result, TrainingPlan | NothingFits):
            raise AssertionError("the planner's process returned neither a plan nor a refusal")
        return result

    return plan
