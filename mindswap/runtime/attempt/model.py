"""State of an adaptive run, what happens to it, and what it does about it: plain data, integer bytes and ns."""

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Corrections:
    """Corrections of the planner's model, from measurements."""

    static_offset_bytes: int = 0  # to add to every predicted peak
    compute_permille: int = 1000  # speed of the compute stream against the model, in thousandths
    link_permille: int = 1000  # bandwidth of both links to the host against the model, in thousandths


@dataclass(frozen=True)
class TrainingPlan:
    """A configuration with what the planner predicts for it."""

    key: str  # digest of the policy: two plans with one key do the same
    yaml_text: str  # the whole configuration
    budget_bytes: int  # device memory it was made for
    peak_bytes: int  # predicted highest use of device memory, corrections included
    step_time_ns: int  # predicted time of a step, corrections included; 0 if the planner gives none
    exposed_copy_ns: int = 0  # part of it in which copies to and from the host keep the computation waiting
    corrections: Corrections = Corrections()  # those the prediction was made with

    @property
    def raw_peak_bytes(self) -> int:
        """The predicted peak without corrections, which compares plans made at different times."""
        return self.peak_bytes - self.corrections.static_offset_bytes


@dataclass(frozen=True)
class NothingFits:
    """No plan fits the budget; `smallest_budget_bytes` would do, None if not even that is known."""

    smallest_budget_bytes: int | None


# Configuration, budget in bytes, corrections -> the fastest plan within the budget.
Planner = Callable[[Path, int, Corrections], "TrainingPlan | NothingFits"]


class Outcome(str, enum.Enum):  # enum.StrEnum of Python 3.11
    """End of an attempt; RUNNING while it has not."""

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
    """One start of the workers."""

    number: int  # from 1
    plan: TrainingPlan  # what they were started with
    first_step: int = 0  # step of the checkpoint they started from; 0 for none
    last_step: int = 0  # last step that was seen
    num_steps: int = 0  # steps of the whole training; 0 while unknown
    outcome: Outcome = Outcome.RUNNING  # how it ended
    reason: str = ""  # the same in words
    startup_ns: int = 0  # from the start to the first step; 0 while unknown
    measured_peak_bytes: int | None = None  # highest use of any worker; None if none reported it
    measured_step_ns: int | None = None  # median; None before enough steps

    def __post_init__(self) -> None:
        object.__setattr__(self, "outcome", Outcome(self.outcome))  # a file has it as text


@dataclass(frozen=True)
class Settings:
    """Settings of the user."""

    memory_bytes: int  # device memory that may be used, per card
    max_restarts: int = 8  # starts after the first one


@dataclass(frozen=True)
class State:
    """Everything that is known; what a run that was killed goes on from."""

    settings: Settings  # of the user
    attempts: tuple[Attempt, ...] = ()  # in order; the last one may be running
    corrections: Corrections = Corrections()  # what was learned about the model
    out_of_memory: tuple[str, ...] = ()  # keys of plans that ran out of memory, never to be tried again
    # uncorrected predicted peak that no plan may exceed; None while none ran out of memory
    limit_bytes: int | None = None
    tried: tuple[str, ...] = ()  # keys of plans that were started
    # the plan to start next; while workers run, a faster one that waits for a checkpoint
    candidate: TrainingPlan | None = None
    num_fixed_attempts: int = 0  # attempts before this call of the command; they do not count as restarts
    is_stable: bool = False  # the plan is not changed any more, unless it fails
    exit_reason: str = ""  # why it ended; "" while it has not
    ignored_checkpoints: tuple[str, ...] = ()  # marks of checkpoint files that were there before the first start

    @property
    def budget_bytes(self) -> int:
        """Predicted need that the next plan may have."""
        if self.limit_bytes is None:
            return self.settings.memory_bytes
        return min(self.settings.memory_bytes, self.limit_bytes + self.corrections.static_offset_bytes)

    @property
    def num_restarts(self) -> int:
        """Starts after the first one of this call."""
        return max(0, self.num_started_now - 1)

    @property
    def num_started_now(self) -> int:
        """Starts of this call of the command."""
        return len(self.attempts) - self.num_fixed_attempts

    @property
    def current(self) -> Attempt | None:
        """The last attempt."""
        return self.attempts[-1] if self.attempts else None

    @property
    def running(self) -> Attempt | None:
        """The attempt whose workers run."""
        return self.current if self.current and self.current.outcome is Outcome.RUNNING else None

    @property
    def is_finished(self) -> bool:
        """The training came to its end."""
        return self.current is not None and self.current.outcome is Outcome.FINISHED

    def with_current(self, **changes: Any) -> "State":
        """The same with other fields of the last attempt."""
        return replace(self, attempts=(*self.attempts[:-1], replace(self.attempts[-1], **changes)))


# What `graph.capture_cache` writes and reads of them.
CLASSES: dict[str, type] = {
    cls.__name__: cls for cls in (State, Settings, Attempt, TrainingPlan, NothingFits, Corrections)
}


# Events.


@dataclass(frozen=True)
class Opened:
    """The command was called, for a new run or one to go on with."""


@dataclass(frozen=True)
class Planned:
    """The planner answered."""

    answer: TrainingPlan | NothingFits


@dataclass(frozen=True)
class Started:
    """The workers were started from the checkpoint of a step (0: none)."""

    first_step: int


@dataclass(frozen=True)
class Measured:
    """Enough steps to judge the plan."""

    step: int  # last step
    num_steps: int  # of the whole training
    peak_bytes: int | None  # highest use of any worker; None if none reported it
    step_time_ns: int  # median over the slowest worker's steps, the first ones left out
    startup_ns: int  # from the start to the first step
    has_checkpoints: bool  # a complete checkpoint exists, or the configuration saves them


@dataclass(frozen=True)
class Ended:
    """The workers are over."""

    # FINISHED; OUT_OF_MEMORY: a worker died for want of it; KILLED: a process was ended by a signal; FAILED: nothing
    # that less memory would mend; INTERRUPTED: the user stopped them; REPLANNED: stopped at a checkpoint, for the plan
    # that waited for one
    outcome: Outcome
    step: int  # last step that was seen; 0 for none
    text: str = ""  # what it said
    exit_code: int = 1  # of the training that failed
    worker: int = 0  # that ran out of memory
    missing_bytes: int | None = None  # what was missing by its log; None if it does not say


Event = Opened | Planned | Started | Measured | Ended


# Actions; `reason` is for the user, "" says nothing.


@dataclass(frozen=True)
class RunPlanner:
    """Ask the planner; workers that run go on."""

    budget_bytes: int
    reason: str = ""


@dataclass(frozen=True)
class Start:
    """Start the workers with a plan, from the newest complete checkpoint."""

    plan: TrainingPlan
    reason: str = ""


@dataclass(frozen=True)
class Wait:
    """Watch on; `for_checkpoint`: tell when a new checkpoint is complete."""

    for_checkpoint: bool = False
    reason: str = ""


@dataclass(frozen=True)
class End:
    """The end; exit code 0 only after a training that finished."""

    exit_code: int
    reason: str


Action = RunPlanner | Start | Wait | End


# What measurements say about the planner's model of memory and time.

# Beyond this a measurement says that something else was wrong, a busy machine for example.
LEAST_PERMILLE, MOST_PERMILLE = 100, 10_000


def correct(old: Corrections, attempts: Iterable[Attempt]) -> Corrections:
    """Corrections that make the predictions of the attempts meet what was measured; the old ones where nothing was.

    Memory: what the last measured attempt needed beyond its uncorrected prediction; one that ran out of memory did not
    come to its peak. Time: measured = compute / speed + exposed copies / bandwidth, in the least squares over the
    attempts; where they do not tell the two apart, both get the same factor, and the link keeps its own if no copy was
    exposed.
    """
    measured = list(attempts)
    offset = old.static_offset_bytes
    for attempt in measured:
        if attempt.measured_peak_bytes is not None and attempt.outcome is not Outcome.OUT_OF_MEMORY:
            offset = attempt.measured_peak_bytes - attempt.plan.raw_peak_bytes
    times = [_observe(attempt) for attempt in measured if attempt.measured_step_ns and attempt.plan.step_time_ns]
    if not times:
        return Corrections(offset, old.compute_permille, old.link_permille)
    compute_factor, copy_factor = _fit(times)
    link = old.link_permille if copy_factor is None else _permille(copy_factor)
    return Corrections(offset, _permille(compute_factor), link)


_Observation = tuple[float, float, int]


def _observe(attempt: Attempt) -> _Observation:
    """Time of computation and of exposed copies by the uncorrected model, and the measured step."""
    plan = attempt.plan
    compute_ns = (plan.step_time_ns - plan.exposed_copy_ns) * plan.corrections.compute_permille / 1000
    copy_ns = plan.exposed_copy_ns * plan.corrections.link_permille / 1000
    return compute_ns, copy_ns, attempt.measured_step_ns or 0


def _fit(times: list[_Observation]) -> tuple[float, float | None]:
    """Factors of compute and copy time; None for the copies if none was exposed."""
    cc = sum(c * c for c, _, _ in times)
    ee = sum(e * e for _, e, _ in times)
    ce = sum(c * e for c, e, _ in times)
    cm = sum(c * m for c, _, m in times)
    em = sum(e * m for _, e, m in times)
    determinant = cc * ee - ce * ce
    if determinant > 1e-6 * cc * ee:  # the attempts differ in their share of copies
        compute, copy = (cm * ee - em * ce) / determinant, (em * cc - cm * ce) / determinant
        if compute > 0 and copy > 0:
            return compute, copy
    last_compute, last_copy, last_measured = times[-1]
    factor = last_measured / (last_compute + last_copy)
    return factor, factor if last_copy else None


def _permille(factor: float) -> int:
    return max(LEAST_PERMILLE, min(MOST_PERMILLE, round(1000 / factor)))
