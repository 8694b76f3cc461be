"""Make a plan: solve each pipeline stage, evaluate the whole step, and compare with the baselines."""

import contextlib
import functools
import gc
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from mindswap.planner.catalog import Catalog, build_catalog
from mindswap.planner.effect import is_coupled, is_fully_effective
from mindswap.planner.evaluate import Candidate, Evaluation, evaluate, evaluate_short, short_model
from mindswap.planner.lower_bound import BoundInputs, collect_bound_inputs, least_budget_bytes, min_step_ns
from mindswap.planner.plan_cache import PlanCache
from mindswap.planner.problem import DEFAULT_ALLOW, FULL, Allow, Compared, Objective, Plan, PlanProblem
from mindswap.planner.simple import MAX_ENTRIES, find_simple, num_entries
from mindswap.planner.solver.search import Interruptible, Progress
from mindswap.policy.cell_tree import CellNode
from mindswap.policy.coverage import BASELINES, KEEP_ALL, baseline_policy
from mindswap.policy.model import NO_LAYERS, Policy
from mindswap.policy.resolve import has_swaps
from mindswap.simulator.memory import profile_memory
from mindswap.simulator.step_model import StepModel
from mindswap.system.collector import collector_disabled

# With the objective "memory": accepted slowdown in thousandths, and number of bisections of the budget.
LOSS_PERMILLE = 10
NUM_HALVINGS = 6
# A baseline that is slower than the plan by this many thousandths on short steps is not replayed on the whole step: the
# difference of short and whole steps is smaller.
REPLAY_PERMILLE = 20
# Just below the maximum of glibc's dynamic mmap threshold (32 MiB).
KEPT_BYTES = (32 << 20) - (64 << 10)


class _Baselines(NamedTuple):
    """Baseline policies of a problem by name, with their evaluations."""

    policies: dict[str, Policy]
    evaluations: dict[str, Evaluation]  # on short steps
    keep: Evaluation  # keeping everything, on the whole step


class Planner:
    """Makes plans for one model; they share the catalog, the inputs of the bound and the plan caches.

    Args:
        model: step model.
        allow: means that plans may use.
        known: cell trees of all layers, in which operator names must exist; None for those of the model.
    """

    def __init__(
        self, model: StepModel, allow: Allow = DEFAULT_ALLOW, required_trees: Sequence[CellNode] | None = None
    ):
        self.model, self.allow, self.required_trees = model, allow, required_trees
        _keep_freed_memory()
        with _without_collector():
            self.short_models = short_model(model)
            self.bound_inputs = collect_bound_inputs(model, self.short_models[-1].simulate(Policy()))
        self.plan_caches: dict[Hashable, PlanCache] = {}
        self.baselines: dict[Hashable, _Baselines] = {}

    @functools.cached_property
    def catalog(self) -> Catalog:
        """Possible decisions of each layer; computed on demand, because bounds do not need it."""
        return build_catalog(self.model.with_swap(self.allow.swap), self.allow, self.required_trees)

    @functools.cached_property
    def split_incompatible(self) -> tuple[Catalog, ...]:
        """Two catalogs without combinations that MindSpore cannot compile."""
        return self.catalog.split_incompatible()

    def plan(self, problem: PlanProblem, progress: Progress = lambda: None) -> Plan:
        """Search the best policy for a problem of this model.

        Args:
            problem: budgets, permissions and objective.
            progress: called after each simulation; may raise `Stop`, then the best policy so far is the plan.
        """
        find = self._minimize_memory if problem.objective is Objective.MEMORY else self._fastest
        with _without_collector():
            return find(problem, Interruptible(progress))

    def _fastest(self, problem: PlanProblem, progress: Interruptible) -> Plan:
        policies, evaluations, keep = self._baselines(problem)
        num_before = self.num_evaluations
        best = self._search(problem, keep, progress)
        limit_ns = best.step_time_ns * (1000 + REPLAY_PERMILLE) // 1000
        replayed = [
            Candidate.of(problem, policies[name], evaluate(problem, policies[name]))
            for name, evaluation in evaluations.items()
            if evaluation.fits
            and (not best.fits(problem.budget_bytes) or evaluation.step_time_ns < limit_ns)
            and self._is_eligible(problem.allow, policies[name])
        ]
        fitting = [evaluation for evaluation in (best, *replayed) if evaluation.fits(problem.budget_bytes)]
        policy = min(fitting, key=lambda evaluation: evaluation.step_time_ns).policy if fitting else best.policy
        return plan_of(
            problem,
            self.bound_inputs,
            keep.step_time_ns,
            policy,
            evaluate(problem, policy),
            compared=tuple(
                Compared(BASELINES[name].title, evaluation.step_time_ns, evaluation.peak_bytes, evaluation.fits, name)
                for name, evaluation in evaluations.items()
            ),
            num_evaluations=self.num_evaluations - num_before,
            is_coupled=is_coupled(self.model, self.catalog.uses, policy),
            is_interrupted=progress.is_stopped,
        )

    def _baselines(self, problem: PlanProblem) -> _Baselines:
        """Evaluate the baselines on short steps, and "keep all" on the whole step; cached."""
        key = (problem.settings, problem.num_cards_per_node)
        if key not in self.baselines:
            trees, has_whole = self.model.captured.trees, not self.model.layers.reads_caches
            policies = {name: problem.with_switches(baseline_policy(name, trees)) for name in BASELINES}
            # If sequence pieces read caches of other pieces, full recompute is impossible.
            policies = {
                name: entry for name, entry in policies.items() if has_whole or entry.layer_recompute == NO_LAYERS
            }
            evaluations = {
                name: evaluate_short(problem, policy, self.short_models) for name, policy in policies.items()
            }
            self.baselines[key] = _Baselines(policies, evaluations, evaluate(problem, policies[KEEP_ALL]))
        policies, evaluations, keep = self.baselines[key]
        return _Baselines(
            policies, {name: entry.within(problem) for name, entry in evaluations.items()}, keep.within(problem)
        )

    def plan_simple(self, problem: PlanProblem, full: Plan, progress: Progress = lambda: None) -> Plan:
        """Search the best policy with at most `MAX_ENTRIES` entries.

        Args:
            problem: budgets, permissions and objective.
            full: plan without that limit, from `plan`.
            progress: called after each simulation; may raise `Stop`, then the best policy so far is the plan.
        """
        interruptible = Interruptible(progress)
        policy, evaluation, number = find_simple(problem, self.short_models, interruptible)
        if full.fits and num_entries(full.policy) <= MAX_ENTRIES:
            policy, evaluation = min(
                (policy, evaluation), (full.policy, evaluate(problem, full.policy)),
                key=lambda candidate: (not candidate[1].fits, candidate[1].step_time_ns),
            )  # fmt: skip
        combined_with = Compared(FULL, full.step_time_ns, full.peak_bytes, full.fits)
        return plan_of(
            problem,
            self.bound_inputs,
            full.unconstrained_ns,
            policy,
            evaluation,
            compared=(*full.compared, combined_with),
            num_evaluations=full.num_evaluations + number,
            is_coupled=is_coupled(self.model, self.catalog.uses, policy),
            is_interrupted=full.is_interrupted or interruptible.is_stopped,
        )

    @property
    def num_evaluations(self) -> int:
        """Number of simulations."""
        return sum(plan_cache.num_evaluations for plan_cache in self.plan_caches.values())

    def _search(self, problem: PlanProblem, keep: Evaluation, progress: Interruptible) -> Candidate:
        """Search the best plan; if MindSpore cannot compile it, search the two restricted catalogs."""
        best = self._plan_cache(problem, keep, progress, self.catalog).best(problem.budget_bytes)
        if best.assignment is None or not self.catalog.combines_incompatible(best.assignment):
            return best
        candidates = [
            self._plan_cache(problem, keep, progress, catalog).best(problem.budget_bytes)
            for catalog in self.split_incompatible
        ]
        return min(candidates, key=lambda catalog: catalog.rank(problem.budget_bytes))

    def _plan_cache(
        self, problem: PlanProblem, keep: Evaluation, progress: Interruptible, catalog: Catalog
    ) -> PlanCache:
        """Return the plan cache of equal permissions, switches and catalog."""
        key = (problem.host_bytes, problem.num_cards_per_node, problem.allow, problem.settings, catalog)
        if key not in self.plan_caches:
            self.plan_caches[key] = PlanCache(problem, self.short_models[0], self.bound_inputs, catalog, keep)
        plan_cache = self.plan_caches[key]
        plan_cache.progress = progress
        return plan_cache

    def bound_ns(self, problem: PlanProblem) -> int | None:
        """Return the lower bound of the step time within the budget of a problem; None if no policy fits."""
        return min_step_ns(self.bound_inputs, problem.budget_bytes, problem.host_bytes_per_card, problem.allow)

    def _is_eligible(self, allow: Allow, policy: Policy) -> bool:
        """Return whether a baseline policy may be the plan: all of it is allowed and has an effect."""
        swaps = has_swaps(policy)
        recomputes = policy.layer_recompute != NO_LAYERS or bool(policy.select_recompute)
        if (swaps and not allow.swap) or (recomputes and not allow.recompute):
            return False
        if allow.pinned and (swaps or recomputes):
            return False
        return is_fully_effective(self.model, policy)

    def _minimize_memory(self, problem: PlanProblem, progress: Interruptible) -> Plan:
        """Bisect the budget between static memory and a plan's peak while the slowdown is within `LOSS_PERMILLE`."""
        best = self._fastest(problem, progress)
        limit_ns = best.unconstrained_ns * (1000 + LOSS_PERMILLE) // 1000
        low, high = max(best.stage_static_bytes), min(best.peak_bytes, problem.budget_bytes)
        if not best.fits or best.step_time_ns > limit_ns:
            return best
        for _ in range(NUM_HALVINGS):
            if progress.is_stopped:
                break
            middle = (low + high) // 2
            plan = self._fastest(replace(problem, budget_bytes=middle), progress)
            if plan.fits and plan.step_time_ns <= limit_ns:
                best = replace(
                    plan, budget_bytes=problem.budget_bytes, lower_bound_ns=best.lower_bound_ns, compared=best.compared
                )
                high = plan.peak_bytes
            else:
                low = middle
        return replace(best, is_interrupted=progress.is_stopped)


def plan_of(
    problem: PlanProblem, bound_inputs: BoundInputs, keep_ns: int, policy: Policy, evaluation: Evaluation, **search: Any
) -> Plan:
    """Build a plan from a policy and its evaluation.

    Args:
        problem: problem that the policy solves.
        bound_inputs: inputs of the lower bound.
        keep_ns: step time if everything is kept.
        policy: best policy.
        evaluation: its evaluation on the whole step.
        search: further fields of `Plan`, about the search.
    """
    host_bytes, allow = problem.host_bytes_per_card, problem.allow
    fixed = problem.model.layers.fixed
    return Plan(
        fits=evaluation.fits,
        policy=policy.combined_with(fixed) if fixed is not None else policy,
        step_time_ns=evaluation.step_time_ns,
        stage_peak_bytes=evaluation.stage_peak_bytes,
        stage_static_bytes=tuple(static.total_bytes for static in problem.model.static),
        host_bytes=evaluation.host_bytes,
        budget_bytes=problem.budget_bytes,
        unconstrained_ns=keep_ns,
        lower_bound_ns=min_step_ns(bound_inputs, problem.budget_bytes, host_bytes, allow),
        smallest_budget_bytes=min(problem.budget_bytes, evaluation.peak_bytes)
        if evaluation.fits
        else evaluation.peak_bytes,
        least_budget_bytes=least_budget_bytes(bound_inputs, host_bytes, allow),
        host_budget_bytes=problem.host_bytes,
        holders=_memory_by_operator(evaluation),
        **search,
    )


def _keep_freed_memory() -> None:
    """Make glibc keep freed memory, because each simulation allocates arrays of the same sizes as the one before.

    Freeing a block raises glibc's mmap threshold to its size (mallopt(3), `M_MMAP_THRESHOLD`), so that smaller blocks
    are reused and not returned to the system, which takes a tenth of a search. The block itself is never written, so it
    takes no memory. Other allocators are not affected.
    """
    np.empty(KEPT_BYTES, np.uint8)


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Disable the garbage collector; afterwards move the new objects to the oldest generation.

    A search keeps its objects, so collections would take 7 % of its CPU time and free nothing. The price is memory: 480
    MiB in place of 250 MiB for three plans of llama2_7b. The move spares the next collection a visit of all objects.
    """
    with collector_disabled() as was_enabled:
        try:
            yield
        finally:
            if was_enabled and not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()


def _memory_by_operator(evaluation: Evaluation) -> tuple[tuple[str, int], ...]:
    """Return the memory of the stage with the highest peak, at that peak, by operator; static memory is one entry."""
    stage = max(range(len(evaluation.stage_peak_bytes)), key=lambda s: evaluation.stage_peak_bytes[s])
    timeline = evaluation.step.timeline
    profile = profile_memory(timeline, stage)
    intervals, labels = timeline.program.intervals, timeline.program.labels
    static_bytes = evaluation.step.static[stage].total_bytes
    sizes: dict[str, int] = {"weights, optimizer states, accumulated gradients": static_bytes}
    for position in profile.holders:
        label = str(labels[intervals.label[position]])
        sizes[label] = sizes.get(label, 0) + int(intervals.size_bytes[position])
    return tuple(sorted(sizes.items(), key=lambda entry: -entry[1]))
