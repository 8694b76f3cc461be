"""Event loop of an adaptive run: execute the actions of `decide` and report their events.

All times are of the monotonic clock.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from mindswap.errors import LaunchError, MindswapError, StoppedBySignal
from mindswap.features.adaptive.decide import decide
from mindswap.runtime.attempt.model import (
    Action,
    End,
    Ended,
    Event,
    Measured,
    Opened,
    Outcome,
    Planned,
    Planner,
    RunPlanner,
    Settings,
    Start,
    Started,
    State,
    TrainingPlan,
    Wait,
)
from mindswap.runtime.attempt.node import MARKER, NodeTask
from mindswap.runtime.attempt.nodes import Nodes
from mindswap.runtime.attempt.state import StateError, StateFile, attempt_folder, locked
from mindswap.runtime.attempt.watch import LogProgress
from mindswap.runtime.msrun import require_disk_space
from mindswap.runtime.ray_cluster import NodeLostError
from mindswap.system.process_tree import become_subreaper, marked_processes, stop_processes
from mindswap.system.signals import signals_raise


@dataclass(eq=False)
class AdaptiveRun:
    """Adaptive run: executes the actions of `decide` and reports their events."""

    task: NodeTask  # task of each node
    nodes: Nodes
    key: str  # key of configuration, versions and device; a saved state with another key is ignored
    settings: Settings  # settings of the user
    saves_checkpoints: bool  # whether the configuration saves checkpoints
    planner: Planner
    report_status: Callable[[str], None]  # prints one message for the user
    num_measured_steps: int = 10  # number of steps after which a plan is evaluated
    poll_s: float = 1.0  # interval at which the logs are read
    is_unsaved: bool = False  # whether writing the state file failed
    is_prepared: bool = False  # whether an attempt is prepared but not started
    is_measured: bool = False  # whether the running attempt was measured

    def train(self) -> tuple[int, State]:
        """Train until the training completes, fails for good or is interrupted.

        Returns:
            The exit code and the last state. The code is 0 if the training completed, else that of the training, or
            128 + signal number.

        Raises:
            MindswapError: if it cannot be started.
        """
        self.run_dir = self.task.run_dir
        self.file = StateFile(self.run_dir)
        require_disk_space(self.run_dir)
        with locked(self.run_dir), signals_raise() as interruption:
            become_subreaper()
            self.nodes.connect()
            self.state = self._load()
            try:
                return self._loop(), self.state
            except StoppedBySignal as stop:
                interruption.close()
                self.report_status("stopping all workers")
                self.nodes.stop_all()
                self._take(Ended(Outcome.INTERRUPTED, self._last_step(), "stopped by the user"))
                return stop.exit_code, self.state
            except MindswapError as error:
                self.state = replace(self.state, exit_reason=str(error))  # why it cannot go on
                self._save()
                raise
            finally:
                self.nodes.stop_all()
                self.nodes.close()

    def _loop(self) -> int:
        self._stop_leftovers()
        event: Event = Opened()
        while True:
            action = self._take(event)
            if isinstance(action, End):
                self.nodes.stop_all()
                return action.exit_code
            event = self._perform(action)

    def _stop_leftovers(self) -> None:
        def find() -> list[int]:
            return marked_processes(MARKER, str(self.run_dir))

        if num_stopped := stop_processes(find):
            self.report_status(f"stopped {num_stopped} processes that an earlier run in {self.run_dir} had left")
        if still_running := find():
            raise LaunchError(
                f"{self.run_dir}: processes of an earlier run do not end: {', '.join(map(str, still_running))}\n"
                "    fix:     they wait for a device or a file system: free that, or take another --run-dir"
            )

    def _last_step(self) -> int:
        return max(self.nodes.step, self.state.current.last_step if self.state.current else 0)

    def _take(self, event: Event) -> Action:
        self.state, action = decide(self.state, event)
        self._save()
        if action.reason:
            self.report_status(action.reason)
        return action

    def _perform(self, action: RunPlanner | Start | Wait) -> Event:
        match action:
            case RunPlanner(budget_bytes):
                config_path = self.task.command.config_path
                return Planned(self.planner(config_path, budget_bytes, self.state.corrections))
            case Start(plan):
                return self._prepare(plan)
            case Wait(for_checkpoint):
                try:
                    if self.is_prepared:  # the attempt is in the saved state by now
                        self._start()
                    return self._wait(for_checkpoint)
                except NodeLostError as error:
                    self.nodes.stop_all()
                    return Ended(Outcome.KILLED, self._last_step(), str(error))

    def _prepare(self, plan: TrainingPlan) -> Started:
        number, ignored = len(self.state.attempts) + 1, self.state.ignored_checkpoints
        for line in self.nodes.reconnect_lost():
            self.report_status(line)
        try:
            key = self.nodes.to_resume(ignored, self.report_status) if self.state.attempts else None
            port = self.nodes.choose_port(may_differ=self.state.num_started_now > 0)
            self.nodes.prepare(number, plan.yaml_text, key, ignored, port)
        except NodeLostError:
            return self._prepare(plan)  # a spare node, or an error that names the lost one
        if port != (requested_port := self.task.command.master_port):
            self.report_status(f"port {requested_port} is still in use: port {port} instead")
        self.is_prepared = True
        step = key[0].step if key else 0
        lost = self._last_step() - step if self.state.attempts else 0
        origin = f"from the checkpoint of step {step}" if step else "from the beginning"
        folder = attempt_folder(self.run_dir, number)
        if lost > 0:
            self.report_status(f"attempt {number}: {origin}, {lost} steps are repeated; logs: {folder}")
        else:
            self.report_status(f"attempt {number}: {origin}; logs: {folder}")
        return Started(step)

    def _start(self) -> None:
        self.is_prepared = self.is_measured = False
        self.nodes.open(len(self.state.attempts))
        self.nodes.start()

    def _newest_step(self) -> int:
        newest = self.nodes.newest(self.state.ignored_checkpoints)
        return newest[0].step if newest else 0

    def _wait(self, for_checkpoint: bool) -> Event:
        before = self._newest_step() if for_checkpoint else 0
        while True:
            is_over = self.nodes.is_over()
            progress = self.nodes.look()
            if is_over:
                event = self.nodes.explain()
                if event.outcome is Outcome.FINISHED and progress.num_timed_steps and not self.is_measured:
                    return self._measure(progress)  # a short training, that ended between two looks
                self.nodes.stop_all()
                return self._with_full_disks(event) if event.outcome is Outcome.FAILED else event
            if not self.is_measured and progress.num_timed_steps >= self.num_measured_steps:
                return self._measure(progress)
            if for_checkpoint and (newest := self._newest_step()) > before:
                if self.state.candidate is None:
                    raise AssertionError("no plan waits for its start")
                key = self.state.candidate.key
                self.report_status(f"checkpoint of step {newest} is complete: stopping the workers for plan {key}")
                self.nodes.stop_all()
                with contextlib.suppress(NodeLostError):
                    self.nodes.look()
                return Ended(Outcome.REPLANNED, self._last_step())
            time.sleep(self.poll_s)

    def _measure(self, progress: LogProgress) -> Measured:
        self.is_measured = True
        startup_ns = int(self.nodes.startup_s * 1e9)
        peak_bytes, step_ns, saves = progress.peak_bytes, progress.step_time_ns, self.saves_checkpoints
        return Measured(progress.step, progress.num_steps, peak_bytes, step_ns, startup_ns, saves)

    def _with_full_disks(self, event: Ended) -> Ended:
        """Add full disks to the text of a failure, as they are its likely cause or truncated the logs."""
        missing = self.nodes.full_disks()
        if not missing:
            return event
        fix = "    fix:     make room there; the same command continues from the newest checkpoint"
        return replace(event, text="\n".join([event.text, *(f"    {line}" for line in missing), fix]))

    def _load(self) -> State:
        present = self.nodes.marks()
        fresh = State(self.settings, ignored_checkpoints=present)
        try:
            state = self.file.load(self.key)
        except StateError as problem:
            aside = self.file.archive()
            archived_as = f", kept as {aside}" if aside else ""
            self.report_status(f"{self.file.path} {problem}: it is ignored{archived_as}; starting anew")
            return fresh
        if state is None:
            return fresh
        if state.is_finished:  # existing checkpoints belong to the completed training
            state = replace(state, ignored_checkpoints=present)
        if state.running:  # this program was killed; the logs have the last step of the attempt
            self.nodes.open(state.running.number)
            state = state.with_current(last_step=max(state.running.last_step, self.nodes.look().step))
        return replace(state, settings=self.settings)

    def _save(self) -> None:
        try:
            self.file.save(self.state, self.key)
        except OSError as error:
            if not self.is_unsaved:
                self.report_status(
                    f"warning: {self.file.path} cannot be written: {error.strerror or error}; the training goes on, "
                    "but a run that is killed now would start anew"
                )
            self.is_unsaved = True
