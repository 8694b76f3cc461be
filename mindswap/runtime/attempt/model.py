"""State, events and actions of an adaptive run: plain data, sizes in integer bytes, times in integer ns."""

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Corrections:
    """Measured corrections of the planner's model."""

    static_offset_bytes: int = 0  # added to every predicted peak
    compute_permille: int = 1000  # measured speed of the compute stream, in thousandths of the modelled speed
    link_permille: int = 1000  # measured bandwidth of both host links, in thousandths of the modelled one


@dataclass(frozen=True)
class TrainingPlan:
    """Configuration with the predictions of the planner."""

    key: str  # digest of the policy: plans with equal keys have equal policies
    yaml_text: str  # the full configuration
    budget_bytes: int  # memory budget of the plan, per device
    peak_bytes: int  # predicted peak memory, corrections included
    step_time_ns: int  # predicted step time, corrections included; 0 if the planner predicts none
    exposed_copy_ns: int = 0  # exposed copy time, included in `step_time_ns`
    corrections: Corrections = Corrections()  # corrections that the predictions include

    @property
    def raw_peak_bytes(self) -> int:
        """Predicted peak without corrections, comparable between plans made with different corrections."""
        return self.peak_bytes - self.corrections.static_offset_bytes


@dataclass(frozen=True)
class NothingFits:
    """No plan fits the budget; `smallest_budget_bytes` is the smallest that is feasible, None if unknown."""

    smallest_budget_bytes: int | None


# Configuration, budget in bytes, corrections -> the fastest plan within the budget.
Planner = Callable[[Path, int, Corrections], "TrainingPlan | NothingFits"]


class Outcome(str, enum.Enum):  # enum.StrEnum of Python 3.11
    """Outcome of an attempt; RUNNING until it ends."""

    __str__ = str.__str__
    RUNNING = "running"
    FINISHED = "finished"
    OUT_OF_MEMORY = "out of memory"
    KILLED = "killed"
    FAILED = "failed"
    REPLANNED = "stopped for a faster plan"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Attempt:
    """One start of the workers and its result."""

    number: int  # from 1
    plan: TrainingPlan  # plan of the workers
    first_step: int = 0  # step of the checkpoint that the workers resumed from; 0 without a checkpoint
    last_step: int = 0  # last step in the logs
    num_steps: int = 0  # steps of the complete training; 0 while unknown
    outcome: Outcome = Outcome.RUNNING
    reason: str = ""  # the outcome in words
    startup_ns: int = 0  # from the start to the first step; 0 while unknown
    measured_peak_bytes: int | None = None  # highest peak of any worker; None if no worker reported one
    measured_step_ns: int | None = None  # median step time; None before enough steps

    def __post_init__(self) -> None:
        object.__setattr__(self, "outcome", Outcome(self.outcome))  # text when read from a file


@dataclass(frozen=True)
class Settings:
    """Settings of the user."""

    memory_bytes: int  # memory budget per device
    max_restarts: int = 8  # limit of starts after the first one


@dataclass(frozen=True)
class State:
    """State of an adaptive run, stored on disk so that a killed run can resume."""

    settings: Settings  # of the user
    attempts: tuple[Attempt, ...] = ()  # in order of start; the last one may be running
    corrections: Corrections = Corrections()  # corrections from all attempts
    out_of_memory: tuple[str, ...] = ()  # keys of plans that ran out of memory and are never restarted
    # limit of the uncorrected predicted peak of every plan; None before the first out-of-memory error
    limit_bytes: int | None = None
    tried: tuple[str, ...] = ()  # keys of plans that were started
    # the plan to start next; while workers run, a faster plan that starts after the next checkpoint
    candidate: TrainingPlan | None = None
    num_fixed_attempts: int = 0  # attempts of earlier calls of the command; they do not count as restarts
    is_stable: bool = False  # the plan is final unless it fails
    exit_reason: str = ""  # why the run ended; "" until it ends
    ignored_checkpoints: tuple[str, ...] = ()  # marks of checkpoint files older than the first start

    @property
    def budget_bytes(self) -> int:
        """Memory budget of the next plan, in bytes of predicted peak."""
        if self.limit_bytes is None:
            return self.settings.memory_bytes
        return min(self.settings.memory_bytes, self.limit_bytes + self.corrections.static_offset_bytes)

    @property
    def num_restarts(self) -> int:
        """Number of starts after the first one of this call."""
        return max(0, self.num_started_now - 1)

    @property
    def num_started_now(self) -> int:
        """Number of starts in this call of the command."""
        return len(self.attempts) - self.num_fixed_attempts

    @property
    def current(self) -> Attempt | None:
        """The last attempt; None before the first start."""
        return self.attempts[-1] if self.attempts else None

    @property
    def running(self) -> Attempt | None:
        """The attempt whose workers are running; None if there are none."""
        return self.current if self.current and self.current.outcome is Outcome.RUNNING else None

    @property
    def is_finished(self) -> bool:
        """Return whether the training completed."""
        return self.current is not None and self.current.outcome is Outcome.FINISHED

    def with_current(self, **changes: Any) -> "State":
        """Return a copy with changed fields of the last attempt."""
        return replace(self, attempts=(*self.attempts[:-1], replace(self.attempts[-1], **changes)))


# Classes that the state file stores, by name.
CLASSES: dict[str, type] = {
    cls.__name__: cls for cls in (State, Settings, Attempt, TrainingPlan, NothingFits, Corrections)
}


# Events.


@dataclass(frozen=True)
class Opened:
    """The command was called, for a new run or to resume one."""


@dataclass(frozen=True)
class Planned:
    """The planner returned a plan, or reported that none fits."""

    answer: TrainingPlan | NothingFits


@dataclass(frozen=True)
class Started:
    """The workers were started from the checkpoint of a step; 0 without a checkpoint."""

    first_step: int


@dataclass(frozen=True)
class Measured:
    """Measurements of enough steps to evaluate the plan."""

    step: int  # last step
    num_steps: int  # of the complete training
    peak_bytes: int | None  # highest peak of any worker; None if no worker reported one
    step_time_ns: int  # median step time of the slowest worker, without the first steps
    startup_ns: int  # from the start to the first step
    has_checkpoints: bool  # a complete checkpoint exists, or the configuration saves them


@dataclass(frozen=True)
class Ended:
    """All workers ended."""

    # FINISHED: the training completed; OUT_OF_MEMORY: a worker failed to allocate; KILLED: a signal ended a process;
    # FAILED: any error that less memory would not prevent; INTERRUPTED: the user stopped the workers;
    # REPLANNED: stopped at a checkpoint to start the candidate plan
    outcome: Outcome
    step: int  # last step in the logs; 0 without any
    text: str = ""  # error message; of a crash after the end of the training if it FINISHED
    exit_code: int = 1  # of the failed training
    worker: int = 0  # number of the worker that ran out of memory
    missing_bytes: int | None = None  # shortage according to its log; None if the log has no size


Event = Opened | Planned | Started | Measured | Ended


# Actions; `reason` is printed for the user unless it is "".


@dataclass(frozen=True)
class RunPlanner:
    """Request a plan; running workers continue."""

    budget_bytes: int
    reason: str = ""


@dataclass(frozen=True)
class Start:
    """Start the workers with a plan, from the newest complete checkpoint."""

    plan: TrainingPlan
    reason: str = ""


@dataclass(frozen=True)
class Wait:
    """Continue to watch the workers; with `for_checkpoint` also report the next complete checkpoint."""

    for_checkpoint: bool = False
    reason: str = ""


@dataclass(frozen=True)
class End:
    """End the run; the exit code is 0 only if the training completed."""

    exit_code: int
    reason: str


Action = RunPlanner | Start | Wait | End
