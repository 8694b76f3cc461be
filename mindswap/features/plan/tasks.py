"""Questions about a configuration as tasks that may run anywhere: its network, its bound, its plan."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from mindswap.config.source import given_folder, use_folder
from mindswap.errors import MindswapError
from mindswap.features.plan import find_lower_bound_ns, make_plan, make_problem
from mindswap.features.plan.spread import Tick
from mindswap.features.simulate import LoadedStep
from mindswap.features.step import load_step
from mindswap.planner.problem import DEFAULT_ALLOW, Allow, Plan
from mindswap.simulator.captured_step import CapturedStep
from mindswap.system.scratch import remove_kept_folders, scratch_folder
from mindswap.units import format_bytes

R = TypeVar("R")


@dataclass(frozen=True)
class StepOptions:
    """How each step is loaded and planned; most fields are arguments of `load_step` and `make_plan`."""

    device: str | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)
    use_cache: bool = True
    expert_skew: str | None = None
    allow: Allow = DEFAULT_ALLOW
    is_simple: bool = False
    model_folder: str | None = field(default_factory=given_folder)  # of `--pretrained_model_dir`


class Infeasible(str):
    """Why nothing fits."""


@dataclass(frozen=True, eq=False)
class StepTask:
    """A configuration to capture, to bound or to plan: all that the answer follows from."""

    name: str  # of its file
    text: str
    options: StepOptions
    captured: CapturedStep | None = None  # of a configuration with the same network, or one like it


def load_task(task: StepTask, folder: Path) -> LoadedStep:
    """The step of a task, its configuration in a folder."""
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
    """The first line of an error, for a table."""
    return str(error).splitlines()[0]


# Each gives why there is no answer in its place.


def run_capture_task(task: StepTask, tick: Tick) -> CapturedStep | str:
    """The network of a configuration."""
    return _with_step(task, lambda step: step.model.layers.source)


def run_bound_task(task: StepTask, tick: Tick) -> int | str:
    """Step time that no policy within the budget can beat."""

    def bound(step: LoadedStep) -> int | str:
        static_bytes = max(stage.total_bytes for stage in step.model.static)
        if static_bytes > make_problem(step).budget_bytes:
            return Infeasible(f"weights and optimizer alone need {format_bytes(static_bytes)}")
        bound_ns = find_lower_bound_ns(step, task.options.allow)
        return Infeasible("no policy fits, by the bound") if bound_ns is None else bound_ns

    return _with_step(task, bound)


def run_plan_task(task: StepTask, tick: Tick) -> tuple[CapturedStep, Plan] | str:
    """The plan, and the network that it is for."""

    def planned(step: LoadedStep) -> tuple[CapturedStep, Plan]:
        found = make_plan(step, None, task.options.allow, progress=tick, simple=task.options.is_simple)
        return step.model.layers.source, found.plan

    return _with_step(task, planned)


def _with_step(task: StepTask, find: Callable[[LoadedStep], R | str]) -> R | str:
    try:
        with scratch_folder("step") as folder:
            return find(load_task(task, folder))
    except MindswapError as error:
        remove_kept_folders()  # the reason names no log
        return summarize_error(error)
