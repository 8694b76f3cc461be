"""How far plans are above the bound, over models, devices and budgets, and whether more memory is ever slower.

    python benchmarks/plan_sweeps.py                    # 7 models, 4 devices, 4 budgets each: half an hour
    python benchmarks/plan_sweeps.py llama2_7b          # one model
    python benchmarks/plan_sweeps.py --budgets 2        # fewer
    python benchmarks/plan_sweeps.py --seconds 300      # what can be begun in five minutes

Each plan is printed when it is made.

Everything is simulated. Budgets lie between the least that any policy needs and that of keeping everything, closer
together at the low end. CPU time is that of a planner of its own for each plan, its catalog of the model included;
the first plan of a process also compiles or loads the loops of the simulator, and does not count. Exit code 1 if a
target is missed.
"""

import argparse
import itertools
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from plan_quality import run_self

from mindswap.features.step import Step, load_step
from mindswap.planner.planning import Planner
from mindswap.planner.problem import Plan, PlanProblem

FOLDER = Path(__file__).resolve().parent / "models"
GIB = 2**30
# Model -> most CPU time of a plan.
MODELS = {
    "llama2_7b": 5,
    "llama2_13b": 10,
    "llama2_70b": 10,
    "llama2_70b_tp8": 10,
    "gpt_175b_tp2_pp4_vpp2": 10,
    "qwen2_0_5b": 5,
    "llama2_70b_pp16": 20,
}
DEVICES = ("atlas_800t_a2", "atlas_800t_a2_280t", "atlas_800t_a2_376t", "a3_die")
# Shares of the range of memory; the rest of it is kept free.
SHARES = (0.04, 0.15, 0.4, 0.75)
CLOSE_GAP, MOST_GAP = 0.01, 0.03
# So many plans are to be that close, next to the least memory aside, where the bound is farthest from what can be done.
CLOSE_SHARE, TIGHTEST = 0.9, SHARES[0]
# What a plan for more memory may be slower (`planner.budget_search.ENOUGH_PART`).
SLACK_PPM = 5000


@dataclass(frozen=True)
class Point:
    """One plan and the CPU time that it took."""

    model: str
    device: str
    share: float
    plan: Plan
    cpu_s: float


def main() -> int:
    """Print a row for each plan, what is missed, and a summary."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", help=", ".join(MODELS))
    parser.add_argument("--devices", nargs="*", default=DEVICES)
    parser.add_argument("--budgets", type=int, default=len(SHARES), help="so many of the shares, tightest first")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no model on a device after so long")
    args = parser.parse_args()
    points: list[Point] = []
    slower: list[str] = []
    pairs = [(model, device) for model in args.models or MODELS for device in args.devices]
    started_s = time.monotonic()
    print(ROW.format(*HEADER), flush=True)
    for begun, (model, device) in enumerate(pairs):
        if time.monotonic() - started_s > args.seconds:
            print(f"not begun after {args.seconds:.0f} s: {', '.join(map(' on '.join, pairs[begun:]))}")
            break
        found = []
        for point in measure(model, device, SHARES[: args.budgets]):
            found.append(point)
            print(ROW.format(*row(point)), flush=True)
        points += found
        slower += more_memory_slower(found)
    if not points:
        return 1
    missed = [*slower, *summarise(points)]
    print("Missed: " + ("\n        ".join(missed) or "nothing"))
    return 1 if missed else 0


HEADER = ("model", "device", "budget GiB", "step ms", "above all kept", "above the bound", "CPU s")
ROW = "{:<22} {:<19} {:>10} {:>13} {:>14} {:>15} {:>6}"


def measure(name: str, device: str, shares: Sequence[float]) -> Iterator[Point]:
    """Plans of a model on a device, each by a planner that knows nothing of the others."""
    capture(name)
    loaded = load_step(str(FOLDER / f"{name}.yaml"), device)
    planner = Planner(loaded.model)
    keep = planner.plan(make_problem(loaded, 2**60))
    low, high = keep.least_budget_bytes, keep.peak_bytes
    for share in shares:
        budget_bytes = low + int((high - low) * share)
        begin_s = time.process_time()
        plan = Planner(loaded.model).plan(make_problem(loaded, budget_bytes))
        yield Point(name, device, share, plan, time.process_time() - begin_s)


@cache
def capture(name: str) -> None:
    """Has the step of a model in the cache: MindFormers builds legacy and newer models in different processes only."""
    run_self("--capture", name)


def make_problem(loaded: Step, budget_bytes: int) -> PlanProblem:
    """A budget of device memory; the rest is that of the device."""
    device = loaded.device
    return PlanProblem(loaded.model, budget_bytes, device.host_memory_bytes, device.num_cards_per_node)


def row(point: Point) -> tuple[str, ...]:
    """One plan, for people."""
    plan = point.plan
    return (
        point.model,
        point.device,
        f"{plan.budget_bytes / GIB:.2f}",
        f"{plan.step_time_ns / 1e6:.1f}" if plan.fits else "nothing found",
        f"{100 * plan.slowdown:.2f} %",
        "none" if plan.gap is None else f"{100 * plan.gap:.2f} %",
        f"{point.cpu_s:.1f}",
    )


def more_memory_slower(points: Sequence[Point]) -> list[str]:
    """Plans for more memory that are slower than one for less."""
    found = []
    for less, more in itertools.pairwise(points):
        limit_ns = less.plan.step_time_ns * (1_000_000 + SLACK_PPM) // 1_000_000
        if less.plan.fits and not (more.plan.fits and more.plan.step_time_ns <= limit_ns):
            budget = f"{more.plan.budget_bytes / GIB:.2f} GiB"
            found.append(f"{more.model}, {more.device}: slower with {budget} than with less")
    return found


def num_within(gaps: Sequence[float], most: float) -> int:
    """Plans that are no farther from the bound."""
    return sum(gap <= most for gap in gaps)


def summarise(points: Sequence[Point]) -> list[str]:
    """Prints how many plans are close to the bound; what is missed."""
    gaps = [point.plan.gap if point.plan.fits and point.plan.gap is not None else 9.99 for point in points]
    tight = [gap for point, gap in zip(points, gaps, strict=True) if point.share == TIGHTEST]
    others = [gap for point, gap in zip(points, gaps, strict=True) if point.share != TIGHTEST]
    for title, own in (("next to the least memory", tight), ("with more", others)):
        close, near = num_within(own, CLOSE_GAP), num_within(own, MOST_GAP)
        print(f"{title}: {close} of {len(own)} plans within {CLOSE_GAP:.0%} of the bound, {near} within {MOST_GAP:.0%}")
    print(f"the worst {max(gaps):.1%} above it; most CPU time {max(p.cpu_s for p in points):.1f} s")
    missed = [
        f"{point.model}, {point.device}, {point.plan.budget_bytes / GIB:.2f} GiB: {gap:.1%} above the bound"
        for point, gap in zip(points, gaps, strict=True)
        if gap > MOST_GAP
    ]
    share = num_within(others, CLOSE_GAP) / max(1, len(others))
    if others and share < CLOSE_SHARE:
        missed.append(f"only {share:.0%} within {CLOSE_GAP:.0%} of the bound")
    slow = [point for point in points if point.cpu_s > MODELS[point.model]]
    return missed + [f"{p.model}, {p.device}, share {p.share}: {p.cpu_s:.1f} s of CPU" for p in slow]


if __name__ == "__main__":
    sys.exit(main())
