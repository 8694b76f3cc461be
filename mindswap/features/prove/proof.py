"""Data of a proof, from the simulation and from the runs."""

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mindswap.runtime.logs.step_report import ReportedStep
from mindswap.simulator.profile.overlap import Overlap
from mindswap.units import format_bytes, format_time


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
    is_profiled: bool = False  # the last step was

    @property
    def peak_bytes(self) -> int | None:
        """Highest use of device memory of any worker, without fragments; None where no log says it."""
        return max((worker.used_peak_bytes or 0 for worker in self.workers), default=0) or None

    @property
    def step_ns(self) -> int | None:
        """The middle of the steps of the slowest worker, without the compiling and the profiled; None without any."""
        timed = (worker.steps[1 : len(worker.steps) - self.is_profiled] for worker in self.workers)
        times = [sorted(step.duration_ns for step in steps) for steps in timed if steps]
        return max((own[len(own) // 2] for own in times), default=None)


@dataclass(frozen=True)
class RunFigure:
    """A figure of a run, measured beside simulated; None where there is none."""

    name: str
    form: Callable[[int], str]  # how it is written
    measured: int | None
    simulated: int | None
    calibrated: int | None  # simulated with the figures that the profile gives


@dataclass(frozen=True)
class Variant:
    """One way to run the configuration."""

    name: str  # `off`, `yaml` or `plan`
    title: str  # in words
    config: str  # file that the workers read
    simulated: Simulated | None = None  # before the run
    calibrated: Simulated | None = None  # with the figures that the profile gives; None without a profile
    effect: Mapping[str, Any] | None = None  # what `mindswap verify --json` says; None where it was not asked
    measured: MeasuredRun | None = None  # None where it did not run
    skipped: str = ""  # why it did not run
    budget_bytes: int | None = None  # that the plan was made for

    @property
    def figures(self) -> tuple[RunFigure, ...]:
        """Step time, peak memory, and its copies where it has any."""
        run, copies = self.measured, getattr(self.measured, "overlap", None)
        # Name, form, what has it measured and as what, and as what it is simulated.
        rows: list[tuple[str, Callable[[int], str], object, str, str]] = [
            ("step time", format_time, run, "step_ns", "step_time_ns"),
            ("peak memory", format_bytes, run, "peak_bytes", "peak_bytes"),
        ]
        if self.simulated is not None and self.simulated.copy_ns:
            rows += [
                ("copies", format_time, copies, "copy_ns", "copy_ns"),
                ("copies, exposed", format_time, copies, "exposed_ns", "exposed_copy_ns"),
                ("copied", format_bytes, copies, "size_bytes", "copied_bytes"),
            ]
        both = (self.simulated, self.calibrated)
        return tuple(
            RunFigure(name, form, getattr(measured, own, None), *(getattr(each, key, None) for each in both))
            for name, form, measured, own, key in rows
        )


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
    # what `mindswap calibrate --json` says; empty without a profile of a device
    calibration: Mapping[str, Any] = field(default_factory=dict)
    calibration_problem: str = ""  # why nothing was simulated with them; "" if it was
    is_interrupted: bool = False  # ended by the user before all runs were over
    wall_s: float = 0.0  # of the whole proof

    @property
    def is_ok(self) -> bool:
        """No check failed, and all of them were made."""
        return not self.is_interrupted and all(check.verdict is not Verdict.FAIL for check in self.checks)
