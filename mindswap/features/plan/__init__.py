"""Plans for a step: asked for, printed, written into the configuration and read back."""

import functools
import os
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from mindswap.config.nodes import Document
from mindswap.config.parse import parse_document
from mindswap.config.step_settings import (
    LAYERS_NOT_INLINED,
    MAX_INLINED_MICRO_BATCHES,
    pinnable_bytes,
    read_device_memory,
)
from mindswap.errors import PlanError, PolicyError, SimulationError, require
from mindswap.features.plan.pynative import is_2x, planned_text_2x, sections_2x
from mindswap.features.plan.report import format_plan
from mindswap.features.simulate import LoadedStep, Run
from mindswap.files import write_new
from mindswap.planner.evaluate import evaluate
from mindswap.planner.layer_plan import plan_layers
from mindswap.planner.pins import Pin, pinned_policy
from mindswap.planner.planning import LOSS_PERMILLE, Planner
from mindswap.planner.problem import DEFAULT_ALLOW, YOURS, Allow, Compared, Objective, Plan, PlanProblem
from mindswap.planner.solver.search import Progress
from mindswap.planner.sweep import bound_curve, sweep_budgets
from mindswap.planner.write import compact_policy, write_plan, written_policy
from mindswap.policy.cell_tree import CellNode
from mindswap.policy.equivalence import rewrite_for_swap, with_swap_enabled
from mindswap.policy.model import Layers, Policy
from mindswap.report.html import in_notebook
from mindswap.report.problems import format_problems
from mindswap.rules.checker import check_document
from mindswap.simulator.cost.budget import MemoryBudget, budget_of_device
from mindswap.simulator.cost.hardware import SET_BY_USER, with_fragments, without_fragments
from mindswap.simulator.layer_swaps import LayerSwapModel
from mindswap.simulator.step_model import StepModel
from mindswap.units import format_bytes, format_time, parse_bytes


@dataclass(frozen=True, eq=False)
class StepPlan:
    """A plan for a step; all figures are simulated. `print` shows it.

    Attributes:
        step: what it is for.
        problem: what was asked.
        plan: the answer.
        budget_source: where the budget is from, in words; "" where the user named it.
        memory: memory of a card with its margin, for simulated peaks; None for a budget without a margin.
    """

    step: LoadedStep
    problem: PlanProblem
    plan: Plan
    budget_source: str = ""
    memory: MemoryBudget | None = None

    @property
    def fits(self) -> bool:
        """True if any policy was found that fits; if not, the plan is the one that comes nearest."""
        return self.plan.fits

    @property
    def policy(self) -> Policy:
        """In layer indices."""
        return self.plan.policy

    @property
    def sections(self) -> dict[str, Any]:
        """The policy as sections of the configuration."""
        if is_2x(self.step.document):
            return sections_2x(self.policy, len(self.step.model.captured.sample.layer_map))
        no_recompute: dict[str, Any] = {"recompute_config": {"recompute": False}}  # of a disabled policy
        return no_recompute | written_policy(self.policy).to_config()

    @property
    def step_time_ns(self) -> int:
        """One step under the plan."""
        return self.plan.step_time_ns

    @property
    def peak_bytes(self) -> int:
        """Highest device memory of any pipeline stage."""
        return self.plan.peak_bytes

    @property
    def step_time_s(self) -> float:
        """The same in seconds."""
        return self.step_time_ns / 1e9

    @property
    def peak_gib(self) -> float:
        """Highest device memory in GiB."""
        return self.peak_bytes / 2**30

    def within(self, budget_bytes: int) -> "StepPlan":
        """The same plan as one for another budget, which is then written beside it."""
        return replace(self, plan=replace(self.plan, budget_bytes=budget_bytes))

    def without_swaps(self, idle: Mapping[int, Set[str]]) -> "StepPlan | None":
        """The plan without some swaps; None where an entry is none of a swap, or the plan no longer fits.

        Args:
            idle: layer -> patterns of its swaps.
        """
        entries = []
        for entry in self.policy.op_swap:
            where = entry.layers.resolve(self.step.model.captured.num_layers)
            left = tuple(layer for layer in where if entry.pattern not in idle.get(layer, ()))
            entries += [entry] if left == where else [replace(entry, layers=Layers(left))] if left else []
        if not {name for names in idle.values() for name in names} <= {entry.pattern for entry in self.policy.op_swap}:
            return None
        policy = replace(self.policy, op_swap=tuple(entries))
        judged = evaluate(self.problem, policy)
        if not judged.fits:
            return None
        changed = replace(
            self.plan,
            policy=policy,
            step_time_ns=judged.step_time_ns,
            stage_peak_bytes=judged.stage_peak_bytes,
            host_bytes=judged.host_bytes,
        )
        return replace(self, plan=changed)

    def run(self) -> Run:
        """The step under the plan."""
        simulated = evaluate(self.problem, self.policy).step
        return Run(self.step.model, self.policy, simulated, f"{self.step.title}, planned")

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write the configuration with the plan, comments and all else as they were; it is read back before.

        Args:
            path: where; may be the configuration itself, with `overwrite`.
            overwrite: replace a file that is there.

        Raises:
            PlanError: nothing fits, or what is read back is another policy.
            DataError: it cannot be written, or already exists.
        """
        if not self.fits:
            raise PlanError(f"nothing fits, so there is no plan to write to {path}\n    fix:     more memory")
        write_new(path, planned_text(self.step, self.plan, str(path)), overwrite=overwrite)

    def __str__(self) -> str:
        settings = self.step.model.settings
        title = self.step.device.title
        tokens = settings.num_tokens / settings.num_cards
        return format_plan(self.plan, title, tokens, self.budget_source, self.memory)

    def __repr__(self) -> str:
        verdict = "fits in" if self.fits else "does not fit in"
        figures = f"{format_time(self.step_time_ns)}, {format_bytes(self.peak_bytes)}"
        return f"<StepPlan {self.step.title}: {figures}, {verdict} {format_bytes(self.plan.budget_bytes)}, simulated>"

    def _repr_html_(self) -> str:
        return in_notebook(repr(self), str(self))


def make_plan(
    step: LoadedStep,
    memory: str | int | None = None,
    allow: Allow = DEFAULT_ALLOW,
    objective: Objective = Objective.TIME,
    progress: Progress = lambda: None,
    *,
    simple: bool = False,
    pins: Sequence[Pin] = (),
) -> StepPlan:
    """The plan for one budget.

    Args:
        step: what to plan for.
        memory: of each card, `"40GiB"` or bytes; default is what may be used of the device.
        allow: what the plan may do.
        objective: what shall be least.
        progress: called after each simulation; may raise `Stop`, and the best so far is the plan.
        simple: a plan of at most 4 entries: whole layers or the cells of attention and feed-forward, one distance. Not
            for MindFormers 2.x, whose plans have no more.
        pins: what is decided already, in every layer; `planner.pins.read_pin` reads them.

    Raises:
        PlanError: if the memory cannot be read, or a pin has no effect or contradicts another one.
    """
    own, step, allow = step, step.with_swap(), restrict_to_compilable(step, allow)
    if pins:
        step = _pinned(step, tuple(pins), allow)
        allow = replace(allow, pinned=tuple(pin.pattern for pin in pins))
    problem = make_problem(step, memory, allow, objective)
    budget_bytes, source = find_budget(step, memory)
    if isinstance(step.model, LayerSwapModel):
        plan = plan_layers(problem, progress)
    else:
        planner = _planner(step.model, allow, step.known_layers)
        plan = compact(step, planner.plan(problem, progress))
        if simple:
            plan = compact(step, planner.plan_simple(problem, plan, progress))
    plan = replace(plan, compared=(*evaluate_file_policy(problem, own), *plan.compared))
    device = step.device
    if device.leaves_fragments:
        lost = (
            f"fragments of the pool, which maps no pages, counted as {device.fragments_permille / 10:g} % of the peak"
        )
        source = f"{source}; {lost}" if source else lost
    plan = replace(
        plan,
        budget_bytes=budget_bytes,
        smallest_budget_bytes=with_fragments(device, plan.smallest_budget_bytes),
        least_budget_bytes=with_fragments(device, plan.least_budget_bytes),
    )
    return StepPlan(step, problem, plan, source, usable_budget(step, memory))


@functools.lru_cache(maxsize=1)
def _pinned(step: LoadedStep, pins: tuple[Pin, ...], allow: Allow) -> LoadedStep:
    """The step with what is decided already; made once, as its model keeps what it found."""
    fixed = pinned_policy(pins, step.model, allow, step.known_layers)
    return replace(step, model=step.model.remade(fixed=fixed))


@functools.lru_cache(maxsize=1)  # a plan is never slower than one that was made before for less memory
def _planner(model: StepModel, allow: Allow, known: tuple[CellNode, ...] | None) -> Planner:
    return Planner(model, allow, known)


def find_lower_bound_ns(step: LoadedStep, allow: Allow = DEFAULT_ALLOW) -> int | None:
    """Step time that no policy within the budget can beat, found without a search; None if none can be within it."""
    step, allow = step.with_swap(), restrict_to_compilable(step, allow)
    return _planner(step.model, allow, step.known_layers).bound_ns(make_problem(step, None, allow))


def restrict_to_compilable(step: LoadedStep, allow: Allow) -> Allow:
    """The means that MindSpore compiles: nothing is swapped where it does not inline the layers.

    Raises:
        PlanError: if nothing but swap may be used.
    """
    if not allow.swap or is_2x(step.document) or step.model.settings.inlines_layers:
        return allow
    if not allow.recompute:
        raise PlanError(
            f"--allow swap: {LAYERS_NOT_INLINED}\n    allowed: micro_batch_num up to {MAX_INLINED_MICRO_BATCHES}\n"
            "    fix:     --allow recompute, or fewer micro-batches of more samples"
        )
    return replace(allow, swap=False)


@dataclass(frozen=True, eq=False)
class Sweep:
    """Plans for many budgets, from all that is kept to the least."""

    planner: Planner
    problem: PlanProblem
    plans: tuple[Plan, ...]

    def bound(self) -> list[tuple[int, int]]:
        """Bytes of device memory, and the time in ns below which no policy was found to be possible."""
        return list(bound_curve(self.planner, self.problem, list(self.plans)))


def sweep(
    step: LoadedStep,
    allow: Allow = DEFAULT_ALLOW,
    objective: Objective = Objective.TIME,
    progress: Progress = lambda: None,
) -> Sweep:
    """Plans for many budgets; arguments as of `make_plan`."""
    step, allow = step.with_swap(), restrict_to_compilable(step, allow)
    problem = make_problem(step, None, allow, objective)
    planner = _planner(step.model, allow, step.known_layers)
    return Sweep(planner, problem, tuple(compact(step, plan) for plan in sweep_budgets(planner, problem, progress)))


def evaluate_file_policy(problem: PlanProblem, step: LoadedStep) -> tuple[Compared, ...]:
    """The step under the policy that the configuration has; nothing where there is none, or it cannot be simulated."""
    if step.path is None or isinstance(step.model, LayerSwapModel):
        return ()
    try:
        judged = evaluate(replace(problem, model=step.model), step.policy)
    except SimulationError:  # `simulate` says why; a plan replaces it in any case
        return ()
    return (Compared(YOURS, judged.step_time_ns, judged.peak_bytes, judged.fits),)


def make_problem(
    step: LoadedStep,
    memory: str | int | None = None,
    allow: Allow = DEFAULT_ALLOW,
    objective: Objective = Objective.TIME,
) -> PlanProblem:
    """The problem that a planner is given; arguments as of `make_plan`."""
    device = step.device
    return PlanProblem(
        step.model,
        without_fragments(device, find_budget(step, memory)[0]),
        pinnable_bytes(device.host_memory_bytes),
        device.num_cards_per_node,
        allow,
        objective,
        step.policy,
    )


def find_budget(step: LoadedStep, memory: str | int | None = None) -> tuple[int, str]:
    """Memory of each card for a plan, and where the figure is from, in words; "" where the user named it.

    A budget that is named is taken as it is. What the device or the configuration lets MindSpore take is not filled to
    the last byte: a margin stays, for what is not simulated.

    Raises:
        PlanError: if the memory cannot be read.
    """
    device = step.device
    try:
        named_bytes = parse_bytes(memory) if isinstance(memory, str) else memory
    except ValueError as error:
        raise PlanError(f"memory: {error}") from None
    if named_bytes is not None:
        require("memory", named_bytes, int)
        if named_bytes < 1:
            raise PlanError(f"memory: {named_bytes} bytes\n    allowed: 1 or more")
        if named_bytes > device.memory_bytes:
            whole = format_bytes(device.memory_bytes)
            raise PlanError(
                f"memory: {format_bytes(named_bytes)} is more than the {whole} of the device\n"
                f"    allowed: up to {whole}\n    fix:     a smaller budget, or another device"
            )
        return named_bytes, ""
    budget = budget_of_device(device)
    is_named = device.sources["usable_memory"] == SET_BY_USER
    if is_named and device.sources["margin"] != SET_BY_USER:
        return budget.planned_bytes, ""
    stated = read_device_memory(step.document)
    source = "--memory" if is_named else f"device {device.name}"
    if stated is not None and device.sources["usable_memory"] == stated.source:
        source = stated.source
    margin = f"less a margin of {budget.margin_permille / 10:g} %; --margin 0 for none"
    text = f"{format_bytes(budget.usable_bytes)} ({source}), {margin if budget.margin_permille else 'no margin'}"
    return budget.planned_bytes, text


def usable_budget(step: LoadedStep, memory: str | int | None = None) -> MemoryBudget:
    """Memory that simulated peaks are compared with; arguments as of `find_budget`."""
    budget = budget_of_device(step.device) if memory is None else MemoryBudget(find_budget(step, memory)[0])
    return budget.without_fragments(step.device)


def objective_warning(plan: Plan, objective: Objective) -> str:
    """Reason for which a plan for least memory costs more than it may; "" if it does not."""
    if objective is not Objective.MEMORY or not plan.fits or plan.slowdown <= LOSS_PERMILLE / 1000:
        return ""
    return (
        f"--objective memory costs at most {LOSS_PERMILLE / 10:g} % over keeping every activation, where that is "
        f"possible; no plan found for {format_bytes(plan.budget_bytes)} does, so this is the fastest"
    )


def budget_warning(step: LoadedStep, budget_bytes: int) -> str:
    """Reason for which a training under the plan would run out of memory although it fits; "" if none is known."""
    limit = read_device_memory(step.document)
    if limit is None or limit.size_bytes >= budget_bytes:
        return ""
    return f"{limit.source}, is {format_bytes(limit.size_bytes)}, less than the budget: raise it, or plan for less"


def require_writable(document: Document) -> None:
    """Refuse a configuration that would have errors with any plan in it, before the plan is made.

    Raises:
        PolicyError: with every error, at its place in the user's file.
    """
    if is_2x(document):
        return  # was checked before its step was made
    errors = check_document(document).errors or check_document(with_swap_enabled(document)).errors
    if errors:
        raise PolicyError(errors)


def compact(step: LoadedStep, plan: Plan) -> Plan:
    """The plan in as few entries as it takes."""
    return replace(plan, policy=compact_policy(plan.policy, step.model.captured.trees))


def planned_text(step: LoadedStep, plan: Plan, target: str) -> str:
    """The configuration of a step with a plan that `compact` has seen, after it has been read back.

    Without a file, the text is that of the policy alone; bytes that are no UTF-8 are surrogates. `target` is what
    messages call it.

    Raises:
        PlanError: what is read back is another policy, or has errors.
    """
    if is_2x(step.document):
        return planned_text_2x(step, plan, target)
    text, policy = step.config_text(), written_policy(plan.policy)
    if policy.is_swap_enabled:
        own = parse_document(text, step.document.file)
        text = rewrite_for_swap(text, own, step.document)
    text = write_plan(text, step.document, plan, step.model.captured.num_layers, step.device.title)
    num_layers = step.model.captured.num_layers if step.path is None else None
    checked = check_document(parse_document(text, target), num_layers)
    if checked.policy != policy:  # None with errors
        raise PlanError(f"the plan cannot be written to {target}\n{format_problems(checked.errors)}")
    return text
