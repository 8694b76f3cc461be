"""Data of a proof, from the simulation and from the runs."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from mindswap.training.logs.step_report import ReportedStep
from mindswap.training.proof.overlap import Overlap


class Verdict(enum.Enum):
    """Verdict of a check."""

    PASS = "pass"
    FAIL = "fail"
    UNSEEN = "not visible here"


@dataclass(frozen=True)
class Check:
    """One statement that was held against a run."""

    variant: str  # the run
    name: str  # what is checked
    # expected, seen: in words
    expected: str
    seen: str
    verdict: Verdict  # pass, fail, or not visible on this machine
    reason: str = ""  # why it is not visible, or how to read it


@dataclass(frozen=True)
class Simulated:
    """Simulated figures of a step."""

    step_time_ns: int  # one step
    peak_bytes: int  # highest use of device memory of any stage
    copy_ns: int  # time that both links of the first stage are busy
    exposed_copy_ns: int  # time that compute of the first stage waits for copies
    copied_bytes: int  # out of the device and back into it, first stage

    @property
    def hidden_permille(self) -> int | None:
        """Share of the copy time that does not delay compute; None without copies."""
        return max(0, self.copy_ns - self.exposed_copy_ns) * 1000 // self.copy_ns if self.copy_ns else None


@dataclass(frozen=True)
class Worker:
    """Report of one worker of a run."""

    number: int  # of the worker
    steps: tuple[ReportedStep, ...]  # in order
    # used_peak_bytes, actual_peak_bytes: highest use of device memory without and with fragments; None if not said
    used_peak_bytes: int | None = None
    actual_peak_bytes: int | None = None


@dataclass(frozen=True)
class MeasuredRun:
    """One run."""

    exit_code: int  # of the launcher
    wall_s: float  # from start to end
    workers: tuple[Worker, ...] = ()  # those that left a log
    is_out_of_memory: bool = False  # a worker ran out of device memory
    overlap: Overlap | None = None  # of the profiled step; None without a profile of a device
    profile: str | None = None  # folder of the profile; None without one
    last_error: str = ""  # what the logs say went wrong


@dataclass(frozen=True)
class VerifiedEffect:
    """Answer of `mindswap verify` about a run: the compiled graph, and the log of every worker."""

    is_graph_ok: bool | None = None  # the graph does what the configuration asks; None where nothing is asked
    # num_pairs, swapped_bytes: copies of all layers
    num_pairs: int = 0
    swapped_bytes: int = 0
    are_logs_ok: bool | None = None  # every worker logged the policy; None without logs
    log_findings: tuple[str, ...] = ()  # errors and warnings of the logs
    problem: str = ""  # why it could not be verified


@dataclass(frozen=True)
class Variant:
    """One way to run the configuration."""

    name: str  # `off`, `yaml` or `plan`
    title: str  # in words
    config: str  # file that the workers read
    simulated: Simulated | None = None  # before the run
    calibrated: Simulated | None = None  # with the figures that the profile gives; None without a profile
    effect: VerifiedEffect | None = None  # None where it was not verified
    measured: MeasuredRun | None = None  # None where it did not run
    skipped: str = ""  # why it did not run
    budget_bytes: int | None = None  # that the plan was made for


@dataclass(frozen=True)
class Fit:
    """A figure of the device that the profile was asked for."""

    name: str  # of the figure
    before: int  # in the device file, in its smallest unit
    after: int | None  # as the profile has it; None where it stays
    basis: str  # what it was fitted to, or why it stays


@dataclass(frozen=True)
class Proof:
    """Everything that a proof found."""

    config: str  # the user's file
    target: str  # `CPU` or `Ascend`: what the runs ran on
    device: str  # title of the device that was simulated
    # num_workers, num_steps: of each run
    num_workers: int
    num_steps: int
    is_profiled: bool = False  # the last step of each run was profiled
    is_deterministic: bool = False  # kernels were asked to give the same bits each time
    num_layers: int | None = None  # of the model that ran
    changes: tuple[str, ...] = ()  # what the runs have different from the user's file
    notes: tuple[str, ...] = ()  # what a reader has to know
    environment: Mapping[str, str] = field(default_factory=dict)  # of the machine
    variants: tuple[Variant, ...] = ()  # in order
    checks: tuple[Check, ...] = ()  # in order
    calibration: tuple[Fit, ...] = ()  # figures that the profile was asked for; empty without a profile of a device
    calibration_notes: tuple[str, ...] = ()  # what could not be fitted, and why
    calibration_problem: str = ""  # why nothing was simulated with them; "" if it was
    is_interrupted: bool = False  # ended by the user before all runs were over
    wall_s: float = 0.0  # of the whole proof

    @property
    def is_ok(self) -> bool:
        """No check failed, and all of them were made."""
        return not self.is_interrupted and all(check.verdict is not Verdict.FAIL for check in self.checks)


def peak_bytes(measured: MeasuredRun | None) -> int | None:
    """Highest use of device memory of any worker of a run, without fragments; None where no log says it."""
    workers = measured.workers if measured is not None else ()
    return max((worker.used_peak_bytes or 0 for worker in workers), default=0) or None


def typical_ns(measured: MeasuredRun | None, is_profiled: bool) -> int | None:
    """Step time of a run: the middle of its steps, of the slowest worker, without the compiling and the profiled one.

    None where no step is left. `is_profiled`: the last step was.
    """
    times = []
    for worker in measured.workers if measured is not None else ():
        own = sorted(step.duration_ns for step in worker.steps[1 : len(worker.steps) - is_profiled])
        if own:
            times.append(own[len(own) // 2])
    return max(times, default=None)
