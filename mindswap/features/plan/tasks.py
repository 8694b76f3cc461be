"""Tasks for `WorkerPool`: capture, lower bound and plan of one configuration."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from mindswap.config.source import given_folder, use_folder
from mindswap.errors import MindswapError
from mindswap.features.plan import StepPlanner, make_problem
from mindswap.features.plan.worker_pool import Tick
from mindswap.features.simulate import LoadedStep
from mindswap.features.step import load_step
from mindswap.planner.problem import DEFAULT_ALLOW, Allow, Plan
from mindswap.simulator.captured_step import CapturedStep
from mindswap.system.scratch import remove_kept_folders, scratch_folder
from mindswap.units import format_bytes

R = TypeVar("R")


@dataclass(frozen=True)
class StepOptions:
    """Options of loading and planning a step; most are arguments of `load_step` and `make_plan`."""

    device: str | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)
    use_cache: bool = True
    expert_skew: str | None = None
    allow: Allow = DEFAULT_ALLOW
    is_simple: bool = False
    model_folder: str | None = field(default_factory=given_folder)  # value of `--pretrained_model_dir`


class Infeasible(str):
    """The reason why no policy fits; returned in place of a lower bound."""


@dataclass(frozen=True, eq=False)
class StepTask:
    """A configuration to capture, bound or plan, with everything that the result depends on."""

    name: str  # file name
    text: str  # YAML text
    options: StepOptions
    captured: CapturedStep | None = None  # capture of an equal or similar network; None captures this one


def load_task(task: StepTask, folder: Path) -> LoadedStep:
    """Write the configuration of a task into a folder and load its step."""
    path = folder / task.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(task.text.encode("utf-8", "surrogatepass"))
    options = task.options
    with use_folder(options.model_folder):
        return load_step(
            str(path),
            options.device,
            dict(options.overrides),
            options.use_cache,
            expert_skew=options.expert_skew,
            captured=task.captured,
        )


def summarize_error(error: MindswapError) -> str:
    """Return the first line of an error, for tables."""
    return str(error).splitlines()[0]


# These return the reason as a string if there is no result.


def run_capture_task(task: StepTask, tick: Tick) -> CapturedStep | str:
    """Capture the network of a configuration."""
    return _with_step(task, lambda step: step.model.layers.source)


def run_bound_task(task: StepTask, tick: Tick) -> int | str:
    """Compute a lower bound in ns on the step time of all policies that fit."""

    def bound(step: LoadedStep) -> int | str:
        static_bytes = max(stage.total_bytes for stage in step.model.static)
        if static_bytes > make_problem(step).budget_bytes:
            return Infeasible(f"weights and optimizer alone need {format_bytes(static_bytes)}")
        bound_ns = StepPlanner(step, task.options.allow).bound_ns()
        return Infeasible("no policy fits: the lower bound of memory is larger") if bound_ns is None else bound_ns

    return _with_step(task, bound)


def run_plan_task(task: StepTask, tick: Tick) -> tuple[CapturedStep, Plan] | str:
    """Plan a configuration. Returns the captured network and the plan."""

    def planned(step: LoadedStep) -> tuple[CapturedStep, Plan]:
        step_plan = StepPlanner(step, task.options.allow).plan(progress=tick, simple=task.options.is_simple)
        return step.model.layers.source, step_plan.plan

    return _with_step(task, planned)


def _with_step(task: StepTask, compute: Callable[[LoadedStep], R | str]) -> R | str:
    """Call a function with the loaded step of a task, and turn errors into their first line."""
    try:
        with scratch_folder("step") as folder:
            return compute(load_task(task, folder))
    except MindswapError as error:
        remove_kept_folders()  # the summary does not mention the log folders
        return summarize_error(error)
