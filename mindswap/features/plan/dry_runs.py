"""Plans that MindSpore's Ascend backend has seen: plan, dry run, budget corrected by the difference, and again."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mindswap.adapters.quiet import progress_reporting
from mindswap.config.render import document_from_data
from mindswap.errors import NOT_COMPILED, LaunchError
from mindswap.features.dryrun import DryRunReport, StatusCallback, dry_run_to_json, run_stages
from mindswap.features.plan import StepPlan
from mindswap.features.plan.pynative import is_2x
from mindswap.policy.equivalence import policy_sections
from mindswap.policy.wording import name_indices
from mindswap.report.tables import format_table
from mindswap.steps.recorded import is_trace_path
from mindswap.system.children import ask
from mindswap.system.scratch import scratch_folder
from mindswap.units import format_bytes, format_time

MAX_ATTEMPTS = 3


@dataclass(frozen=True, eq=False)
class DryRunPlan:
    """A plan, and what the backend makes of it."""

    requested_bytes: int  # budget that the planner was given
    plan: StepPlan
    dry_run: DryRunReport | None  # None where nothing fits in the simulation, or the backend fails
    failure: str = ""  # of the backend

    @property
    def fits(self) -> bool:
        """True if it fits on the backend, too."""
        return self.dry_run is not None and self.dry_run.fits


def plan_with_dry_runs(
    budget_bytes: int, make: Callable[[int], StepPlan], report_status: StatusCallback = lambda line: None
) -> tuple[DryRunPlan, ...]:
    """Plans, each within a budget that is corrected by what the dry run of the one before it needed more or less.

    The last of them fits on the backend (`DryRunReport.fits`), or is the last of `MAX_ATTEMPTS`, or is one that
    does not fit in the simulation either.

    Args:
        budget_bytes: of each card.
        make: plans for a budget.
        report_status: called with each line on the progress.

    Raises:
        LaunchError: a dry run cannot be run here, or that of the first plan fails.
    """
    attempts: list[DryRunPlan] = []
    requested_bytes = budget_bytes
    while len(attempts) < MAX_ATTEMPTS:
        found = make(requested_bytes)
        if not found.fits:
            return (*attempts, DryRunPlan(requested_bytes, found, None))
        try:
            report = dry_run_plan(found, budget_bytes, report_status)
        except LaunchError as error:
            if not attempts:
                raise
            return (*attempts, DryRunPlan(requested_bytes, found, None, str(error)))
        attempts.append(DryRunPlan(requested_bytes, found, report))
        if report.fits:
            break
        requested_bytes = min(requested_bytes - 1, budget_bytes - (report.peak_bytes - found.peak_bytes))
    return tuple(attempts)


def dry_run_plan(plan: StepPlan, budget_bytes: int, report_status: StatusCallback = lambda line: None) -> DryRunReport:
    """The dry run of a step under a plan, beside its simulation; errors as of `run_stages`."""
    step = replace(plan.step, policy=replace(plan.policy, is_swap_enabled=True))
    data = step.document.data()
    sections = policy_sections(step.policy, data, step.model.captured.num_layers)
    document, title = document_from_data({**data, **sections}, step.document.file), f"{step.title}, planned"
    limits = budget_bytes, step.device.leaves_fragments
    return run_stages(document, None, report_status, title, lambda: step, *limits)


def format_attempts(attempts: Sequence[DryRunPlan]) -> str:
    """A row for each plan: simulated, and on the Ascend backend."""
    header = ("plan for", "step time", "planned peak", "dry run", "with fragments", "and workspace", "fits")
    rows = []
    for attempt in attempts:
        sizes = [attempt.requested_bytes, attempt.plan.peak_bytes]
        report = attempt.dry_run
        if report is not None:
            sizes += [report.used_peak_bytes, report.actual_peak_bytes, report.peak_bytes]
        cells = [f"{size / 2**20:.0f} MiB" for size in sizes] + ["-"] * (5 - len(sizes))
        rows.append((cells[0], format_time(attempt.plan.step_time_ns), *cells[1:], "yes" if attempt.fits else "NO"))
    lines = ["on MindSpore's Ascend backend, without a card (mindswap dryrun):", format_table(header, rows)]
    report = attempts[-1].dry_run
    lines += [f"note: {note}" for note in (report.notes if report else ())]
    if attempts[-1].failure:
        lines.append(f"no plan: {attempts[-1].failure}")
    elif report is None:
        lines.append("no plan: with what the backend needs more nothing fits into the budget\n    fix: more memory")
    elif not report.fits:
        lines.append(f"no plan fits on the backend after {len(attempts)} of {MAX_ATTEMPTS}\n    fix: more memory")
    return "\n".join(lines)


def attempts_to_json(attempts: Sequence[DryRunPlan]) -> list[dict[str, Any]]:
    """The same as plain data."""
    return [
        {
            "asked_bytes": attempt.requested_bytes,
            "step_time_ns": attempt.plan.step_time_ns,
            "planned_peak_bytes": attempt.plan.peak_bytes,
            "fits": attempt.fits,
            "failure": attempt.failure or None,
            "dry_run": dry_run_to_json(attempt.dry_run) if attempt.dry_run is not None else None,
        }
        for attempt in attempts
    ]


# A plan held against the compiler before it is handed out, in a process of its own and within a time.

VERIFY_LIMIT_S = 300.0
KEEP = "--pin 'PATTERN=keep' for what the plan recomputes, one after the other"
# Findings of `verify --json` on a layer, beside entries without effect.
OTHER_FAULTS = ("missing", "unasked", "wrong_prefetch", "one_way")


@dataclass(frozen=True)
class PlanVerdict:
    """Verdict of the compiler on a plan."""

    is_as_asked: bool | None  # None where nobody could tell
    text: str  # one line for people
    plan: StepPlan | None = None  # what was verified, where that is another one

    @property
    def is_refused(self) -> bool:
        """The compiler does something else."""
        return self.is_as_asked is False


def verify_plan(plan: StepPlan, use_cache: bool = True, limit_s: float = VERIFY_LIMIT_S) -> PlanVerdict:
    """Hold the compiled network against what a plan asks, all of it and no more.

    Layers under unlike settings can leave a swap between them without effect, which no simulation of one layer shows:
    such entries are left out, and what is left is verified again, if it still fits.

    Args:
        plan: one that fits.
        use_cache: False compiles again and keeps nothing.
        limit_s: the compile may take so long; after that nobody can tell.
    """
    path = plan.step.path
    if path is None or is_trace_path(str(path)) or is_2x(plan.step.document):
        return PlanVerdict(None, "not verified: there is no network to compile")
    verdict, idle = _verify_in_subprocess(plan, path, use_cache, limit_s)
    mended = plan.without_swaps(idle) if idle else None
    if mended is None:
        return verdict
    again, _ = _verify_in_subprocess(mended, path, use_cache, limit_s)
    if again.is_refused:
        return verdict
    left_out = ", ".join(
        f"{name} in {name_indices('layer', [layer for layer, names in idle.items() if name in names])}"
        for name in dict.fromkeys(name for names in idle.values() for name in names)
    )
    text = f"{again.text}; left out, as the compiler gives them no effect: swap of {left_out}"
    return PlanVerdict(again.is_as_asked, f"{text}; peak memory then {format_bytes(mended.peak_bytes)}", mended)


def _verify_in_subprocess(
    plan: StepPlan, path: Path, use_cache: bool, limit_s: float
) -> tuple[PlanVerdict, dict[int, set[str]]]:
    """The verdict, and where nothing else is wrong the patterns without effect in each layer."""
    with scratch_folder("plan") as folder:
        file = folder / path.name
        plan.save(file)
        words = ["verify", "--brief", "--json", str(file), *([] if use_cache else ["--no-cache"])]
        try:
            with progress_reporting("verifying the plan: compiling the network under it"):
                answer = ask(words, limit_s)
        except LaunchError as error:
            text = f"not verified: {error}; mindswap verify takes the time that it needs"
            return PlanVerdict(None, text), {}
    if answer.data is None:
        first = answer.error.partition("\n")[0]
        if first.startswith(NOT_COMPILED):  # a plan of a step that was compiled when it was captured
            return PlanVerdict(False, f"{first}; without the plan it compiles\n    fix: {KEEP}"), {}
        log = next((f" ({line.strip()})" for line in answer.error.splitlines() if "full log: " in line), "")
        return PlanVerdict(None, f"not verified: {first}{log}"), {}
    if answer.data["ok"]:
        return PlanVerdict(True, "verified: the compiled graph does what the plan asks"), {}
    layers = answer.data["layers"]
    faults = dict.fromkeys(text for layer in layers for text in _faults_of(layer))
    verdict = PlanVerdict(False, "; ".join(["the compiled graph does NOT do what the plan asks", *faults]))
    idle = {layer["layer"]: {entry["entry"] for entry in layer["without_effect"]} for layer in layers}
    has_others = any(layer[key] for layer in layers for key in OTHER_FAULTS)
    return verdict, {} if has_others else {layer: names for layer, names in idle.items() if names}


def _faults_of(layer: Mapping[str, Any]) -> list[str]:
    """Findings of `verify --json` on a layer."""
    found = [f"{key.replace('_', ' ')}: {name}" for key in OTHER_FAULTS for name in layer[key]]
    return found + [f"without effect: {entry['entry']}" for entry in layer["without_effect"]]
