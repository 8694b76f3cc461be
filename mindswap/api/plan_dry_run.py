"""Plans that MindSpore's Ascend backend has seen: plan, dry run, budget corrected by the difference, and again."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from mindswap.api.dry_run_stages import DryRunOptions, Say, run_stages
from mindswap.api.plan import StepPlan
from mindswap.api.step import Step
from mindswap.config.plain_data import document_from_data
from mindswap.policy.convert.sections import policy_sections
from mindswap.training.dryrun.stages import DryRunReport

MAX_ATTEMPTS = 3


@dataclass(frozen=True, eq=False)
class DryRunPlan:
    """A plan, and what the backend makes of it."""

    asked_bytes: int  # budget that the planner was given
    plan: StepPlan
    dry_run: DryRunReport | None  # None where nothing fits


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
    return run_stages(document, options, say, f"{step.title}, planned", lambda: stages, budget_bytes)
