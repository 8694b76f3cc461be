"""What the plans of one model share: catalog, compiled layers and inputs of the bound."""

import functools
from collections.abc import Sequence

import numpy as np

from mindswap.planner.build_plan import Bounds, plan_of
from mindswap.planner.catalog import Catalog, build_catalog
from mindswap.planner.effect import is_coupled, is_fully_effective, without_useless_copies
from mindswap.planner.evaluate import evaluate, short_model
from mindswap.planner.layer_assignments import LayerAssignments
from mindswap.planner.lower_bound import collect_bound_inputs, min_step_ns, with_pins
from mindswap.planner.problem import DEFAULT_ALLOW, FULL, Allow, Compared, Plan, PlanProblem
from mindswap.planner.session import PlanSession
from mindswap.planner.simple import MAX_ENTRIES, find_simple, num_entries
from mindswap.planner.solver.search import Interruptible, Progress
from mindswap.policy.cell_tree import CellNode
from mindswap.policy.coverage import BASELINES, baseline_policy
from mindswap.policy.model import NO_LAYERS, Policy
from mindswap.policy.resolve import has_swaps
from mindswap.simulator.step_model import StepModel
from mindswap.system.collector import without_collector

# Just below the maximum of glibc's dynamic mmap threshold (32 MiB).
KEPT_BYTES = (32 << 20) - (64 << 10)


class Planner:
    """Makes plans for one model. They share what depends on the model alone, and nothing that a search has found.

    Args:
        model: step model.
        allow: means that plans may use.
        required_trees: cell trees of all layers, in which operator names must exist; None for those of the model.
    """

    def __init__(
        self, model: StepModel, allow: Allow = DEFAULT_ALLOW, required_trees: Sequence[CellNode] | None = None
    ):
        self.model, self.allow, self.required_trees = model, allow, required_trees
        _keep_freed_memory()
        # Without pins: baselines are what `compare` shows, and the step with pins has copies and waits that further
        # decisions may shorten, so it bounds nothing. `with_pins` restricts what a layer may choose.
        self.free_model = model if model.layers.fixed is None else model.with_fixed_policy(None)
        with without_collector():
            self.short_models = short_model(model)
            self.free_short_models = self.short_models if self.free_model is model else short_model(self.free_model)
            keep = self.free_short_models[-1].simulate(Policy())
            self.bound_inputs = with_pins(collect_bound_inputs(self.free_model, keep), model, allow)
        self._layer_assignments: dict[tuple[bool, Catalog], LayerAssignments] = {}

    @functools.cached_property
    def catalog(self) -> Catalog:
        """Possible decisions of each layer; computed on demand, because bounds do not need it."""
        return build_catalog(self.model.with_swap(self.allow.swap), self.allow, self.required_trees)

    @functools.cached_property
    def split_incompatible(self) -> tuple[Catalog, ...]:
        """Two catalogs without combinations that MindSpore cannot compile."""
        return self.catalog.split_incompatible()

    def layer_assignments(self, allow: Allow, catalog: Catalog) -> LayerAssignments:
        """Return the compiled layers of a catalog of this model."""
        key = (allow.swap, catalog)
        if key not in self._layer_assignments:
            self._layer_assignments[key] = LayerAssignments(self.model.with_swap(allow.swap), catalog)
        return self._layer_assignments[key]

    def plan(self, problem: PlanProblem, progress: Progress = lambda: None) -> Plan:
        """Search the best policy for a problem of this model. The plan depends on the problem alone.

        Args:
            problem: budgets, permissions and objective.
            progress: called after each simulation; may raise `Stop`, then the best policy so far is the plan.
        """
        return PlanSession(self, problem, progress).plan(problem.budget_bytes)

    def baselines(self, problem: PlanProblem) -> dict[str, Policy]:
        """Return the baseline policies by name, without pins; no full recompute if sequence pieces read caches."""
        trees, has_whole = self.model.captured.trees, not self.model.layers.reads_caches
        policies = {name: problem.with_switches(baseline_policy(name, trees)) for name in BASELINES}
        return {name: policy for name, policy in policies.items() if has_whole or policy.layer_recompute == NO_LAYERS}

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
        combined_with = Compared(FULL, full.step_time_ns, full.peak_bytes, full.fits, policy=full.policy)
        return plan_of(
            problem,
            Bounds.of(self.bound_inputs, problem),
            full.unconstrained_ns,
            policy,
            evaluation,
            compared=(*full.compared, combined_with),
            num_evaluations=full.num_evaluations + number,
            is_coupled=is_coupled(self.model, self.catalog.uses, policy),
            is_interrupted=full.is_interrupted or interruptible.is_stopped,
        )

    def bound_ns(self, problem: PlanProblem) -> int | None:
        """Return the lower bound of the step time within the budget of a problem; None if no policy fits."""
        return min_step_ns(self.bound_inputs, problem.budget_bytes, problem.host_bytes_per_card, problem.allow)

    def is_eligible(self, allow: Allow, policy: Policy) -> bool:
        """Return whether a baseline may be the plan: it is allowed, all of it has an effect, and nothing is pinned."""
        swaps = has_swaps(policy)
        recomputes = policy.layer_recompute != NO_LAYERS or bool(policy.select_recompute)
        if (swaps and not allow.swap) or (recomputes and not allow.recompute):
            return False
        return not allow.pinned and is_fully_effective(self.model, policy)

    def eligible_form(self, allow: Allow, policy: Policy) -> Policy | None:
        """Return the form of a baseline that may be the plan, without useless copies; None if there is none."""
        forms = (policy, without_useless_copies(self.model, policy))
        return next((form for form in forms if self.is_eligible(allow, form)), None)


def _keep_freed_memory() -> None:
    """Make glibc keep freed memory, because each simulation allocates arrays of the same sizes as the one before.

    Freeing a block raises glibc's mmap threshold to its size (mallopt(3), `M_MMAP_THRESHOLD`), so that smaller blocks
    are reused and not returned to the system, which takes a tenth of a search. The block itself is never written, so it
    takes no memory. Other allocators are not affected.
    """
    np.empty(KEPT_BYTES, np.uint8)
