"""What happens to an adaptive run, and what it does about it: plain data, integer bytes and ns."""

from dataclasses import dataclass

from mindswap.training.adaptive.model import NothingFits, Outcome, TrainingPlan

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
class Stopped:
    """The workers were stopped at a new checkpoint, for the plan that waited for it."""

    step: int  # last step that was seen


@dataclass(frozen=True)
class OutOfMemory:
    """A worker died for want of memory."""

    worker: int  # its number
    step: int  # last step that was seen; 0 for none
    missing_bytes: int | None  # what was missing by the log; None if it does not say
    text: str  # what it said


@dataclass(frozen=True)
class Ended:
    """The workers ended, and not for want of memory."""

    # FINISHED; KILLED: a process was ended by a signal; FAILED: nothing that less memory would mend; INTERRUPTED: the
    # user stopped them
    outcome: Outcome
    step: int  # last step that was seen
    text: str = ""  # what it said
    exit_code: int = 1  # of the training that failed


Event = Opened | Planned | Started | Measured | Stopped | OutOfMemory | Ended


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
