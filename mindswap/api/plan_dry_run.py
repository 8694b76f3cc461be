"""Plans that MindSpore's Ascend backend has seen: plan, dry run, budget corrected by the difference, and again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mindswap.api.dry_run_stages import DryRunOptions, Say, run_stages
from mindswap.api.plan import StepPlan
from mindswap.api.step import Step
from mindswap.config.render import document_from_data
from mindswap.policy.convert import policy_sections
from mindswap.report.dryrun import dry_run_to_json
from mindswap.report.tables import format_table
from mindswap.training.dryrun.stages import DryRunReport

MAX_ATTEMPTS = 3


@dataclass(frozen=True, eq=False)
class DryRunPlan:
    """A plan, and what the backend makes of it."""

    asked_bytes: int  # budget that the planner was given
    plan: StepPlan
    dry_run: DryRunReport | None  # None where nothing fits in the simulation

    @property
    def fits(self) -> bool:
        """Whether it fits on the backend, too."""
        return self.dry_run is not None and self.dry_run.fits


def plan_with_dry_runs(
    step: Step,
    budget_bytes: int,
    make: Callable[[int], StepPlan],
    options: DryRunOptions | None = None,
    say: Say = lambda line: None,
) -> tuple[DryRunPlan, ...]:
    """Plans, each within a budget that is corrected by what the dry run of the one before it needed more or less.

    The last of them fits on the backend, with fragments and workspace, or is the last of `MAX_ATTEMPTS`, or is one that
    does not fit in the simulation either.

    Args:
        step: what to plan for.
        budget_bytes: of each card.
        make: plans for a budget.
        options: of the dry runs.
        say: takes a line about how far it is.

    Raises:
        LaunchError: a dry run cannot be run here, or fails.
    """
    attempts: list[DryRunPlan] = []
    asked_bytes = budget_bytes
    while len(attempts) < MAX_ATTEMPTS:
        found = make(asked_bytes)
        if not found.fits:
            return (*attempts, DryRunPlan(asked_bytes, found, None))
        report = dry_run_plan(found, budget_bytes, options, say)
        attempts.append(DryRunPlan(asked_bytes, found, report))
        if report.fits:
            break
        asked_bytes = min(asked_bytes - 1, budget_bytes - (report.peak_bytes - found.peak_bytes))
    return tuple(attempts)


def dry_run_plan(
    plan: StepPlan, budget_bytes: int, options: DryRunOptions | None = None, say: Say = lambda line: None
) -> DryRunReport:
    """The dry run of a step under a plan, beside its simulation; errors as of `run_stages`."""
    step = plan.step
    data = step.document.data()
    policy = replace(plan.policy, is_swap_enabled=True)
    sections = policy_sections(policy, data, step.model.captured.num_layers)
    document = document_from_data({**data, **sections}, step.document.file)
    stages = plan.run().report().stages
    limits = budget_bytes, step.device.fragments_permille > 0
    return run_stages(document, options, say, f"{step.title}, planned", lambda: stages, *limits)


def format_attempts(attempts: Sequence[DryRunPlan]) -> str:
    """A row for each plan: simulated, and on the Ascend backend."""
    header = ("plan for", "planned peak", "dry run", "with fragments", "and workspace", "fits")
    rows = []
    for attempt in attempts:
        sizes = [attempt.asked_bytes, attempt.plan.peak_bytes]
        report = attempt.dry_run
        if report is not None:
            sizes += [report.used_peak_bytes, report.actual_peak_bytes, report.peak_bytes]
        cells = [f"{size / 2**20:.0f} MiB" for size in sizes] + ["-"] * (5 - len(sizes))
        rows.append((*cells, "yes" if attempt.fits else "NO"))
    lines = ["on MindSpore's Ascend backend, without a card (mindswap dryrun):", format_table(header, rows)]
    report = attempts[-1].dry_run
    return "\n".join([*lines, *(f"note: {note}" for note in (report.notes if report else ()))])


def attempts_to_json(attempts: Sequence[DryRunPlan]) -> list[dict[str, Any]]:
    """The same as plain data."""
    return [
        {
            "asked_bytes": attempt.asked_bytes,
            "planned_peak_bytes": attempt.plan.peak_bytes,
            "fits": attempt.fits,
            "dry_run": dry_run_to_json(attempt.dry_run) if attempt.dry_run is not None else None,
        }
        for attempt in attempts
    ]
