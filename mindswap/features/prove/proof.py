"""Data of a proof: simulated and measured figures of each run, and checks on them."""

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mindswap.runtime.logs.step_report import ReportedStep
from mindswap.simulator.profile.overlap import Overlap
from mindswap.units import format_bytes, format_time


class Verdict(enum.Enum):
    """Verdict of a check; UNSEEN if this machine cannot show it."""

    PASS = "pass"
    FAIL = "fail"
    UNSEEN = "not visible here"


@dataclass(frozen=True)
class Check:
    """One expectation and its observation in a run."""

    variant: str  # name of the run
    name: str  # subject of the check
    expected: str  # expectation in words
    seen: str  # observation in words
    verdict: Verdict
    reason: str = ""  # why it is not visible here, or how to read the observation


@dataclass(frozen=True)
class Simulated:
    """Simulated figures of a step."""

    step_time_ns: int  # time of one step
    peak_bytes: int  # peak memory of the stage with the highest
    copy_ns: int  # busy time of both links, first stage
    exposed_copy_ns: int  # copy time that delays compute, first stage
    copied_bytes: int  # offloaded and prefetched bytes, first stage

    @property
    def hidden_permille(self) -> int | None:
        """Fraction of the copy time that overlaps with compute, in thousandths; None without copies."""
        return max(0, self.copy_ns - self.exposed_copy_ns) * 1000 // self.copy_ns if self.copy_ns else None


@dataclass(frozen=True)
class Worker:
    """Steps and peak memory that one worker of a run logged."""

    number: int  # number of the worker
    steps: tuple[ReportedStep, ...]  # in order
    used_peak_bytes: int | None = None  # peak memory without fragments; None if not logged
    actual_peak_bytes: int | None = None  # peak memory with fragments; None if not logged


@dataclass(frozen=True)
class MeasuredRun:
    """Measurements of one run."""

    exit_code: int  # of the launcher
    wall_s: float  # wall-clock time of the run
    workers: tuple[Worker, ...] = ()  # workers with a log
    is_out_of_memory: bool = False  # whether a worker ran out of device memory
    overlap: Overlap | None = None  # overlap in the profiled step; None without a device profile
    profile: str | None = None  # folder of the profile; None without one
    last_error: str = ""  # last error in the logs
    is_profiled: bool = False  # whether the last step was profiled

    @property
    def peak_bytes(self) -> int | None:
        """Highest peak memory of any worker, without fragments; None if no log has it."""
        return max((worker.used_peak_bytes or 0 for worker in self.workers), default=0) or None

    @property
    def step_ns(self) -> int | None:
        """Median step time of the slowest worker, without the first (compiling) and the profiled step; None if none."""
        medians = []
        for worker in self.workers:
            times = sorted(step.duration_ns for step in worker.steps[1 : len(worker.steps) - self.is_profiled])
            medians += [times[len(times) // 2]] if times else []
        return max(medians, default=None)


@dataclass(frozen=True)
class RunFigure:
    """Measured and simulated values of one figure; None if not available."""

    name: str
    form: Callable[[int], str]  # formats a value
    measured: int | None
    simulated: int | None
    calibrated: int | None  # simulated with the calibrated device


@dataclass(frozen=True)
class Variant:
    """One run of the configuration: swap off, as configured, or planned."""

    name: str  # `off`, `yaml` or `plan`
    title: str  # description of the variant
    config: str  # file that the workers read
    simulated: Simulated | None = None  # simulation before the run
    calibrated: Simulated | None = None  # simulation with the calibrated device; None without a profile
    effect: Mapping[str, Any] | None = None  # output of `mindswap verify --json`; None if not verified
    measured: MeasuredRun | None = None  # None if it did not run
    skipped: str = ""  # reason if it did not run
    budget_bytes: int | None = None  # memory budget of the plan

    @property
    def figures(self) -> tuple[RunFigure, ...]:
        """Step time, peak memory and, if there are any, copies."""
        run, copies = self.measured, getattr(self.measured, "overlap", None)
        # Name, format, measured object and its attribute, attribute of the simulated figures.
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
        simulations = (self.simulated, self.calibrated)
        return tuple(
            RunFigure(
                name,
                form,
                getattr(measured, attribute, None),
                *(getattr(simulation, key, None) for simulation in simulations),
            )
            for name, form, measured, attribute, key in rows
        )


@dataclass(frozen=True)
class Proof:
    """Result of a proof: all variants and checks."""

    config: str  # the user's file
    target: str  # device target of the runs, `CPU` or `Ascend`
    device: str  # title of the simulated device
    num_workers: int  # workers of each run
    num_steps: int  # steps of each run
    is_profiled: bool = False  # whether the last step of each run was profiled
    is_deterministic: bool = False  # whether the runs used deterministic kernels
    num_layers: int | None = None  # layers of the model in the runs
    changes: tuple[str, ...] = ()  # differences between the user's file and the runs
    notes: tuple[str, ...] = ()  # caveats for the reader
    environment: Mapping[str, str] = field(default_factory=dict)  # software and hardware of the machine
    variants: tuple[Variant, ...] = ()  # in order of the runs
    checks: tuple[Check, ...] = ()  # in order of the report
    # output of `mindswap calibrate --json`; empty without a device profile
    calibration: Mapping[str, Any] = field(default_factory=dict)
    calibration_problem: str = ""  # why the simulation was not repeated with the calibrated device; "" if it was
    is_interrupted: bool = False  # whether the user stopped it before the last run ended
    wall_s: float = 0.0  # wall-clock time of the proof

    @property
    def is_ok(self) -> bool:
        """Return whether the proof is complete and no check failed."""
        return not self.is_interrupted and all(check.verdict is not Verdict.FAIL for check in self.checks)
