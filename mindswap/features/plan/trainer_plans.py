"""Dry runs of plans of MindFormers 2.x with its own trainer, and plans corrected by them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mindswap.config.nodes import Document
from mindswap.config.parse import parse_document
from mindswap.errors import LaunchError
from mindswap.features.dryrun import (
    DryRunOptions,
    StatusCallback,
    TrainerDryRun,
    dry_run_trainer,
    rank_lines,
    trainer_dry_run_to_json,
)
from mindswap.features.plan.attempts import attempt_row, attempt_to_json
from mindswap.features.plan.pynative import (
    CHUNKS,
    ENGINE,
    added_chunks,
    added_engine,
    chunked_text,
    with_chunks,
    with_own_engine,
    with_swappable_stages,
)
from mindswap.features.plan.step_plan import StepPlan
from mindswap.features.plan.written import planned_text
from mindswap.features.simulate import LoadedStep
from mindswap.planner.problem import Allow
from mindswap.policy.formats.mindformers2.settings import OWN_ENGINE
from mindswap.report.tables import format_table
from mindswap.units import format_bytes

MAX_ATTEMPTS = 4
# Pieces of the loss that are tried. On docs/qwen3_2x.yaml 4 need 1375 MiB less than one piece, 16 need 2000 less.
CHUNK_COUNTS = (4, 16)
# Returns the plan for a budget, and for what the budget of each pipeline stage is lowered by; in bytes.
MakePlan = Callable[[int, Sequence[int]], StepPlan]
HEADER = ("plan for", "step time", "planned peak", "dry run", "fits")


@dataclass(frozen=True, eq=False)
class TrainerAttempt:
    """A plan and its dry run with the trainer.

    Attributes:
        requested_bytes: budget of the planner.
        budget_bytes: memory that the plan may take.
        plan: the plan.
        dry_run: None if the plan does not fit in the simulation, or the trainer failed.
        failure: error of the trainer.
        less_bytes: what the budget of each pipeline stage was lowered by; empty for nothing.
    """

    requested_bytes: int
    budget_bytes: int
    plan: StepPlan
    dry_run: TrainerDryRun | None
    failure: str = ""
    less_bytes: tuple[int, ...] = ()

    @property
    def stage_bytes(self) -> tuple[int, ...]:
        """Return the budget of the planner for each pipeline stage; empty if all have `requested_bytes`."""
        return tuple(self.requested_bytes - less for less in self.less_bytes) if any(self.less_bytes) else ()

    @property
    def fits(self) -> bool:
        """Return whether the plan fits in the dry run."""
        return self.dry_run is not None and self.dry_run.step.used_peak_bytes <= self.budget_bytes


def plan_with_trainer(
    budget_bytes: int,
    make: MakePlan,
    report_status: StatusCallback = lambda line: None,
    num_cards: int | None = None,
) -> tuple[TrainerAttempt, ...]:
    """Plan and dry run until a plan fits in the dry run.

    After each dry run, the budget of the next plan is reduced by what the dry run needed more than the simulation; with
    pipeline stages only that of stages that do not fit.

    Args:
        budget_bytes: memory budget of each card.
        make: returns the plan.
        report_status: called with one line of progress.
        num_cards: cards of the training; None takes those of the configuration.

    Returns:
        All attempts; the last one fits, or does not fit in the simulation, or is number `MAX_ATTEMPTS`, or failed.
    """
    attempts: list[TrainerAttempt] = []
    requested_bytes = budget_bytes
    less_bytes: Sequence[int] = ()
    while len(attempts) < MAX_ATTEMPTS:
        plan = make(requested_bytes, less_bytes)
        attempt = TrainerAttempt(requested_bytes, budget_bytes, plan, None, less_bytes=tuple(less_bytes))
        if not plan.fits:
            return (*attempts, attempt)
        try:
            report = _dry_run(plan, report_status, num_cards)
        except LaunchError as error:
            return (*attempts, replace(attempt, failure=str(error)))
        attempts.append(replace(attempt, dry_run=report))
        if attempts[-1].fits:
            break
        if report.stages:
            used_bytes = [stage.used_peak_bytes for stage in report.stages]
            less_bytes = lower_stages(less_bytes, budget_bytes, used_bytes, plan.plan.stage_peak_bytes)
            continue
        excess_bytes = report.step.used_peak_bytes - plan.peak_bytes
        requested_bytes = min(requested_bytes - 1, budget_bytes - excess_bytes)
    return tuple(attempts)


def lower_stages(
    less_bytes: Sequence[int], budget_bytes: int, used_bytes: Sequence[int], planned_bytes: Sequence[int]
) -> list[int]:
    """Return what the budget of each pipeline stage is lowered by after a dry run: more where a stage does not fit.

    Args:
        less_bytes: what it was lowered by so far; empty for nothing.
        budget_bytes: memory that each stage may take.
        used_bytes: peak of each stage in the dry run.
        planned_bytes: peak of each stage in the simulation.
    """
    less_bytes = less_bytes or [0] * len(used_bytes)
    return [
        max(less + 1, used - planned) if used > budget_bytes else less
        for less, used, planned in zip(less_bytes, used_bytes, planned_bytes, strict=True)
    ]


def plan_with_changes(
    step: LoadedStep,
    budget_bytes: int,
    make: MakePlan,
    make_changed: Callable[[Document], MakePlan],
    report_status: StatusCallback,
    may_swap: bool,
    num_cards: int | None = None,
) -> tuple[TrainerAttempt, ...]:
    """Plan as `plan_with_trainer`; if nothing fits, with changes of the file that need less memory.

    First the loss is computed in pieces (`model.chunk_loss_num`), then mindswap's own executor swaps, which swaps the
    last layers, too (`mindswap.swap_engine`), then both. The executor comes last, as it never ran on a card.

    Args:
        step: the step of the file.
        budget_bytes: memory budget of each card.
        make: returns the plan of the file.
        make_changed: returns such a function for another configuration.
        report_status: called with one line of progress.
        may_swap: whether the plan may swap.
        num_cards: cards of the training; None takes those of the configuration.
    """
    attempts = plan_with_trainer(budget_bytes, make, report_status, num_cards)
    if attempts[-1].fits or attempts[-1].failure:
        return attempts
    for change, document in changed_documents(step, may_swap):
        report_status(f"nothing fits; {change}")
        changed = plan_with_trainer(budget_bytes, make_changed(document), report_status, num_cards)
        if changed[-1].fits:
            return changed
    return attempts


def changed_documents(step: LoadedStep, may_swap: bool) -> Iterator[tuple[str, Document]]:
    """Yield configurations that need less memory, and what is changed, in words."""
    has_chunks = step.document.value(*CHUNKS) or step.document.value("model", "calculate_per_token_loss")
    text, counts = step.config_text(), () if has_chunks else CHUNK_COUNTS
    for count in counts:
        words = f"with the loss in {count} pieces (model.chunk_loss_num: {count})"
        yield words, with_swappable_stages(with_chunks(step.document, text, count), Allow(swap=may_swap))
    if not may_swap or step.document.value(*ENGINE) == OWN_ENGINE:
        return
    words = f"with the swap of mindswap ({'.'.join(ENGINE)}: {OWN_ENGINE})"
    yield words, with_own_engine(step.document, text)
    if counts:
        chunked = chunked_text(step.document, text, counts[-1])
        yield f"{words} and the loss in {counts[-1]} pieces", with_own_engine(step.document, chunked)


def _dry_run(plan: StepPlan, report_status: StatusCallback, num_cards: int | None) -> TrainerDryRun:
    """Dry run the configuration with the plan. Raises as `dry_run_trainer`."""
    file = plan.step.document.file
    document = parse_document(planned_text(plan.step, plan.plan, file), file)
    return dry_run_trainer(document, DryRunOptions(), report_status, f"{plan.step.title}, planned", num_cards=num_cards)


def format_trainer_attempts(attempts: Sequence[TrainerAttempt]) -> str:
    """Format a table with a row per attempt: simulated figures and the peak of the dry run."""
    rows = []
    for attempt in attempts:
        used_bytes = attempt.dry_run.step.used_peak_bytes if attempt.dry_run is not None else None
        requested, *others = attempt_row(attempt, [used_bytes])
        lowered = [
            f"stage {stage}: {size / 2**20:.0f} MiB"
            for stage, size in enumerate(attempt.stage_bytes)
            if size < attempt.requested_bytes
        ]
        rows.append(("; ".join([requested, *lowered]), *others))
    lines = ["with the trainer of MindFormers on MindSpore's Ascend backend, without a card (mindswap dryrun):"]
    lines.append(format_table(HEADER, rows))
    last = attempts[-1]
    if (count := added_chunks(last.plan.step)) is not None:
        lines.append(f"part of the plan: model.chunk_loss_num: {count}, the loss in pieces; without it nothing fits")
    if added_engine(last.plan.step, last.plan.policy):
        has_stages = last.plan.step.document.count("parallelism", "pipeline_parallel") > 1
        reason = "refuses pipeline stages" if has_stages else "needs more memory"
        lines.append(
            f"part of the plan: {'.'.join(ENGINE)}: {OWN_ENGINE}: MindFormers' swap {reason}; mindswap's own never ran "
            "on a card"
        )
    if last.failure:
        lines.append(f"the dry run failed: {last.failure}")
    elif last.dry_run is None:
        lines.append("no plan: with the extra memory of the dry run nothing fits into the budget\n    fix: more memory")
    elif not last.fits:
        needed, rank = format_bytes(last.dry_run.step.used_peak_bytes), last.dry_run.rank
        lines.append(f"no plan fits in the dry run after {len(attempts)}: it needs {needed}")
        has_less = rank is not None and rank.max_peak_bytes <= last.budget_bytes
        fix = "more memory (--memory), as a rank of the training needs less, see below" if has_less else "more memory"
        lines.append(f"    fix: {fix}")
    if last.dry_run is not None:
        lines += rank_lines(replace(last.dry_run, budget_bytes=last.budget_bytes, margin_permille=0))
    return "\n".join(lines)


def trainer_attempts_to_json(attempts: Sequence[TrainerAttempt]) -> list[dict[str, Any]]:
    """Return the attempts as plain data for `--json`."""
    return [
        attempt_to_json(attempt, trainer_dry_run_to_json(attempt.dry_run) if attempt.dry_run is not None else None)
        | {"stage_asked_bytes": list(attempt.stage_bytes)}
        for attempt in attempts
    ]
