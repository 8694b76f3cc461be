"""How far plans are above the bound, over models, devices and budgets, and whether more memory is ever slower.

    python benchmarks/plan_sweeps.py                    # 7 models, 4 devices, 4 budgets each: half an hour
    python benchmarks/plan_sweeps.py llama2_7b          # one model
    python benchmarks/plan_sweeps.py --held-out ~/mindformers           # plan_held_out.yaml: 12 files, 3 budgets each
    python benchmarks/plan_sweeps.py --held-out ~/mindformers glm4      # those whose names contain a word
    python benchmarks/plan_sweeps.py --budgets 2        # fewer
    python benchmarks/plan_sweeps.py --seconds 300      # what can be begun in five minutes

Each plan is printed when it is made.

Everything is simulated, and each plan is the one of `mindswap plan` (`StepPlanner`): the step as compiled with swap,
80 % of the host memory, budgets within the memory of the card. Budgets lie between the least that any policy needs and
that of keeping everything, or the memory of the card where that is less; closer together at the low end. CPU time is
that of a planner of its own for each plan, its catalog of the model included. Exit code 1 if a target is missed.
"""

import argparse
import itertools
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml
from plan_quality import run_self

from mindswap.features.plan import StepPlanner, make_problem
from mindswap.features.step import load_step
from mindswap.planner.lower_bound import least_budget_bytes
from mindswap.planner.problem import Plan
from mindswap.policy.model import Policy

FOLDER = Path(__file__).resolve().parent / "models"
HELD_OUT = Path(__file__).resolve().parent / "plan_held_out.yaml"
HELD_OUT_CPU_S = 45  # most CPU time of a plan of these
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
# What a plan for more memory may be slower (`planner.session.ENOUGH_PART`).
SLACK_PPM = 5000


@dataclass(frozen=True)
class Case:
    """A model on a device, and what is asked of it."""

    name: str
    path: Path  # its YAML
    device: str
    shares: tuple[float, ...]  # of the range of memory
    max_cpu_s: float  # most CPU time of a plan


@dataclass(frozen=True)
class Point:
    """One plan and the CPU time that it took."""

    model: str
    device: str
    share: float
    plan: Plan
    cpu_s: float
    max_cpu_s: float


def main() -> int:
    """Print a row for each plan, what is missed, and a summary."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", help=f"{', '.join(MODELS)}; with --held-out: parts of names")
    parser.add_argument("--held-out", type=Path, metavar="CHECKOUT", help="git repository of MindFormers")
    parser.add_argument("--devices", nargs="*", default=DEVICES)
    parser.add_argument("--budgets", type=int, default=len(SHARES), help="so many of the shares, tightest first")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no model on a device after so long")
    args = parser.parse_args()
    points: list[Point] = []
    slower: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        cases = list(held_out_cases(args, Path(folder)) if args.held_out else own_cases(args))
        started_s = time.monotonic()
        print(ROW.format(*HEADER), flush=True)
        for number, case in enumerate(cases):
            if time.monotonic() - started_s > args.seconds:
                remaining = ", ".join(f"{case.name} on {case.device}" for case in cases[number:])
                print(f"not begun after {args.seconds:.0f} s: {remaining}")
                break
            of_case = []
            for point in measure(case):
                of_case.append(point)
                print(ROW.format(*row(point)), flush=True)
            points += of_case
            slower += more_memory_slower(of_case)
    if not points:
        return 1
    missed = [*slower, *summarise(points)]
    print("Missed: " + ("\n        ".join(missed) or "nothing"))
    return 1 if missed else 0


HEADER = ("model", "device", "budget GiB", "step ms", "above all kept", "above the bound", "CPU s")
ROW = "{:<30} {:<19} {:>10} {:>13} {:>14} {:>15} {:>6}"


def own_cases(args: argparse.Namespace) -> Iterator[Case]:
    """The models of this benchmark on its devices."""
    for name in args.models or MODELS:
        for device in args.devices:
            yield Case(name, FOLDER / f"{name}.yaml", device, SHARES[: args.budgets], MODELS[name])


def held_out_cases(args: argparse.Namespace, folder: Path) -> Iterator[Case]:
    """The files of `HELD_OUT`, from a checkout of MindFormers."""
    declared = yaml.safe_load(HELD_OUT.read_text("utf-8"))
    for number, file in enumerate(declared["files"]):
        if args.models and not any(word in file for word in args.models):
            continue
        path = folder / str(number) / Path(file).name
        path.parent.mkdir()
        path.write_bytes(read_from_git(args.held_out, declared["refs"], file))
        yield Case(path.stem, path, declared["device"], tuple(declared["shares"][: args.budgets]), HELD_OUT_CPU_S)


def read_from_git(checkout: Path, refs: Sequence[str], file: str) -> bytes:
    """A file of the first of some refs that has it."""
    for ref in refs:
        shown = subprocess.run(["git", "-C", str(checkout), "show", f"{ref}:{file}"], capture_output=True)
        if not shown.returncode:
            return shown.stdout
    raise SystemExit(f"{checkout}: none of {', '.join(refs)} has {file}")


def measure(case: Case) -> Iterator[Point]:
    """Plans of a model on a device, each by a planner that knows nothing of the others."""
    capture(str(case.path))
    step = load_step(str(case.path), case.device)
    low, high = memory_range(StepPlanner(step))
    if low >= step.device.memory_bytes:
        print(f"{case.name}: no policy fits the card: {low / GIB:.1f} GiB are the least")
        return
    for share in case.shares:
        begin_s = time.process_time()
        plan = StepPlanner(step).plan(low + int((high - low) * share)).plan
        yield Point(case.name, case.device, share, plan, time.process_time() - begin_s, case.max_cpu_s)


def memory_range(planner: StepPlanner) -> tuple[int, int]:
    """Least memory that the bound allows, and that of keeping everything, or of the card where that is less."""
    host_bytes = make_problem(planner.step, None, planner.allow).host_bytes_per_card
    low = least_budget_bytes(planner.planner.bound_inputs, host_bytes, planner.allow)
    keep_bytes = planner.step.simulate(Policy(is_swap_enabled=True)).peak_bytes
    return low, min(keep_bytes, planner.step.device.memory_bytes)


@cache
def capture(path: str) -> None:
    """Has the step of a file in the cache: MindFormers builds legacy and newer models in different processes only."""
    run_self("--capture", path)


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
    messages = []
    for less, more in itertools.pairwise(points):
        limit_ns = less.plan.step_time_ns * (1_000_000 + SLACK_PPM) // 1_000_000
        if less.plan.fits and not (more.plan.fits and more.plan.step_time_ns <= limit_ns):
            budget = f"{more.plan.budget_bytes / GIB:.2f} GiB"
            messages.append(f"{more.model}, {more.device}: slower with {budget} than with less")
    return messages


def num_within(gaps: Sequence[float], max_gap: float) -> int:
    """Plans that are no farther from the bound."""
    return sum(gap <= max_gap for gap in gaps)


def summarise(points: Sequence[Point]) -> list[str]:
    """Prints how many plans are close to the bound; what is missed."""
    gaps = [point.plan.gap if point.plan.fits and point.plan.gap is not None else 9.99 for point in points]
    tight = [gap for point, gap in zip(points, gaps, strict=True) if point.share == TIGHTEST]
    loose = [gap for point, gap in zip(points, gaps, strict=True) if point.share != TIGHTEST]
    for title, group in (("next to the least memory", tight), ("with more", loose)):
        close, near = num_within(group, CLOSE_GAP), num_within(group, MOST_GAP)
        print(
            f"{title}: {close} of {len(group)} plans within {CLOSE_GAP:.0%} of the bound, {near} within {MOST_GAP:.0%}"
        )
    print(f"the worst {max(gaps):.1%} above it; most CPU time {max(p.cpu_s for p in points):.1f} s")
    missed = [
        f"{point.model}, {point.device}, {point.plan.budget_bytes / GIB:.2f} GiB: {gap:.1%} above the bound"
        for point, gap in zip(points, gaps, strict=True)
        if gap > MOST_GAP
    ]
    share = num_within(loose, CLOSE_GAP) / max(1, len(loose))
    if loose and share < CLOSE_SHARE:
        missed.append(f"only {share:.0%} within {CLOSE_GAP:.0%} of the bound")
    slow = [point for point in points if point.cpu_s > point.max_cpu_s]
    return missed + [f"{p.model}, {p.device}, share {p.share}: {p.cpu_s:.1f} s of CPU" for p in slow]


if __name__ == "__main__":
    sys.exit(main())
