"""`plan --dry-run` and the verification of a plan.

`plan_with_dry_runs` alternates between a plan and its dry run on MindSpore's Ascend backend, and corrects the budget of
the next plan by the difference between simulated and measured peak. `verify_plan` compiles the network under a plan and
compares the graph with the policy, in a child process with a time limit.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mindswap.adapters.quiet import progress_reporting
from mindswap.errors import NOT_COMPILED, LaunchError
from mindswap.features.dryrun import DryRunReport, StatusCallback, describe_basis, dry_run_to_json, run_stages
from mindswap.features.plan import StepPlan
from mindswap.features.plan.attempts import attempt_row, attempt_to_json
from mindswap.features.step_2x import is_2x
from mindswap.planner.write import planned_document
from mindswap.policy.wording import name_indices
from mindswap.report.tables import format_table
from mindswap.steps.recorded import is_trace_path
from mindswap.system.children import ask
from mindswap.system.scratch import scratch_folder
from mindswap.units import format_bytes

MAX_ATTEMPTS = 3


@dataclass(frozen=True, eq=False)
class DryRunPlan:
    """A plan and its dry run on the Ascend backend."""

    requested_bytes: int  # budget of the planner
    plan: StepPlan
    dry_run: DryRunReport | None  # None if the plan does not fit in the simulation, or the backend failed
    failure: str = ""  # error of the backend

    @property
    def fits(self) -> bool:
        """Return whether the plan also fits on the backend."""
        return self.dry_run is not None and self.dry_run.fits


def plan_with_dry_runs(
    budget_bytes: int, make: Callable[[int], StepPlan], report_status: StatusCallback = lambda line: None
) -> tuple[DryRunPlan, ...]:
    """Plan and dry run until a plan fits on the backend.

    After each dry run, the budget of the next plan is corrected by the difference between measured and simulated peak.

    Args:
        budget_bytes: memory budget of each card.
        make: returns the plan for a budget in bytes.
        report_status: called with one line of progress.

    Returns:
        All attempts. The last one fits on the backend, or does not fit in the simulation, or is number `MAX_ATTEMPTS`,
        or its dry run failed.

    Raises:
        LaunchError: a dry run is not possible here, or that of the first plan fails.
    """
    attempts: list[DryRunPlan] = []
    requested_bytes = budget_bytes
    while len(attempts) < MAX_ATTEMPTS:
        plan = make(requested_bytes)
        if not plan.fits:
            return (*attempts, DryRunPlan(requested_bytes, plan, None))
        try:
            report = dry_run_plan(plan, budget_bytes, report_status)
        except LaunchError as error:
            if not attempts:
                raise
            return (*attempts, DryRunPlan(requested_bytes, plan, None, str(error)))
        attempts.append(DryRunPlan(requested_bytes, plan, report))
        if report.fits:
            break
        requested_bytes = min(requested_bytes - 1, budget_bytes - (report.peak_bytes - plan.peak_bytes))
    return tuple(attempts)


def dry_run_plan(plan: StepPlan, budget_bytes: int, report_status: StatusCallback = lambda line: None) -> DryRunReport:
    """Dry run a step under a plan. Raises as `run_stages`."""
    policy, compiled = replace(plan.policy, is_swap_enabled=plan.step.is_swap_written(plan.policy)), plan.step
    step = replace(compiled if policy.is_swap_enabled else compiled.as_compiled_without_swap(), policy=policy)
    document = planned_document(plan.policy, step.document, step.model.captured.num_layers)
    limits = budget_bytes, step.device.leaves_fragments
    return run_stages(document, None, report_status, f"{step.title}, planned", lambda: step, *limits)


def format_attempts(attempts: Sequence[DryRunPlan]) -> str:
    """Format a table with a row per attempt: simulated figures and those of the Ascend backend."""
    header = ("plan for", "step time", "planned peak", "dry run", "with fragments", "and workspace", "fits")
    rows = []
    for attempt in attempts:
        report = attempt.dry_run
        peaks: list[int | None] = [None] * 3
        if report is not None:
            peaks = [report.used_peak_bytes, report.actual_peak_bytes, report.peak_bytes]
        rows.append(attempt_row(attempt, peaks))
    lines = ["on MindSpore's Ascend backend, without a card (mindswap dryrun):", format_table(header, rows)]
    report = attempts[-1].dry_run
    lines += [f"rank {stage.run.rank}: {describe_basis(stage)}" for stage in (report.stages if report else ())]
    lines += [f"note: {note}" for note in (report.notes if report else ())]
    if attempts[-1].failure:
        lines.append(f"no plan: {attempts[-1].failure}")
    elif report is None:
        lines.append("no plan: with the extra memory of the backend nothing fits into the budget\n    fix: more memory")
    elif not report.fits:
        lines.append(f"no plan fits on the backend after {len(attempts)} of {MAX_ATTEMPTS}\n    fix: more memory")
    return "\n".join(lines)


def attempts_to_json(attempts: Sequence[DryRunPlan]) -> list[dict[str, Any]]:
    """Return the attempts as plain data for `--json`."""
    return [
        attempt_to_json(attempt, dry_run_to_json(attempt.dry_run) if attempt.dry_run is not None else None)
        for attempt in attempts
    ]


# Verification of a plan before it is written, in a child process with a time limit.

VERIFY_LIMIT_S = 300.0
KEEP = "--pin 'PATTERN=keep' for what the plan recomputes, one after the other"
# Findings per layer of `verify --json`, other than entries without effect.
OTHER_FAULTS = ("missing", "unasked", "wrong_prefetch", "one_way")


@dataclass(frozen=True)
class PlanVerdict:
    """The result of verifying a plan in the compiled graph."""

    matches_policy: bool | None  # None if the plan could not be verified
    text: str  # one line for the terminal
    plan: StepPlan | None = None  # the reduced plan, if that was verified instead

    @property
    def is_refused(self) -> bool:
        """Return whether the compiled graph differs from the plan."""
        return self.matches_policy is False


def verify_plan(plan: StepPlan, use_cache: bool = True, limit_s: float = VERIFY_LIMIT_S) -> PlanVerdict:
    """Compile the network under a plan and compare the graph with the policy.

    A swap can be without effect between layers with different settings, which the simulation of a single layer does
    not show. Such entries are removed, and the reduced plan is verified if it still fits.

    Args:
        plan: a plan that fits.
        use_cache: whether to read and write the cache of compiled graphs.
        limit_s: time limit of the compile; the result is unknown after that.
    """
    path = plan.step.path
    if is_2x(plan.step.document):
        return PlanVerdict(None, "")  # a dry run of the trainer has followed it, or the command says that there is none
    if path is None or is_trace_path(str(path)):
        return PlanVerdict(None, "not verified: there is no network to compile")
    verdict, ineffective = _verify_in_subprocess(plan, path, use_cache, limit_s)
    reduced = plan.without_swaps(ineffective) if ineffective else None
    if reduced is None:
        return verdict
    second, _ = _verify_in_subprocess(reduced, path, use_cache, limit_s)
    if second.is_refused:
        return verdict
    layers_of: dict[str, list[int]] = {}
    for layer, patterns in ineffective.items():
        for pattern in patterns:
            layers_of.setdefault(pattern, []).append(layer)
    removed = ", ".join(f"{pattern} in {name_indices('layer', layers)}" for pattern, layers in layers_of.items())
    text = f"{second.text}; left out, as the compiler gives them no effect: swap of {removed}"
    return PlanVerdict(second.matches_policy, f"{text}; peak memory then {format_bytes(reduced.peak_bytes)}", reduced)


def _verify_in_subprocess(
    plan: StepPlan, path: Path, use_cache: bool, limit_s: float
) -> tuple[PlanVerdict, dict[int, set[str]]]:
    """Return the verdict, and per layer the patterns without effect if there is no other fault."""
    with scratch_folder("plan") as folder:
        file = folder / path.name
        plan.save(file)
        arguments = ["verify", "--brief", "--json", str(file), *([] if use_cache else ["--no-cache"])]
        try:
            with progress_reporting("verifying the plan: compiling the network under it"):
                answer = ask(arguments, limit_s)
        except LaunchError as error:
            text = f"not verified: {error}; mindswap verify takes the time that it needs"
            return PlanVerdict(None, text), {}
    if answer.data is None:
        first = answer.error.partition("\n")[0]
        if first.startswith(NOT_COMPILED):  # without the plan it did compile, when it was captured
            return PlanVerdict(False, f"{first}; without the plan it compiles\n    fix: {KEEP}"), {}
        log = next((f" ({line.strip()})" for line in answer.error.splitlines() if "full log: " in line), "")
        return PlanVerdict(None, f"not verified: {first}{log}"), {}
    if answer.data["ok"]:
        return PlanVerdict(True, "verified: the compiled graph follows the plan"), {}
    layers = answer.data["layers"]
    faults = dict.fromkeys(text for layer in layers for text in _find_ineffective_names(layer))
    if answer.data.get("optimizer_states", {"ok": True})["ok"] is False:
        faults["optimizer: {swap: True} has not the specified effect"] = None
    verdict = PlanVerdict(False, "; ".join(["the compiled graph does NOT follow the plan", *faults]))
    ineffective: dict[int, set[str]] = {}
    for layer in layers:
        if layer.get("without_effect"):
            ineffective[layer["layer"]] = {entry["entry"] for entry in layer["without_effect"]}
    has_others = any(layer.get(key) for layer in layers for key in OTHER_FAULTS)
    return verdict, {} if has_others else ineffective


def _find_ineffective_names(layer: Mapping[str, Any]) -> list[str]:
    """Format the findings of `verify --json` on a layer; that of a file without swap lacks some."""
    faults = [f"{key.replace('_', ' ')}: {name}" for key in OTHER_FAULTS for name in layer.get(key, ())]
    return faults + [f"without effect: {entry['entry']}" for entry in layer.get("without_effect", ())]
