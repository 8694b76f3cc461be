"""`mindswap plan --batch-size`, `--micro-batches`, `--strategy`: a plan for each as a table, the best written."""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from mindswap.command_line.options import MAX_NUMBER, device_overrides, refuse_given
from mindswap.command_line.progress import PhaseLines, SearchBar
from mindswap.config.nodes import Document
from mindswap.config.pipeline_layout import Layout
from mindswap.config.source import load_document
from mindswap.config.step_settings import read_step_settings
from mindswap.errors import PlanError
from mindswap.features.plan import StepPlan, StepPlanner
from mindswap.features.plan.batches import BatchOptions, plan_batches
from mindswap.features.plan.batches_report import FileSetup, batch_to_json, describe, format_batches
from mindswap.features.plan.dry_runs import (
    DryRunPlan,
    attempts_to_json,
    format_attempts,
    plan_with_dry_runs,
    verify_plan,
)
from mindswap.features.plan.states import is_states_pin, read_states_pin
from mindswap.features.plan.strategies import file_batch, file_strategy
from mindswap.features.plan.tasks import StepOptions
from mindswap.features.plan.worker_pool import WorkerPool
from mindswap.features.step_2x import is_2x
from mindswap.planner.pins import read_pin
from mindswap.planner.problem import Allow
from mindswap.planner.strategies import AUTO
from mindswap.policy.formats.mindformers1.read import find_num_layers
from mindswap.report.problems import answer_text
from mindswap.simulator.cost.device_costs import find_costs
from mindswap.steps.recorded import is_trace_path
from mindswap.system.scratch import scratch_folder
from mindswap.system.streams import print_data, print_text


def numbers_or_auto(text: str) -> tuple[int, ...]:
    """Return the numbers of `1,2,4`, or () for `auto`. Raises argparse.ArgumentTypeError."""
    if text == AUTO:
        return ()
    try:
        numbers = tuple(int(word) for word in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or not all(1 <= number <= MAX_NUMBER for number in numbers):
        raise argparse.ArgumentTypeError(f"{text}: write auto, or numbers from 1 on such as 1,2,4")
    return numbers


def has_batch_options(args: argparse.Namespace) -> bool:
    """Return whether an option requests other batches, strategies or stages."""
    return any(given is not None for given in (args.batch_size, args.micro_batches, args.strategy, args.stages))


def reject_conflicting_options(args: argparse.Namespace) -> None:
    """Reject options that do not combine: those for a single plan, and those that need several batches.

    Raises:
        PlanError: naming the option.
    """
    if args.strategy is not None:
        refuse_given(args, "--any-global-batch", "{}: not with --strategy", "leave it out")
    elif args.cards is not None and (
        has_batch_options(args) or is_trace_path(args.config) or not is_2x(load_document(args.config))
    ):
        refuse_given(args, "--cards", "{}: the strategy stays", "--strategy auto, or leave it out")
    if not has_batch_options(args):
        refuse_given(args, "--any-global-batch", "{}: there is one batch", "--batch-size auto, or leave it out")
        refuse_given(args, "--jobs --ray", "{}: there is one plan", "--strategy auto, or leave it out")
        return
    if args.ray:
        refuse_given(args, "--jobs", "{}: --ray takes all CPUs of the cluster", "leave one out")
    fix = "leave it out, or --batch-size, --micro-batches, --strategy, --stages"
    single_batch_options = "--sweep --explain --html --plot --trace --objective=memory"
    single_batch_options += "" if all(map(is_states_pin, args.pin)) else " --pin"
    refuse_given(args, single_batch_options, "{}: is for one batch", fix)
    if args.strategy is None and args.stages and _has_one_stage(args.config):
        refuse_given(args, "--stages", "{}: there is one stage", "--strategy auto with it, or leave it out")
    if is_trace_path(args.config) or is_2x(load_document(args.config)):
        raise PlanError(
            "--batch-size, --micro-batches, --strategy, --stages: are for files of MindFormers 1.9\n"
            "    fix:     leave them out"
        )


def _has_one_stage(config: str) -> bool:
    return not is_trace_path(config) and read_step_settings(load_document(config)).pipeline.num_stages == 1


def run_batches(args: argparse.Namespace, allowed: Allow, target: str | None) -> int:
    """Plan every batch and strategy, and write the best. Returns the exit code, 1 if nothing fits."""
    document = load_document(args.config)
    states = read_states_pin(map(read_pin, args.pin))
    is_on_host = read_step_settings(document).is_state_offloaded
    file_setup = FileSetup(file_strategy(document), file_batch(document), _file_layout(document), is_on_host)
    requested = BatchOptions(
        args.batch_size or None, args.micro_batches or None, not args.any_global_batch, states=states
    )
    if args.stages is not None:
        requested = replace(requested, moves_layers=True)
        if args.batch_size is None and args.micro_batches is None:
            requested = replace(
                requested, sizes=(file_setup.batch.size,), counts=None if args.strategy else (file_setup.batch.count,)
            )
    if args.strategy is not None:
        device = find_costs([document], args.device, device_overrides(args)).device
        sizes = (file_setup.batch.size,) if args.batch_size is None else requested.sizes
        cards = args.cards or read_step_settings(document).num_cards
        requested = replace(requested, sizes=sizes, cards=cards, cards_per_node=device.num_cards_per_node)
    report_status = PhaseLines(time.monotonic(), sys.stderr)
    options = StepOptions(
        args.device, device_overrides(args), not args.no_cache, args.expert_skew, allowed, args.simple
    )
    with scratch_folder("batches") as folder, SearchBar() as bar:
        with WorkerPool(args.jobs, args.ray) as pool:
            tick = bar if pool.width == 1 else bar.raise_if_interrupted
            plans = plan_batches(
                config=args.config,
                requested=requested,
                options=options,
                folder=folder,
                pool=pool,
                report_status=report_status,
                tick=tick,
            )
        best = next((batch_plan for batch_plan in plans if batch_plan.step_plan is not None), None)
        if not args.json:
            print_text(format_batches(plans, file_setup))
        data: dict[str, object] = {}
        is_ok = best is not None and best.step_plan is not None
        if best is not None and best.step_plan is not None:
            first, budget_bytes = best.step_plan, best.step_plan.plan.budget_bytes
            planner = StepPlanner(first.step, allowed)

            def make(requested_bytes: int) -> StepPlan:
                """Plan the best candidate for less memory, until it fits on the Ascend backend."""
                if requested_bytes == budget_bytes:
                    return first
                return planner.plan(requested_bytes, progress=bar, simple=args.simple)

            attempts = plan_with_dry_runs(budget_bytes, make, report_status) if args.dry_run else ()
            line = f"written: {target}, {describe(best)}; next: mindswap dryrun {target}"
            data, _, is_ok = finish_plan(args, first, attempts, target, line)
    if args.json:
        batches: dict[str, object] = {"batches": [batch_to_json(batch_plan, file_setup) for batch_plan in plans]}
        print_data(answer_text("plan", batches | data, is_ok))
    return 0 if is_ok else 1


class FinishedPlan(NamedTuple):
    """A plan after its dry runs and verification."""

    data: dict[str, object]  # part of the JSON output about dry runs and verification
    plan: StepPlan
    is_ok: bool  # it fits, and the compiled graph follows it


def finish_plan(
    args: argparse.Namespace, step_plan: StepPlan, attempts: Sequence[DryRunPlan], target: str | None, line: str
) -> FinishedPlan:
    """Print the dry runs, verify the plan and write it.

    A plan that does not fit on the backend, or that the compiled graph does not follow, is not written.

    Args:
        args: options of the command.
        step_plan: the plan, if there were no dry runs.
        attempts: plans with their dry runs; the last batch_plan replaces `step_plan`.
        target: output file; None writes nothing.
        line: line to print after writing.
    """
    data: dict[str, object] = {"dry_runs": attempts_to_json(attempts)} if attempts else {}
    if attempts:
        step_plan = attempts[-1].plan.within(attempts[0].requested_bytes)
        if not args.json:
            print_text(f"\n{format_attempts(attempts)}")
    is_ok = step_plan.fits and all(attempt.fits for attempt in attempts[-1:])
    if is_ok and not target and not args.json:
        print_text("\nnext: -o FILE writes this plan")
    if not target or not is_ok:
        return FinishedPlan(data, step_plan, is_ok)
    is_verified = not (args.no_verify or step_plan.plan.is_interrupted)
    verdict = verify_plan(step_plan, not args.no_cache) if is_verified else None
    if verdict is not None:
        data |= {"verified": verdict.matches_policy, "verdict": verdict.text}
        step_plan, is_ok = verdict.plan or step_plan, not verdict.is_refused
        if verdict.text and not args.json:
            print_text(f"\n{verdict.text}")
    if is_ok:
        step_plan.save(target, overwrite=args.overwrite or args.in_place)
        if not args.json:
            print_text(f"\n{line}")
    return FinishedPlan(data, step_plan, is_ok)


def _file_layout(document: Document) -> Layout | None:
    pipeline, num_layers = read_step_settings(document).pipeline, find_num_layers(document)
    return pipeline.layout(num_layers) if num_layers is not None and pipeline.num_stages > 1 else None
