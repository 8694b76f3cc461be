"""What a proof is made of: plain data, from the simulation and from the runs."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from mindswap.logs.step_report import ReportedStep
from mindswap.prove.overlap import Overlap


class Verdict(enum.Enum):
    """What came out of a check."""

    PASS = "pass"
    FAIL = "fail"
    UNSEEN = "not visible here"


@dataclass(frozen=True)
class Check:
    """One statement that was held against a run.

    Attributes:
        variant: the run.
        name: what is checked.
        expected, seen: in words.
        verdict: pass, fail, or not visible on this machine.
        reason: why it is not visible, or how to read it.
    """

    variant: str
    name: str
    expected: str
    seen: str
    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True)
class Simulated:
    """What the simulator says of a step.

    Attributes:
        step_time_ns: one step.
        peak_bytes: highest use of device memory of any stage.
        copy_ns: time that both links of the first stage are busy.
        exposed_copy_ns: time that compute of the first stage waits for copies.
        copied_bytes: out of the device and back into it, first stage.
    """

    step_time_ns: int
    peak_bytes: int
    copy_ns: int
    exposed_copy_ns: int
    copied_bytes: int

    @property
    def hidden_permille(self) -> int | None:
        """Share of the copy time that does not delay compute; None without copies."""
        return max(0, self.copy_ns - self.exposed_copy_ns) * 1000 // self.copy_ns if self.copy_ns else None


@dataclass(frozen=True)
class Worker:
    """What one worker of a run reported.

    Attributes:
        number: of the worker.
        steps: in order.
        used_peak_bytes, actual_peak_bytes: highest use of device memory without and with fragments; None if not said.
    """

    number: int
    steps: tuple[ReportedStep, ...]
    used_peak_bytes: int | None = None
    actual_peak_bytes: int | None = None


@dataclass(frozen=True)
class MeasuredRun:
    """One run.

    Attributes:
        exit_code: of the launcher.
        wall_s: from start to end.
        workers: those that left a log.
        is_out_of_memory: a worker ran out of device memory.
        overlap: of the profiled step; None without a profile of a device.
        profile: folder of the profile; None without one.
        last_error: what the logs say went wrong.
    """

    exit_code: int
    wall_s: float
    workers: tuple[Worker, ...] = ()
    is_out_of_memory: bool = False
    overlap: Overlap | None = None
    profile: str | None = None
    last_error: str = ""


@dataclass(frozen=True)
class VerifiedEffect:
    """What `mindswap verify` says of a run: the compiled graph, and the log of every worker.

    Attributes:
        is_graph_ok: the graph does what the configuration asks; None where nothing is asked.
        num_pairs, swapped_bytes: copies of all layers.
        are_logs_ok: every worker logged the policy; None without logs.
        log_findings: errors and warnings of the logs.
        problem: why it could not be verified.
    """

    is_graph_ok: bool | None = None
    num_pairs: int = 0
    swapped_bytes: int = 0
    are_logs_ok: bool | None = None
    log_findings: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Variant:
    """One way to run the configuration.

    Attributes:
        name: `off`, `yaml` or `plan`.
        title: in words.
        config: file that the workers read.
        simulated: before the run.
        calibrated: with the figures that the profile gives; None without a profile.
        effect: None where it was not verified.
        measured: None where it did not run.
        skipped: why it did not run.
        budget_bytes: that the plan was made for.
    """

    name: str
    title: str
    config: str
    simulated: Simulated | None = None
    calibrated: Simulated | None = None
    effect: VerifiedEffect | None = None
    measured: MeasuredRun | None = None
    skipped: str = ""
    budget_bytes: int | None = None


@dataclass(frozen=True)
class Fit:
    """A figure of the device that the profile was asked for.

    Attributes:
        name: of the figure.
        before: in the device file, in its smallest unit.
        after: as the profile has it; None where it stays.
        basis: what it was fitted to, or why it stays.
    """

    name: str
    before: int
    after: int | None
    basis: str


@dataclass(frozen=True)
class Proof:
    """Everything that a proof found.

    Attributes:
        config: the user's file.
        target: `CPU` or `Ascend`: what the runs ran on.
        device: title of the device that was simulated.
        num_workers, num_steps: of each run.
        is_profiled: the last step of each run was profiled.
        is_deterministic: kernels were asked to give the same bits each time.
        num_layers: of the model that ran.
        changes: what the runs have different from the user's file.
        notes: what a reader has to know.
        environment: of the machine.
        variants: in order.
        checks: in order.
        calibration: figures that the profile was asked for; empty without a profile of a device.
        calibration_notes: what could not be fitted, and why.
        calibration_problem: why nothing was simulated with them; "" if it was.
        is_interrupted: ended by the user before all runs were over.
        wall_s: of the whole proof.
    """

    config: str
    target: str
    device: str
    num_workers: int
    num_steps: int
    is_profiled: bool = False
    is_deterministic: bool = False
    num_layers: int | None = None
    changes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    variants: tuple[Variant, ...] = ()
    checks: tuple[Check, ...] = ()
    calibration: tuple[Fit, ...] = ()
    calibration_notes: tuple[str, ...] = ()
    calibration_problem: str = ""
    is_interrupted: bool = False
    wall_s: float = 0.0

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
