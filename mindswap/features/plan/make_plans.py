"""Plans of the command line with their dry runs: of graph mode if asked for, of MindFormers 2.x wherever possible."""

import argparse
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from mindswap.command_line.options import device_overrides
from mindswap.command_line.progress import PhaseLines, SearchBar
from mindswap.config.nodes import Document
from mindswap.features.dryrun import has_mindformers_2x
from mindswap.features.plan.budget import find_budget
from mindswap.features.plan.dry_runs import DryRunPlan, plan_with_dry_runs
from mindswap.features.plan.states_planner import StatesPlanner
from mindswap.features.plan.step_plan import StepPlan
from mindswap.features.plan.step_planner import StepPlanner
from mindswap.features.plan.trainer_plans import MakePlan, TrainerAttempt, plan_with_changes
from mindswap.features.simulate import LoadedStep
from mindswap.features.step import load_step
from mindswap.features.step_2x import is_2x, with_cards
from mindswap.planner.problem import Objective


class MadePlans(NamedTuple):
    """Plans with their dry runs."""

    attempts: tuple[DryRunPlan, ...]  # of graph mode
    trained: tuple[TrainerAttempt, ...]  # of MindFormers 2.x
    step_plan: StepPlan  # the last one


def make_plans(
    args: argparse.Namespace, step: LoadedStep, planner: StatesPlanner, objective: Objective, bar: SearchBar
) -> MadePlans:
    """Plan, and dry run the plan: with `--dry-run`, or if this Python has the trainer of MindFormers 2.x.

    Args:
        args: options of the command.
        step: the step of the file.
        planner: planner of the step.
        objective: quantity to minimize.
        bar: counts simulations.
    """
    budget_bytes = find_budget(step)[0]
    report_status = PhaseLines(time.monotonic(), sys.stderr)

    def make(budget_bytes: int | None, less_bytes: Sequence[int] = ()) -> StepPlan:
        return planner.plan(budget_bytes, objective, bar, simple=args.simple, less_bytes=less_bytes)

    def make_changed(document: Document) -> MakePlan:
        changed = load_step(with_cards(document, args.cards), args.device, device_overrides(args), not args.no_cache)
        other_planner = StepPlanner(changed, planner.allow)
        return lambda budget_bytes, less_bytes: other_planner.plan(budget_bytes, objective, bar, less_bytes=less_bytes)

    if args.dry_run:
        attempts = plan_with_dry_runs(budget_bytes, make, report_status)
        return MadePlans(attempts, (), attempts[-1].plan.within(budget_bytes))
    if is_2x(step.document) and not args.no_verify and has_mindformers_2x():
        trained = plan_with_changes(step, budget_bytes, make, make_changed, report_status, planner.may_swap, args.cards)
        return MadePlans((), trained, trained[-1].plan.within(budget_bytes))
    return MadePlans((), (), make(None))
