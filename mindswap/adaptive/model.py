"""What an adaptive run knows: plain data, integer bytes and ns."""

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Corrections:
    """What measurements say about the model of the planner.

    Attributes:
        static_offset_bytes: to add to every predicted peak.
        compute_permille: speed of the compute stream against the model, in thousandths.
        link_permille: bandwidth of both links to the host against the model, in thousandths.
    """

    static_offset_bytes: int = 0
    compute_permille: int = 1000
    link_permille: int = 1000


@dataclass(frozen=True)
class TrainingPlan:
    """A configuration with what the planner predicts for it.

    Attributes:
        key: digest of the policy: two plans with one key do the same.
        yaml_text: the whole configuration.
        budget_bytes: device memory it was made for.
        peak_bytes: predicted highest use of device memory, corrections included.
        step_time_ns: predicted time of a step, corrections included; 0 if the planner gives none.
        exposed_copy_ns: part of it in which copies to and from the host keep the computation waiting.
        corrections: those the prediction was made with.
    """

    key: str
    yaml_text: str
    budget_bytes: int
    peak_bytes: int
    step_time_ns: int
    exposed_copy_ns: int = 0
    corrections: Corrections = Corrections()

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


class Outcome(enum.StrEnum):
    """How an attempt ended; RUNNING while it has not."""

    RUNNING = "running"
    FINISHED = "finished"
    OUT_OF_MEMORY = "out of memory"
    KILLED = "killed"
    FAILED = "failed"
    LOOSENED = "stopped for a faster plan"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Attempt:
    """One start of the workers.

    Attributes:
        number: from 1.
        plan: what they were started with.
        first_step: step of the checkpoint they started from; 0 for none.
        last_step: last step that was seen.
        num_steps: steps of the whole training; 0 while unknown.
        outcome: how it ended.
        reason: the same in words.
        startup_ns: from the start to the first step; 0 while unknown.
        measured_peak_bytes: highest use of any worker; None if none reported it.
        measured_step_ns: median; None before enough steps.
    """

    number: int
    plan: TrainingPlan
    first_step: int = 0
    last_step: int = 0
    num_steps: int = 0
    outcome: Outcome = Outcome.RUNNING
    reason: str = ""
    startup_ns: int = 0
    measured_peak_bytes: int | None = None
    measured_step_ns: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "outcome", Outcome(self.outcome))  # a file has it as text


@dataclass(frozen=True)
class Settings:
    """What the user set.

    Attributes:
        memory_bytes: device memory that may be used, per card.
        max_restarts: starts after the first one.
    """

    memory_bytes: int
    max_restarts: int = 8


@dataclass(frozen=True)
class State:
    """Everything that is known; what a run that was killed goes on from.

    Attributes:
        settings: of the user.
        attempts: in order; the last one may be running.
        corrections: what was learned about the model.
        out_of_memory: keys of plans that ran out of memory, never to be tried again.
        limit_bytes: uncorrected predicted peak that no plan may exceed; None while none ran out of memory.
        tried: keys of plans that were started.
        candidate: the plan to start next; while workers run, a faster one that waits for a checkpoint.
        num_fixed_attempts: attempts before this call of the command; they do not count as restarts.
        is_stable: the plan is not changed any more, unless it fails.
        last_words: why it ended; "" while it has not.
        ignored_checkpoints: marks of checkpoint files that were there before the first start.
    """

    settings: Settings
    attempts: tuple[Attempt, ...] = ()
    corrections: Corrections = Corrections()
    out_of_memory: tuple[str, ...] = ()
    limit_bytes: int | None = None
    tried: tuple[str, ...] = ()
    candidate: TrainingPlan | None = None
    num_fixed_attempts: int = 0
    is_stable: bool = False
    last_words: str = ""
    ignored_checkpoints: tuple[str, ...] = ()

    @property
    def budget_bytes(self) -> int:
        """What the next plan may need, by prediction."""
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


# What `graph.codec` writes and reads of them.
CLASSES: dict[str, type] = {
    cls.__name__: cls for cls in (State, Settings, Attempt, TrainingPlan, NothingFits, Corrections)
}
