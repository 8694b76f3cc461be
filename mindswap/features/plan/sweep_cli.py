"""`mindswap plan --sweep`: plans for many budgets as a table, as JSON and as a picture."""

import argparse

from mindswap.features.plan.report import format_sweep, sweep_to_json
from mindswap.features.plan.states import PLACES
from mindswap.features.plan.states_planner import StatesPlanner
from mindswap.features.simulate import LoadedStep
from mindswap.planner.problem import Objective
from mindswap.planner.solver.search import Progress
from mindswap.report.problems import answer_text
from mindswap.system.streams import print_data, print_text


def run_sweep(
    args: argparse.Namespace, step: LoadedStep, planner: StatesPlanner, objective: Objective, progress: Progress
) -> int:
    """Plan for many budgets, and print the table and write the picture. Returns the exit code, 1 if nothing fits."""
    swept = planner.sweep(objective, progress)
    plans = swept.plans
    if not args.json:
        places = [PLACES[is_on_host] for is_on_host in swept.places]
        print_text(format_sweep(plans, step.device.title, places, swept.reason))
    if args.plot:
        from mindswap.report.plots import plot_tradeoffs

        plot_tradeoffs(
            plans[0].compared,
            args.plot,
            title=f"{step.title}, step time against peak memory",
            caption=step.device.title,
            budget_bytes=step.device.usable_memory_bytes,
            curve=plans,
            bound=swept.bound(),
        )
    if args.json:
        print_data(answer_text("plan", {"plans": sweep_to_json(plans, swept.places)}, plans[0].fits))
    return 0 if plans[0].fits else 1
