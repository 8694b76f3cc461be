"""What each tuned constant of the planner's search and each row of the lower bound is worth.

    python benchmarks/planner_ablation.py                           # all models, constants and rows
    python benchmarks/planner_ablation.py llama2_7b qwen2_0_5b      # some models
    python benchmarks/planner_ablation.py --only MAX_ROWS passes    # some constants and rows
    python benchmarks/planner_ablation.py --rows                    # the rows of the bound alone: seconds
    python benchmarks/planner_ablation.py llama2_7b --states-on-host --gib 39.98 40 40.05 --only _relief_bytes

One constant at a time gets the value that switches it off, and every plan is made again: how many points of the bound
is it slower. Or one row at a time is taken out of the bound: how many points is the bound lower, or the least memory of
all policies, in points of the memory between that and keeping everything. CPU time is a share of that with everything.
The steps are captures in tests/data/steps/planned, so this needs no MindSpore. Everything is simulated.
"""

import argparse
import contextlib
import gzip
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from mindswap.features.plan import StepPlanner, make_problem
from mindswap.features.plan.states import with_states
from mindswap.features.step import load_step
from mindswap.graph.capture_cache import from_plain
from mindswap.planner import catalog, session, stages
from mindswap.planner.lower_bound import BoundInputs, least_budget_bytes, min_step_ns
from mindswap.planner.solver import column_generation, distances, fast, improve, search
from mindswap.policy.model import Policy
from mindswap.steps.compiled import STEP_CLASSES

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "tests" / "data" / "steps" / "planned"
# Model -> device: those of plan_sweeps.py, and one with experts on one stage.
MODELS = {
    "llama2_7b": "atlas_800t_a2",
    "llama2_13b": "atlas_800t_a2_376t",
    "llama2_70b_tp8": "atlas_800t_a2",
    "gpt_175b_tp2_pp4_vpp2": "atlas_800t_a2",
    "qwen2_0_5b": "a3_die",
    "llama2_70b": "atlas_800t_a2_280t",
    "llama2_70b_pp16": "atlas_800t_a2",
    "qwen3_moe_ep8": "atlas_800t_a2",  # the rows for functions are worth something here alone
}
SHARES = (0.04, 0.15, 0.4)  # of the memory between the least that any policy needs and that of keeping everything
MODULES = (fast, column_generation, distances, improve, search, stages, session, catalog)
NEVER = 10**9
# Constant -> its value when it is switched off.
CONSTANTS: dict[str, Any] = {
    "FIRST_UTILIZATION": 1.0,
    "HIGHER_UTILIZATIONS": (),
    "LOWER_FRACTIONS": (),
    "MAX_WORSE": NEVER,
    "NUM_CORRECTIONS": 1,
    "CLOSE_DISTANCE": 1,
    "MAX_PIECES": 1,
    "NUM_CHANGES": NEVER,
    "MAX_CHANGES": 0,
    "MAX_TRIALS": 0,
    "ENTRY_PPM": 0,
    "NUM_REPAIRS": 0,
    "MIN_EVALUATIONS": 1,
    "ENOUGH_PART": NEVER,
    "SMALL_PERMILLE": 0,
    # steps of the search where nothing fits
    "_relief_bytes": lambda search, assignment, moves: np.zeros(len(moves), np.int64),  # so bytes by costs count
    "_retune_first": distances.retune,
}
# Row of the bound -> the inputs without it. Each of them restricts policies, so without it the bound is lower.
Relax = Callable[[BoundInputs], BoundInputs]


def _graphs(**fields: Any) -> Relax:
    return lambda inputs: replace(
        inputs, tensor_graphs=tuple(replace(graph, **fields) for graph in inputs.tensor_graphs)
    )


def _cells(**fields: Any) -> Relax:
    return lambda inputs: replace(
        inputs,
        tensor_graphs=tuple(
            replace(graph, recomputed_cells=tuple(replace(cell, **fields) for cell in graph.recomputed_cells))
            for graph in inputs.tensor_graphs
        ),
    )


def _stages(**fields: Any) -> Relax:
    return lambda inputs: replace(inputs, stages=tuple(replace(stage, **fields) for stage in inputs.stages))


ROWS: Mapping[str, Relax] = {
    "passes": lambda inputs: replace(inputs, passes=None),
    "liveness_points": _stages(liveness_points=()),
    "later_windows_ns": _stages(later_windows_ns=()),
    "idle_ns": _stages(idle_ns=0),
    "window_ns": _stages(window_ns=2**60, later_windows_ns=()),
    "unfused_extra_ns": _graphs(unfused_extra_ns=()),
    "implied_recomputes": _graphs(implied_recomputes=()),
    "recomputed_cells": _graphs(recomputed_cells=()),
    "held": _cells(held=frozenset()),
    "inputs": _cells(inputs=frozenset()),
    "tuple_members": _graphs(tuple_members=frozenset()),
    "unswappable_tensors": _graphs(unswappable_tensors=frozenset()),
    "boundary_inputs": lambda inputs: replace(
        inputs,
        tensor_graphs=tuple(
            replace(
                graph,
                reads=tuple(read for read in graph.reads if read[1] not in graph.boundary_inputs),
                boundary_inputs=frozenset(),
            )
            for graph in inputs.tensor_graphs
        ),
    ),
}


@dataclass(frozen=True)
class Case:
    """A model, and budgets in bytes."""

    name: str
    planner: StepPlanner
    budgets: tuple[int, ...]
    range_bytes: int  # between the least that any policy needs and that of keeping everything


@dataclass(frozen=True)
class Worth:
    """What something is worth: change of the gap of each plan without it, and of the CPU time of all of them."""

    name: str
    points: tuple[float, ...]
    cpu_ratio: float

    def row(self) -> tuple[str, ...]:
        """One line of the table."""
        mean = sum(self.points) / max(1, len(self.points))
        changed = sum(abs(point) > 0.1 for point in self.points)
        figures = (mean, max(self.points, default=0.0), min(self.points, default=0.0))
        return (self.name, *(f"{figure:+.2f}" for figure in figures), f"{changed}", f"{self.cpu_ratio:.2f}")


HEADER = ("without", "mean", "most", "least", "changed", "CPU")
LINE = "{:<27} {:>7} {:>7} {:>7} {:>8} {:>6}"


def main() -> int:
    """Print a line for each constant and each row."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", help=", ".join(MODELS))
    parser.add_argument("--only", nargs="*", metavar="NAME", help=f"{', '.join((*CONSTANTS, *ROWS))}")
    parser.add_argument("--devices", nargs="*", help="for every model; by default one for each, see MODELS")
    parser.add_argument("--rows", action="store_true", help="no constants")
    parser.add_argument("--gib", nargs="*", type=float, help="budgets; by default three shares of the way")
    parser.add_argument("--states-on-host", action="store_true", help="optimizer states in host memory")
    parser.add_argument("--together", action="store_true", help="switch off all constants of --only at once, too")
    args = parser.parse_args()
    names = set(args.only or (*CONSTANTS, *ROWS))
    models = args.models or MODELS
    budgets = [int(size * 2**30) for size in args.gib or ()]
    cases = [
        load_case(name, device, budgets, args.states_on_host)
        for name in models
        for device in args.devices or (MODELS[name],)
    ]
    cases = [case for case in cases if case.range_bytes > 0]
    print(f"{sum(len(case.budgets) for case in cases)} plans of {', '.join(case.name for case in cases)}")
    rows = [name for name in ROWS if name in names]
    if rows:
        print("\nRows of the bound: points that it loses\n" + LINE.format(*HEADER))
    for name in rows:
        print(LINE.format(*worth_of_row(name, cases).row()), flush=True)
    if args.rows or not names & CONSTANTS.keys():
        return 0
    gaps(cases)  # what plans share is compiled
    base, base_s = gaps(cases)
    print(
        f"\nConstants of the search: points that plans lose; with all of them {', '.join(f'{gap:.2f}' for gap in base)}"
    )
    print(LINE.format(*HEADER))
    selected = [(name,) for name in CONSTANTS if name in names]
    for group in [*selected, *([sum(selected, ())] if args.together else [])]:
        with contextlib.ExitStack() as stack:
            for name in group:
                stack.enter_context(switched_off(name))
            without, cpu_s = gaps([fresh(case) for case in cases] if "SMALL_PERMILLE" in group else cases)
        points = tuple(gap - before for gap, before in zip(without, base, strict=True))
        print(LINE.format(*Worth(", ".join(group), points, cpu_s / base_s).row()), flush=True)
        if args.gib:
            print(f"    with {', '.join(f'{gap:.2f}' for gap in without)}")
    return 0


def load_case(name: str, device: str, budgets: Sequence[int] = (), has_states_on_host: bool = False) -> Case:
    """Load a recorded model, with some budgets or those of `SHARES`; without any if no policy fits the device."""
    data = json.loads(gzip.decompress((RECORDED / f"{name}.json.gz").read_bytes()))
    captured = from_plain(data, {cls.__name__: cls for cls in STEP_CLASSES})
    step = load_step(str(ROOT / "benchmarks" / "models" / f"{name}.yaml"), device, captured=captured)
    planner = StepPlanner(with_states(step, True) if has_states_on_host else step)
    case = Case(f"{name} on {device}", planner, (), 0)
    low = least_bytes(planner.planner.bound_inputs, case)
    high = min(planner.step.simulate(Policy(is_swap_enabled=True)).peak_bytes, planner.step.device.memory_bytes)
    shares = (low + int((high - low) * share) for share in SHARES if high > low)
    return replace(case, budgets=tuple(budgets or shares), range_bytes=max(0, high - low))


def fresh(case: Case) -> Case:
    """Return the case with a planner that has compiled nothing."""
    return replace(case, planner=StepPlanner(case.planner.file_step))


def gaps(cases: Sequence[Case]) -> tuple[tuple[float, ...], float]:
    """Plan every budget of every case; return the gaps in percent of the bound, and the CPU time in seconds."""
    begin_s = time.process_time()
    plans = [case.planner.plan(budget).plan for case in cases for budget in case.budgets]
    return tuple(100 * plan.gap if plan.fits and plan.gap is not None else 999.0 for plan in plans), (
        time.process_time() - begin_s
    )


def worth_of_row(name: str, cases: Sequence[Case]) -> Worth:
    """Return what a row adds to the bound of each budget and to the least memory of each case, in percent."""
    lost, times_s = [], [0.0, 0.0]
    for case in cases:
        values = []
        for number, relax in enumerate((lambda inputs: inputs, ROWS[name])):
            inputs, begin_s = relax(case.planner.planner.bound_inputs), time.process_time()
            values.append([*(bound_ns(inputs, case, size) for size in case.budgets), least_bytes(inputs, case)])
            times_s[number] += time.process_time() - begin_s
        units = [*values[0][:-1], case.range_bytes]
        lost += [100 * (full - less) / unit for full, less, unit in zip(*values, units, strict=True)]
    return Worth(name, tuple(lost), times_s[1] / times_s[0])


def least_bytes(inputs: BoundInputs, case: Case) -> int:
    """Return a lower bound of the memory of all policies."""
    host_bytes = make_problem(case.planner.step, None, case.planner.allow).host_bytes_per_card
    return least_budget_bytes(inputs, host_bytes, case.planner.allow)


def bound_ns(inputs: BoundInputs, case: Case, budget_bytes: int) -> int:
    """Return the lower bound; 0 if no policy fits."""
    problem = make_problem(case.planner.step, budget_bytes, case.planner.allow)
    return min_step_ns(inputs, budget_bytes, problem.host_bytes_per_card, case.planner.allow) or 0


def modules_of(name: str) -> Sequence[ModuleType]:
    """Return the modules of the search that have a constant."""
    return [module for module in MODULES if hasattr(module, name)]


@contextlib.contextmanager
def switched_off(name: str) -> Iterator[None]:
    """Give a constant the value that switches it off."""
    modules = modules_of(name)
    before = [getattr(module, name) for module in modules]
    for module in modules:
        setattr(module, name, CONSTANTS[name])
    try:
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            setattr(module, name, value)


if __name__ == "__main__":
    sys.exit(main())
