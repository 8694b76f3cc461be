"""What happens to an adaptive run, and what it does about it: plain data, integer bytes and ns."""

from dataclasses import dataclass

from mindswap.adaptive.model import NothingFits, Outcome, TrainingPlan

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
    """Enough steps to judge the plan.

    Attributes:
        step: last step.
        num_steps: of the whole training.
        peak_bytes: highest use of any worker; None if none reported it.
        step_time_ns: median over the slowest worker's steps, the first ones left out.
        startup_ns: from the start to the first step.
        has_checkpoints: a complete checkpoint exists, or the configuration saves them.
    """

    step: int
    num_steps: int
    peak_bytes: int | None
    step_time_ns: int
    startup_ns: int
    has_checkpoints: bool


@dataclass(frozen=True)
class NewCheckpoint:
    """A checkpoint of all ranks is complete."""

    step: int


@dataclass(frozen=True)
class Stopped:
    """The workers were stopped as the last action asked."""


@dataclass(frozen=True)
class OutOfMemory:
    """A worker died for want of memory.

    Attributes:
        worker: its number.
        step: last step that was seen; 0 for none.
        missing_bytes: what was missing by the log; None if it does not say.
        text: what it said.
    """

    worker: int
    step: int
    missing_bytes: int | None
    text: str


@dataclass(frozen=True)
class Ended:
    """The workers ended, and not for want of memory.

    Attributes:
        outcome: FINISHED; KILLED: a process was ended by a signal; FAILED: nothing that less memory would mend;
            INTERRUPTED: the user stopped them.
        step: last step that was seen.
        text: what it said.
        exit_code: of the training that failed.
    """

    outcome: Outcome
    step: int
    text: str = ""
    exit_code: int = 1


Event = Opened | Planned | Started | Measured | NewCheckpoint | Stopped | OutOfMemory | Ended


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
class StopWorkers:
    """Stop all workers, then tell."""

    reason: str = ""


@dataclass(frozen=True)
class End:
    """The end; exit code 0 only after a training that finished."""

    exit_code: int
    reason: str


Action = RunPlanner | Start | Wait | StopWorkers | End
