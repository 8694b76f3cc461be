"""`mindswap plan`: search a swap and recompute policy for a step, print it and write it into the configuration."""

import os
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from mindswap.config.nodes import Document
from mindswap.config.parse import parse_document
from mindswap.config.step_settings import LAYERS_NOT_INLINED, MAX_INLINED_MICRO_BATCHES
from mindswap.errors import PlanError, PolicyError, SimulationError
from mindswap.features.plan.budget import budget_warning, find_budget, make_problem, objective_warning, usable_budget
from mindswap.features.plan.pynative import is_2x, planned_text_2x, sections_2x
from mindswap.features.plan.report import format_plan
from mindswap.features.plan.tidy import without_warnings
from mindswap.features.simulate import LoadedStep, Run
from mindswap.files import write_new
from mindswap.planner.evaluate import evaluate
from mindswap.planner.layer_plan import plan_layers
from mindswap.planner.pins import Pin, pinned_policy
from mindswap.planner.planning import Planner
from mindswap.planner.problem import DEFAULT_ALLOW, YOURS, Allow, Compared, Objective, Plan, PlanProblem
from mindswap.planner.session import PlanSession
from mindswap.planner.solver.search import Progress
from mindswap.planner.stage_counts import counted_sections, in_first_layers, only_recomputes
from mindswap.planner.sweep import bound_curve, sweep_budgets
from mindswap.planner.write import compact_policy, write_plan, written_policy
from mindswap.policy.equivalence import rewrite_for_swap, with_swap_enabled
from mindswap.policy.model import Layers, Policy
from mindswap.report.html import in_notebook
from mindswap.report.problems import format_problems
from mindswap.rules.checker import check_document
from mindswap.simulator.cost.budget import MemoryBudget
from mindswap.simulator.cost.hardware import Device, with_figures, with_fragments, without_fragments
from mindswap.simulator.layer_swap_2x import LayerSwapModel2x
from mindswap.units import ceil_div, format_bytes, format_time

__all__ = [
    "PlanInPool", "StepPlan", "StepPlanner", "Sweep", "budget_warning", "check_plan_writable", "compact",
    "evaluate_file_policy", "find_budget", "make_plan", "make_problem", "objective_warning", "plan_within_pool",
    "planned_text", "restrict_to_compilable", "usable_budget",
]  # fmt: skip

# A plan that only recomputes may be so many thousandths slower as counts of layers; plans that are tried for that.
COUNTS_PERMILLE, MAX_COUNTED = 5, 3
# Plans that are made at most until one fits with its fragments: each takes as long as a plan without them.
MOST_POOL_PLANS = 4


@dataclass(frozen=True, eq=False)
class StepPlan:
    """A plan for a step. All times and sizes are simulated. `print` shows it.

    Attributes:
        step: the planned step.
        problem: budget, objective and allowed means of the search.
        plan: the policy, with its simulated time and memory.
        budget_source: origin of the budget in words; "" if the user gave the budget.
        memory: memory budget of a card with its safety margin, compared with simulated peaks; None without a margin.
    """

    step: LoadedStep
    problem: PlanProblem
    plan: Plan
    budget_source: str = ""
    memory: MemoryBudget | None = None

    @property
    def fits(self) -> bool:
        """Return whether the plan fits the budget. If no policy fits, the plan is the one closest to the budget."""
        return self.plan.fits

    @property
    def policy(self) -> Policy:
        """The policy of the plan; layers are given by index."""
        return self.plan.policy

    @property
    def sections(self) -> dict[str, Any]:
        """The policy as sections of the configuration, by section name."""
        if is_2x(self.step.document):
            return sections_2x(self.policy, len(self.step.model.captured.sample.layer_map))
        if counted := counted_sections(self.policy, self.step.document, self.step.model.captured.num_layers):
            return counted
        no_recompute: dict[str, Any] = {"recompute_config": {"recompute": False}}  # of a disabled policy
        return no_recompute | written_policy(self.policy).to_config()

    @property
    def step_time_ns(self) -> int:
        """Simulated step time in ns."""
        return self.plan.step_time_ns

    @property
    def peak_bytes(self) -> int:
        """Simulated peak device memory in bytes, the highest of all pipeline stages."""
        return self.plan.peak_bytes

    @property
    def step_time_s(self) -> float:
        """Simulated step time in seconds."""
        return self.step_time_ns / 1e9

    @property
    def peak_gib(self) -> float:
        """Simulated peak device memory in GiB."""
        return self.peak_bytes / 2**30

    def within(self, budget_bytes: int) -> "StepPlan":
        """Return the same plan with another budget, which reports then show."""
        return replace(self, plan=replace(self.plan, budget_bytes=budget_bytes))

    def without_swaps(self, ineffective: Mapping[int, Set[str]]) -> "StepPlan | None":
        """Return the plan without some swaps, with a new simulation.

        Args:
            ineffective: layer index -> patterns of `op_swap` to remove in that layer.

        Returns:
            The smaller plan; None if it no longer fits or if a pattern is not one of `op_swap`.
        """
        entries = []
        for entry in self.policy.op_swap:
            layers = entry.layers.resolve(self.step.model.captured.num_layers)
            remaining = tuple(layer for layer in layers if entry.pattern not in ineffective.get(layer, ()))
            if remaining == layers:
                entries.append(entry)
            elif remaining:
                entries.append(replace(entry, layers=Layers(remaining)))
        removed = set().union(*ineffective.values())
        if not removed <= {entry.pattern for entry in self.policy.op_swap}:
            return None
        policy = replace(self.policy, op_swap=tuple(entries))
        evaluation = evaluate(self.problem, policy)
        if not evaluation.fits:
            return None
        changed = replace(
            self.plan,
            policy=policy,
            step_time_ns=evaluation.step_time_ns,
            stage_peak_bytes=evaluation.stage_peak_bytes,
            host_bytes=evaluation.host_bytes,
        )
        return replace(self, plan=changed)

    def run(self) -> Run:
        """Simulate the step under the plan."""
        simulated = evaluate(self.problem, self.policy).step
        return Run(self.step.model, self.policy, simulated, f"{self.step.title}, planned")

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write the configuration with the plan. Comments and all other keys stay; the text is read back first.

        Args:
            path: output file; may be the configuration itself with `overwrite`.
            overwrite: replace an existing file.

        Raises:
            PlanError: if no policy fits, or the written text is parsed as another policy.
            DataError: the file cannot be written, or already exists.
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
    """Search the policy with the shortest step time, or the least memory, within a memory budget.

    The plan depends on the arguments alone, not on what was planned before. For several plans of one step,
    `StepPlanner` saves time.

    Args:
        step: the step to plan.
        memory: budget of each card, `"40GiB"` or bytes; default is the usable memory of the device.
        allow: means that the plan may use: swap, recompute or both.
        objective: quantity to minimize.
        progress: called after each simulation; if it raises `Stop`, the best policy so far is the plan.
        simple: limit the plan to 6 entries: full layers, the cells of attention and feed-forward, casts of weights and
            activation functions, with one prefetch distance. No effect for MindFormers 2.x, whose plans are that
            simple anyway.
        pins: decisions of the user for all layers, read by `planner.pins.read_pin`.

    Returns:
        The plan; its `fits` is False if no policy fits the budget.

    Raises:
        PlanError: the memory cannot be parsed, a pin has no effect or contradicts another one, or `simple` with pins.

    Example:
        >>> step = mindswap.load_step("llama2_7b.yaml")
        >>> plan = make_plan(step, "40GiB")
        >>> plan.save("planned.yaml")
    """
    return StepPlanner(step, allow, pins).plan(memory, objective, progress, simple=simple)


class StepPlanner:
    """Makes plans for one step. They share its compiled layers, and no results: each is the plan of `make_plan`.

    Args:
        step: the step to plan.
        allow: means that plans may use: swap, recompute or both.
        pins: decisions of the user for all layers.

    Raises:
        PlanError: swap alone is allowed and cannot be compiled, or a pin has no effect or contradicts another one.

    Example:
        >>> planner = StepPlanner(mindswap.load_step("llama2_7b.yaml"))
        >>> plans = [planner.plan(memory) for memory in ("48GiB", "52GiB")]
    """

    def __init__(self, step: LoadedStep, allow: Allow = DEFAULT_ALLOW, pins: Sequence[Pin] = ()):
        self.file_step, self.allow = step, restrict_to_compilable(step, allow)
        self.step = step.as_compiled_with_swap()
        if pins:
            fixed = pinned_policy(pins, self.step.model, self.allow, step.nameable_trees)
            self.step = replace(self.step, model=self.step.model.with_fixed_policy(fixed))
            self.allow = replace(self.allow, pinned=tuple(pin.pattern for pin in pins))
        self._planner: Planner | None = None

    @property
    def planner(self) -> Planner:
        """Planner of the model, made when it is first needed; steps of MindFormers 2.x have none."""
        if self._planner is None:
            self._planner = Planner(self.step.model, self.allow, self.step.nameable_trees)
        return self._planner

    def plan(
        self,
        memory: str | int | None = None,
        objective: Objective = Objective.TIME,
        progress: Progress = lambda: None,
        *,
        simple: bool = False,
    ) -> StepPlan:
        """Search a plan within a memory budget. Arguments, result and errors as of `make_plan`."""
        if simple and self.allow.pinned:
            raise PlanError("simple: its entries are whole cells, without pins\n    fix:     leave one of the two out")
        step = self.step
        problem = make_problem(step, memory, self.allow, objective)
        budget_bytes, source = find_budget(step, memory)
        search = self._search_of(problem, progress, simple)
        plan, device = search(problem), step.device
        if device.leaves_fragments and not isinstance(step.model, LayerSwapModel2x):
            problem, plan, device = plan_within_pool(step, problem, plan, budget_bytes, search)
        if device.leaves_fragments:
            fragments = f"fragments of the pool, which maps no pages: {device.fragments_permille / 10:g} % of the peak"
            source = f"{source}; {fragments}" if source else fragments
        if not isinstance(step.model, LayerSwapModel2x):
            plan = compact(step, without_warnings(step, problem, plan))
            plan = self._in_first_layers(problem, plan, search)
        plan = replace(
            plan,
            compared=(*evaluate_file_policy(problem, self.file_step), *plan.compared),
            budget_bytes=budget_bytes,
            smallest_budget_bytes=with_fragments(device, plan.smallest_budget_bytes),
            least_budget_bytes=with_fragments(device, plan.least_budget_bytes),
        )
        return StepPlan(step, problem, plan, source, usable_budget(step, memory).without_fragments(device))

    def _in_first_layers(
        self, problem: PlanProblem, plan: Plan, search: Callable[[PlanProblem], Plan], budget_bytes: int = 0
    ) -> Plan:
        """Return a plan that only recomputes in the first layers of each stage, if that fits and is as fast.

        The peak may be higher by a tensor of a layer; then a plan for so much less memory is tried.
        """
        step, model = self.step, self.step.model
        first = None
        if plan.fits and step.path is not None and only_recomputes(plan.policy):
            first = in_first_layers(plan.policy, step.document, model.captured.num_layers)
        if first is None or counted_sections(first, step.document, model.captured.num_layers) is None:
            return plan
        tried, limit_ns = plan, plan.step_time_ns * (1000 + COUNTS_PERMILLE) // 1000
        for _ in range(MAX_COUNTED):
            first = in_first_layers(tried.policy, step.document, model.captured.num_layers)
            evaluation = evaluate(problem, first) if first is not None and only_recomputes(tried.policy) else None
            if first is None or evaluation is None or evaluation.step_time_ns > limit_ns:
                break
            if evaluation.fits:
                return replace(
                    plan,
                    policy=first,
                    step_time_ns=evaluation.step_time_ns,
                    stage_peak_bytes=evaluation.stage_peak_bytes,
                    host_bytes=evaluation.host_bytes,
                )
            excess_bytes = evaluation.peak_bytes - problem.budget_bytes
            budget_bytes = (budget_bytes or problem.budget_bytes) - excess_bytes
            tried = compact(step, search(replace(problem, budget_bytes=budget_bytes)))
        return plan

    def _search_of(self, problem: PlanProblem, progress: Progress, simple: bool) -> Callable[[PlanProblem], Plan]:
        """Return the search of one question: a function of the problem, of which the budget may change."""
        if isinstance(self.step.model, LayerSwapModel2x):
            return lambda changed: plan_layers(changed, progress)
        session = PlanSession(self.planner, problem, progress)

        def search(changed: PlanProblem) -> Plan:
            plan = compact(self.step, session.plan(changed.budget_bytes))
            return compact(self.step, self.planner.plan_simple(changed, plan, progress)) if simple else plan

        return search

    def sweep(self, objective: Objective = Objective.TIME, progress: Progress = lambda: None) -> "Sweep":
        """Plan for a range of budgets, which are solved together. Arguments as for `plan`."""
        problem = make_problem(self.step, None, self.allow, objective)
        plans = sweep_budgets(PlanSession(self.planner, problem, progress))
        return Sweep(self.planner, problem, tuple(compact(self.step, plan) for plan in plans))

    def bound_ns(self, memory: str | int | None = None) -> int | None:
        """Return a lower bound in ns on the step time of all policies that fit; None if none can fit."""
        return self.planner.bound_ns(make_problem(self.step, memory, self.allow))


class PlanInPool(NamedTuple):
    """A plan, and the device with the fragments that the allocations of the plan leave in the pool."""

    problem: PlanProblem  # with the budget less these fragments
    plan: Plan
    device: Device


def plan_within_pool(
    step: LoadedStep, problem: PlanProblem, plan: Plan, budget_bytes: int, search: Callable[[PlanProblem], Plan]
) -> PlanInPool:
    """Plan with other budgets until a plan fits with the fragments of its own replay in the memory pool.

    The planner compares peaks without fragments. The first plan assumes the fragments of the device file, each
    following one those of the plan before it; if already the first one fits, one more plan uses what it left free.

    Args:
        step: the step to plan.
        problem: input of the planner.
        plan: its first plan.
        budget_bytes: memory that the plan may take with fragments.
        search: the planner.

    Returns:
        The fastest plan that fits; the last one if none does.
    """
    fitting: list[PlanInPool] = []
    for attempt in range(MOST_POOL_PLANS):
        actual_bytes = max(step.model.actual_peaks_bytes(step.model.simulate(plan.policy)))
        permille = max(ceil_div(actual_bytes * 1000, plan.peak_bytes) - 1000, 0)
        device = with_figures(step.device, {"fragments": permille}, {"fragments": "replay of the plan"})
        # A plan above a budget that assumed more fragments than it leaves fits after all.
        is_fitting = actual_bytes <= budget_bytes and plan.host_bytes <= plan.host_budget_bytes
        problem = replace(problem, budget_bytes=without_fragments(device, budget_bytes))
        found = PlanInPool(problem, replace(plan, fits=is_fitting), device)
        if is_fitting:
            fitting.append(found)
        if (fitting and attempt) or not plan.fits:
            break
        plan = search(problem)
    return min(fitting, key=lambda each: each.plan.step_time_ns, default=found)


def restrict_to_compilable(step: LoadedStep, allow: Allow) -> Allow:
    """Return the allowed means without swap if MindSpore cannot compile swap, because it does not inline the layers.

    Raises:
        PlanError: only swap is allowed.
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
    """Plans for a range of budgets, from keeping all activations down to the least possible memory."""

    planner: Planner
    problem: PlanProblem
    plans: tuple[Plan, ...]

    def bound(self) -> list[tuple[int, int]]:
        """Return points of the lower bound: device memory in bytes, and the least possible step time in ns."""
        return list(bound_curve(self.planner, self.problem, list(self.plans)))


def evaluate_file_policy(problem: PlanProblem, step: LoadedStep) -> tuple[Compared, ...]:
    """Simulate the policy of the configuration, for comparison. Empty without one, or if it cannot be simulated."""
    if step.path is None or isinstance(step.model, LayerSwapModel2x):
        return ()
    try:
        evaluation = evaluate(replace(problem, model=step.model), step.policy)
    except SimulationError:  # `simulate` reports the reason; the plan replaces this policy in any case
        return ()
    return (Compared(YOURS, evaluation.step_time_ns, evaluation.peak_bytes, evaluation.fits),)


def check_plan_writable(document: Document) -> None:
    """Reject a configuration that has errors with any plan written into it, before the search starts.

    Raises:
        PolicyError: with every error and its location in the user's file.
    """
    if is_2x(document):
        return  # `load_step_2x` has checked it
    errors = check_document(document).errors or check_document(with_swap_enabled(document)).errors
    if errors:
        raise PolicyError(errors)


def compact(step: LoadedStep, plan: Plan) -> Plan:
    """Return the plan with its policy merged into as few entries as possible."""
    return replace(plan, policy=compact_policy(plan.policy, step.model.captured.trees))


def planned_text(step: LoadedStep, plan: Plan, target: str) -> str:
    """Return the text of the configuration with a plan, after reading it back.

    Args:
        step: the planned step; without a file, the text has the sections of the policy only.
        plan: a plan from `compact`.
        target: name of the output file for messages.

    Returns:
        The text; bytes that are not UTF-8 are surrogates.

    Raises:
        PlanError: if the written text has errors, or is parsed as another policy.
    """
    if is_2x(step.document):
        return planned_text_2x(step, plan, target)
    text, policy = step.config_text(), written_policy(plan.policy)
    counted = counted_sections(plan.policy, step.document, step.model.captured.num_layers)
    if counted is not None:
        policy = Policy(is_swap_enabled=False)  # `counted_sections` has read the counts
    if policy.is_swap_enabled:
        file_document = parse_document(text, step.document.file)
        text = rewrite_for_swap(text, file_document, step.document)
    text = write_plan(text, step.document, plan, step.model.captured.num_layers, step.device.title)
    num_layers = step.model.captured.num_layers if step.path is None else None
    checked = check_document(parse_document(text, target), num_layers)
    if checked.policy != policy:  # None with errors
        raise PlanError(f"the plan cannot be written to {target}\n{format_problems(checked.errors)}")
    return text
