"""Runs the loop: asks `decide`, does what it says, and tells it what happened.

Waits and times are of the monotonic clock; nothing here reads the time of day.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mindswap.errors import LaunchError, MindswapError
from mindswap.training.adaptive import events
from mindswap.training.adaptive.checkpoints import CheckpointFolder, CheckpointKey
from mindswap.training.adaptive.command import TrainingCommand
from mindswap.training.adaptive.decide import decide
from mindswap.training.adaptive.model import Outcome, Planner, Settings, State, TrainingPlan
from mindswap.training.adaptive.ray_cluster import ClusterWorkers, RayCluster
from mindswap.training.adaptive.state import (
    StateFile,
    StateProblem,
    attempt_folder,
    full_disks,
    locked,
    prepare_attempt,
)
from mindswap.training.adaptive.watch import Seen
from mindswap.training.adaptive.workers import Workers
from mindswap.training.launch.cluster import NodeLost
from mindswap.training.launch.msrun import check_port, free_port, require_room
from mindswap.training.launch.processes import (
    VARIABLE,
    StoppedBySignal,
    adopt_orphans,
    guardian,
    lifeline,
    marked_processes,
    raise_process_limit,
    signals_raise,
    stop_processes,
)

# Set to the run directory for every process of a run.
MARKER = "MINDSWAP_ADAPTIVE_RUN"


@dataclass(frozen=True)
class AdaptiveRun:
    """What is to be run."""

    command: TrainingCommand  # the training command
    run_dir: Path  # run directory, absolute
    plain_dir: Path  # the same under a name without spaces
    key: str  # of configuration, versions and device: what a saved state must have been saved under
    settings: Settings  # of the user
    checkpoints: Path  # where the training saves them
    saves_checkpoints: bool  # the configuration says that it does
    is_parallel: bool  # MindFormers takes its processes for parts of one training
    environment: Mapping[str, str]  # of the workers
    num_measured_steps: int = 10  # steps after which a plan is judged
    poll_s: float = 1.0  # pause between two looks at the logs
    cluster: RayCluster | None = None  # None for this machine alone


def supervise(run: AdaptiveRun, planner: Planner, say: Callable[[str], None]) -> tuple[int, State]:
    """Train until it is done, given up or interrupted; `say` takes one message for the user.

    Returns:
        0 after a training that finished, else its exit code, or 128 + number of the signal; and the last state.

    Raises:
        MindswapError: it cannot be started.
    """
    require_room(run.run_dir)
    # The guardian is forked before the pipe, on which the workers hang, and behind the lock: while it ends the workers
    # of a run that was killed it holds that too, so that it never meets those of the next run.
    with locked(run.run_dir), guardian(MARKER, str(run.run_dir)), lifeline() as line, signals_raise(only_first=True):
        adopt_orphans()
        raise_process_limit()
        run = replace(run, environment={**run.environment, VARIABLE: line, MARKER: str(run.run_dir)})
        if run.cluster:
            run.cluster.connect()
        supervisor = _Supervisor(run, planner, say)
        try:
            return supervisor.loop(), supervisor.state
        except StoppedBySignal as stop:
            supervisor.interrupt()
            return 128 + stop.number, supervisor.state
        except MindswapError as error:
            supervisor.fail(str(error))
            raise
        finally:
            supervisor.workers.stop_all()
            supervisor.workers.close()
            if run.cluster:
                run.cluster.close()


class _Supervisor:
    def __init__(self, run: AdaptiveRun, planner: Planner, say: Callable[[str], None]) -> None:
        self.run = run
        self.planner = planner
        self.say = say
        self.file = StateFile(run.run_dir)
        self.is_unsaved = False
        # None, until an attempt begins.
        self.workers: Workers | ClusterWorkers = Workers(attempt_folder(run.run_dir, 0), (), has_msrun=False)
        self.next_words: list[str] = []
        self.is_measured = False
        self.state = self._load()

    def loop(self) -> int:
        self._stop_leftovers()
        event: events.Event = events.Opened()
        while True:
            action = self._take(event)
            if isinstance(action, events.End):
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

    def interrupt(self) -> None:
        """Stop everything, and keep that the user asked for it."""
        self.say("stopping all workers")
        self.workers.stop_all()
        self._take(events.Ended(Outcome.INTERRUPTED, self._last_step(), "stopped by the user"))

    def fail(self, reason: str) -> None:
        """Keep the reason for which the run cannot go on."""
        self.state = replace(self.state, exit_reason=reason)
        self._save()

    def _last_step(self) -> int:
        return max(self.workers.step, self.state.current.last_step if self.state.current else 0)

    def _take(self, event: events.Event) -> events.Action:
        self.state, action = decide(self.state, event)
        self._save()
        if action.reason:
            self.say(action.reason)
        return action

    def _perform(self, action: events.RunPlanner | events.Start | events.StopWorkers | events.Wait) -> events.Event:
        match action:
            case events.RunPlanner(budget_bytes):
                config_path = self.run.command.config_path
                return events.Planned(self.planner(config_path, budget_bytes, self.state.corrections))
            case events.Start(plan):
                return self._prepare(plan)
            case events.StopWorkers():
                self.workers.stop_all()
                self.workers.look()
                return events.Stopped(self._last_step())
            case events.Wait(for_checkpoint):
                if self.next_words:  # the attempt is in the saved state by now
                    self._spawn()
                return self._wait(for_checkpoint)

    def _prepare(self, plan: TrainingPlan) -> events.Started:
        command, number = self.run.command, len(self.state.attempts) + 1
        if self.run.cluster:
            return self._prepare_cluster(self.run.cluster, plan, number)
        port = self._choose_port()
        checkpoint = self._checkpoints().newest() if self.state.attempts else None
        folder = attempt_folder(self.run.run_dir, number)
        parallel = self.run.is_parallel
        config = prepare_attempt(folder, plan.yaml_text, command.config_path, checkpoint, is_parallel=parallel)
        logs = attempt_folder(self.run.plain_dir, number)
        self.next_words = command.words(config, logs, port, is_resumed=checkpoint is not None)
        return self._started(number, checkpoint.saved.step if checkpoint else 0)

    def _prepare_cluster(self, cluster: RayCluster, plan: TrainingPlan, number: int) -> events.Started:
        for line in cluster.mend():
            self.say(line)
        ignored = self.state.ignored_checkpoints
        try:
            key = cluster.newest(ignored, self.say) if self.state.attempts else None
            port = cluster.choose_port(may_differ=self.state.num_started_now > 0)
            cluster.prepare(number, plan.yaml_text, key, ignored, port)
        except NodeLost:
            return self._prepare_cluster(cluster, plan, number)  # a spare node, or an error that names the lost one
        self.next_words = ["msrun"]  # each node has its own
        return self._started(number, key[0].step if key else 0)

    def _started(self, number: int, step: int) -> events.Started:
        folder = attempt_folder(self.run.run_dir, number)
        lost = self._last_step() - step if self.state.attempts else 0
        origin = f"from the checkpoint of step {step}" if step else "from the beginning"
        self.say(f"attempt {number}: {origin}{f', {lost} steps are done again' if lost > 0 else ''}; logs: {folder}")
        return events.Started(step)

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

    def _newest(self) -> CheckpointKey | None:
        if self.run.cluster:
            return self.run.cluster.newest(self.state.ignored_checkpoints)
        return max(self._checkpoints().complete(), default=None)

    def _workers_of(self, attempt: int) -> Workers | ClusterWorkers:
        if self.run.cluster:
            return ClusterWorkers(self.run.cluster, attempt)
        command, folder = self.run.command, attempt_folder(self.run.run_dir, attempt)
        return Workers(folder, range(command.num_workers), has_msrun=command.msrun_options is not None)

    def _spawn(self) -> None:
        words, self.next_words = self.next_words, []
        self.workers.close()
        self.workers = self._workers_of(len(self.state.attempts))
        self.is_measured = False
        self.workers.start(words, self.run.environment)

    def _wait(self, for_checkpoint: bool) -> events.Event:
        before = self._newest() if for_checkpoint else None
        while True:
            is_over = self.workers.is_over()
            seen = self.workers.look()
            if is_over:
                event = self.workers.explain()
                outcome = event.outcome if isinstance(event, events.Ended) else Outcome.OUT_OF_MEMORY
                if outcome is Outcome.FINISHED and seen.num_timed_steps and not self.is_measured:
                    return self._measure(seen)  # a short training, that ended between two looks
                self.workers.stop_all()
                return self._with_full_disks(event) if outcome is Outcome.FAILED else event
            if not self.is_measured and seen.num_timed_steps >= self.run.num_measured_steps:
                return self._measure(seen)
            if for_checkpoint and (newest := self._newest()) and (not before or newest[0] > before[0]):
                return events.NewCheckpoint(newest[0].step)
            time.sleep(self.run.poll_s)

    def _measure(self, seen: Seen) -> events.Measured:
        self.is_measured = True
        return self.workers.measured(seen, self.run.saves_checkpoints)

    def _with_full_disks(self, event: events.Ended | events.OutOfMemory) -> events.Event:
        """A training that failed where there is no room left: that is why, or at least why a log says nothing."""
        missing = full_disks(self._checkpoints(), self.run.run_dir)
        if self.run.cluster:
            missing = self.run.cluster.full_disks()
        if not missing:
            return event
        fix = "    fix:     make room there; the same command goes on from the newest checkpoint"
        return replace(event, text="\n".join([event.text, *(f"    {line}" for line in missing), fix]))

    def _load(self) -> State:
        folder = CheckpointFolder(self.run.checkpoints, self.run.command.num_workers)
        present = self.run.cluster.marks() if self.run.cluster else folder.marks()
        fresh = State(self.run.settings, ignored_checkpoints=present)
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
            state = replace(state, ignored_checkpoints=present)
        if state.running:  # this program was killed: the logs say how far the attempt came
            workers = self._workers_of(state.running.number)
            state = state.with_current(last_step=max(state.running.last_step, workers.look().step))
            workers.close()
        return replace(state, settings=self.run.settings)

    def _save(self) -> None:
        try:
            self.file.save(self.state, self.run.key)
        except OSError as error:
            if not self.is_unsaved:
                self.say(
                    f"warning: {self.file.path} cannot be written: {error.strerror or error}; the training goes on, "
                    "but a run that is killed now would start anew"
                )
            self.is_unsaved = True
        else:
            if self.is_unsaved:
                self.say(f"{self.file.path} is written again")
            self.is_unsaved = False
