"""Runs the loop: asks `decide`, does what it says, and tells it what happened.

Waits and times are of the monotonic clock; nothing here reads the time of day.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mindswap.adaptive.attempt_files import attempt_folder, prepare_attempt
from mindswap.adaptive.checkpoints import CheckpointFolder
from mindswap.adaptive.command import TrainingCommand
from mindswap.adaptive.decide import decide
from mindswap.adaptive.events import (
    Action,
    End,
    Event,
    Failed,
    Finished,
    Interrupted,
    Measured,
    NewCheckpoint,
    Opened,
    Planned,
    RunPlanner,
    Start,
    Started,
    Stop,
    Stopped,
)
from mindswap.adaptive.model import (
    Outcome,
    Plan,
    Planner,
    Settings,
    State,
)
from mindswap.adaptive.state import StateFile, StateProblem, state_path
from mindswap.adaptive.watch import RunWatch, Seen
from mindswap.adaptive.workers import Workers
from mindswap.errors import LaunchError, MindswapError
from mindswap.launch.guardian import guardian
from mindswap.launch.lifeline import VARIABLE, lifeline
from mindswap.launch.logs import worker_log
from mindswap.launch.network import check_port, free_port
from mindswap.launch.processes import adopt_orphans, marked_processes, raise_process_limit, stop_processes
from mindswap.launch.room import RUN_DIR_BYTES, describe_full, require_room
from mindswap.launch.signals import Stopped as SignalStopped
from mindswap.launch.signals import signals_raise

__all__ = ["MARKER", "AdaptiveRun", "supervise"]

# Set to the run directory for every process of a run.
MARKER = "MINDSWAP_ADAPTIVE_RUN"
POLL_S = 1.0


@dataclass(frozen=True)
class AdaptiveRun:
    """What is to be run.

    Attributes:
        command: the training command.
        run_dir: run directory, absolute.
        plain_dir: the same under a name without spaces.
        key: of configuration, versions and device: what a saved state must have been saved under.
        settings: of the user.
        checkpoints: where the training saves them.
        saves_checkpoints: the configuration says that it does.
        is_parallel: MindFormers takes its processes for parts of one training.
        environment: of the workers.
        num_measured_steps: steps after which a plan is judged.
        poll_s: pause between two looks at the logs.
    """

    command: TrainingCommand
    run_dir: Path
    plain_dir: Path
    key: str
    settings: Settings
    checkpoints: Path
    saves_checkpoints: bool
    is_parallel: bool
    environment: Mapping[str, str]
    num_measured_steps: int = 10
    poll_s: float = POLL_S


def supervise(run: AdaptiveRun, planner: Planner, say: Callable[[str], None]) -> tuple[int, State]:
    """Train until it is done, given up or interrupted.

    Args:
        run: what.
        planner: asked for plans.
        say: takes one message for the user.

    Returns:
        0 after a training that finished, else its exit code, or 128 + number of the signal; and the last state.

    Raises:
        MindswapError: it cannot be started.
    """
    require_room(run.run_dir)
    # The guardian is forked first: it must not hold the pipe on which the workers hang.
    with (
        _locked(run.run_dir),
        guardian(MARKER, str(run.run_dir)),
        lifeline() as line,
        signals_raise(only_first=True),
    ):
        adopt_orphans()
        raise_process_limit()
        run = replace(run, environment={**run.environment, VARIABLE: line})
        supervisor = _Supervisor(run, planner, say)
        try:
            return supervisor.loop(), supervisor.state
        except SignalStopped as stop:
            supervisor.end_with(Interrupted(supervisor.step))
            return 128 + stop.number, supervisor.state
        except MindswapError as error:
            supervisor.fail(str(error))
            raise
        finally:
            supervisor.workers.stop_all()


@contextlib.contextmanager
def _locked(run_dir: Path) -> Iterator[None]:
    """Only one process works on a run directory; the lock goes with the process, however it ends."""
    path = state_path(run_dir).with_name("lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise LaunchError(f"{path.parent}: cannot be written: {error.strerror or error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise LaunchError(
            f"{run_dir}: an adaptive run is already running here\n"
            f"    fix:     another --log_dir; mindswap status {run_dir}"
        ) from error
    try:
        yield
    finally:
        os.close(descriptor)


class _Supervisor:
    def __init__(self, run: AdaptiveRun, planner: Planner, say: Callable[[str], None]) -> None:
        self.run = run
        self.planner = planner
        self.say = say
        self.file = StateFile(run.run_dir)
        self.workers = Workers()
        self.is_unsaved = False
        self.next_words: list[str] = []
        self.watch = RunWatch({})
        self.is_measured = False
        self.started_s = 0.0
        self.startup_s = 0.0
        self.state = self._load()

    @property
    def step(self) -> int:
        """The last step that is known."""
        return max(self.workers.step, self.state.current.last_step if self.state.current else 0)

    def loop(self) -> int:
        self._stop_leftovers()
        event: Event = Opened()
        while True:
            action = self._take(event)
            if isinstance(action, End):
                self.workers.stop_all()
                return action.exit_code
            event = self._perform(action)

    def _stop_leftovers(self) -> None:
        def find() -> list[int]:
            return marked_processes(MARKER, str(self.run.run_dir))

        if left := stop_processes(find):
            self.say(f"stopped {left} processes that an earlier run in {self.run.run_dir} had left")
        if stuck := find():
            raise LaunchError(
                f"{self.run.run_dir}: processes of an earlier run do not end: {', '.join(map(str, stuck))}\n"
                "    fix:     they wait for a device or a file system: free that, or take another --run-dir"
            )

    def end_with(self, event: Event) -> None:
        """Stop everything for the last event."""
        self.say("stopping all workers")
        self.workers.stop_all()
        self._take(event)

    def fail(self, reason: str) -> None:
        """Keep the reason for which the run cannot go on."""
        self.state = replace(self.state, last_words=reason)
        self._save()

    def _take(self, event: Event) -> Action:
        self.state, action = decide(self.state, event)
        self._save()
        if action.reason:
            self.say(action.reason)
        return action

    def _perform(self, action: Action) -> Event:
        if isinstance(action, RunPlanner):
            answer = self.planner(self.run.command.config_path, action.budget_bytes, self.state.corrections)
            return Planned(answer)
        if isinstance(action, Start):
            return self._prepare(action.plan)
        if isinstance(action, Stop):
            self.workers.stop_all()
            self._look()
            return Stopped()
        if self.next_words:
            self._spawn()
        return self._wait(for_checkpoint=getattr(action, "for_checkpoint", False))

    def _prepare(self, plan: Plan) -> Started:
        command, number = self.run.command, len(self.state.attempts) + 1
        port = self._choose_port()
        checkpoint = self._checkpoints().newest() if self.state.attempts else None
        folder = attempt_folder(self.run.run_dir, number)
        parallel = self.run.is_parallel
        config = prepare_attempt(folder, plan.yaml_text, command.config_path, checkpoint, is_parallel=parallel)
        logs = attempt_folder(self.run.plain_dir, number)
        self.next_words = command.words(config, logs, port, is_resumed=checkpoint is not None)
        step = checkpoint.saved.step if checkpoint else 0
        lost = self.step - step if self.state.attempts else 0
        origin = f"from the checkpoint of step {step}" if checkpoint else "from the beginning"
        self.say(f"attempt {number}: {origin}{f', {lost} steps are done again' if lost > 0 else ''}; logs: {folder}")
        return Started(step)

    def _choose_port(self) -> int:
        port = self.run.command.master_port
        if self.run.command.msrun_options is None:
            return port
        try:
            check_port("127.0.0.1", port, fix="add --master_port=")
        except LaunchError:
            if not self.state.num_started_now:
                raise
            port = free_port()  # the scheduler of the attempt before may hold it for a while
            self.say(f"port {self.run.command.master_port} is still in use: port {port} instead")
        return port

    def _checkpoints(self) -> CheckpointFolder:
        return CheckpointFolder(self.run.checkpoints, self.run.command.num_workers, self.state.ignored_checkpoints)

    def _spawn(self) -> None:
        number = len(self.state.attempts)
        folder = attempt_folder(self.run.run_dir, number)
        words, self.next_words = self.next_words, []
        self.watch.close()
        self.watch = self._watch_attempt(number)
        self.is_measured, self.startup_s, self.started_s = False, 0.0, time.monotonic()
        environment = {**self.run.environment, MARKER: str(self.run.run_dir)}
        self.workers.start(
            words,
            environment,
            folder,
            self.run.command.num_workers,
            has_msrun=self.run.command.msrun_options is not None,
        )

    def _wait(self, *, for_checkpoint: bool) -> Event:
        checkpoints = self._checkpoints()
        before = checkpoints.newest() if for_checkpoint else None
        while True:
            is_over = self.workers.is_over()
            seen = self._look()
            if is_over:
                event = self.workers.explain(self._look)
                if isinstance(event, Finished) and seen.num_timed_steps and not self.is_measured:
                    self.is_measured = True  # a short training, that ended between two looks
                    return self._measure(seen)
                self.workers.stop_all()
                return self._with_full_disks(event) if isinstance(event, Failed) else event
            if not self.is_measured and seen.num_timed_steps >= self.run.num_measured_steps:
                self.is_measured = True
                return self._measure(seen)
            if for_checkpoint and (newest := checkpoints.newest()) and (not before or newest.saved > before.saved):
                return NewCheckpoint(newest.saved.step)
            time.sleep(self.run.poll_s)

    def _with_full_disks(self, event: Failed) -> Failed:
        """A training that failed where there is no room left: that is why, or at least why a log says nothing."""
        newest = self._checkpoints().newest()
        size_bytes = sum(path.stat().st_size for path in newest.files) if newest else RUN_DIR_BYTES
        missing = (
            describe_full(self.run.checkpoints, size_bytes, "a checkpoint"),
            describe_full(self.run.run_dir, RUN_DIR_BYTES, "a run"),
        )
        if not any(missing):
            return event
        fix = "    fix:     make room there; the same command goes on from the newest checkpoint"
        return replace(event, text="\n".join([event.text, *(f"    {line}" for line in missing if line), fix]))

    def _look(self) -> Seen:
        seen = self.watch.poll()
        self.workers.step = max(self.workers.step, seen.step)
        if seen.step and not self.startup_s:
            self.startup_s = time.monotonic() - self.started_s
        return seen

    def _measure(self, seen: Seen) -> Measured:
        return Measured(
            seen.step,
            seen.num_steps,
            seen.peak_bytes,
            seen.step_time_ns,
            int(self.startup_s * 1e9),
            self.run.saves_checkpoints,
        )

    def _load(self) -> State:
        fresh = State(self.run.settings, ignored_checkpoints=self._new_marks(()))
        try:
            state = self.file.load(self.run.key)
        except StateProblem as problem:
            aside = self.file.put_aside()
            where = f", kept as {aside}" if aside else ""
            self.say(f"{self.file.path} {problem}: it is ignored{where}; starting anew")
            return fresh
        if state is None:
            return fresh
        if state.is_finished:  # what is there now belongs to the training that finished
            state = replace(state, ignored_checkpoints=self._new_marks(()))
        return replace(self._with_last_step(state), settings=self.run.settings)

    def _with_last_step(self, state: State) -> State:
        """How far an attempt came during which this program was killed, from its logs."""
        if state.current is None or state.current.outcome is not Outcome.RUNNING:
            return state
        watch = self._watch_attempt(state.current.number)
        last_step = max(state.current.last_step, watch.poll().step)
        watch.close()
        return replace(state, attempts=(*state.attempts[:-1], replace(state.current, last_step=last_step)))

    def _watch_attempt(self, number: int) -> RunWatch:
        folder = attempt_folder(self.run.run_dir, number)
        return RunWatch({rank: worker_log(folder, rank) for rank in range(self.run.command.num_workers)})

    def _new_marks(self, ignored: tuple[str, ...]) -> tuple[str, ...]:
        return CheckpointFolder(self.run.checkpoints, self.run.command.num_workers, ignored).marks()

    def _save(self) -> None:
        try:
            self.file.save(self.state, self.run.key)
            if self.is_unsaved:
                self.say(f"{self.file.path} is written again")
            self.is_unsaved = False
        except OSError as error:
            if not self.is_unsaved:
                self.say(
                    f"warning: {self.file.path} cannot be written: {error.strerror or error}; the training goes on, "
                    "but a run that is killed now would start anew"
                )
            self.is_unsaved = True
