"""From a problem to a plan: solve each pipeline stage, replay the whole, compare with what everybody knows."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mindswap.plan.baselines import STRATEGIES
from mindswap.plan.bound import facts_of, least_budget_bytes, least_step_ns
from mindswap.plan.coupling import without_idle_swaps
from mindswap.plan.evaluate import Evaluation, evaluate, evaluate_short, short_model
from mindswap.plan.problem import DEFAULT_ALLOW, Allow, Objective, Problem
from mindswap.plan.result import Compared, Plan, Status
from mindswap.plan.solvers import SOLVERS
from mindswap.plan.solvers.search import Progress, Stop
from mindswap.plan.step_space import Catalog, StepSpace, collect_items, to_policy
from mindswap.policy.cell_tree import CellNode
from mindswap.policy.model import NO_LAYERS, Policy
from mindswap.simulate.memory import profile_memory
from mindswap.simulate.step_model import StepModel

__all__ = ["Planner", "make_plan"]

# Rounds in which a stage that is over its budget in the whole step is solved again with less.
NUM_REPAIRS = 5
LEAST_REPAIR = 1000  # part of the budget that is taken off at least
# Swaps of what recomputed operators use have to gain more than this part of the step time.
COUPLING_PERMILLE = 5
# Part of the simulations that is spent on a plan without them, before one with them is looked for.
PROBE_PERMILLE = 400
# With the objective "memory": step time that may be lost, in thousandths, and halvings of the budget.
LOSS_PERMILLE = 10
NUM_HALVINGS = 6
# Those that need no look at the model are cheap enough to be looked at with every plan.
QUICK_STRATEGIES = (
    "keep all",
    "full recompute",
    "select recompute",
    "default SWAP, prefetch 1",
    "default SWAP, prefetch 10",
    "swap everything",
)


def make_plan(problem: Problem, solver: str = "fast", progress: Progress = lambda: None) -> Plan:
    """The best policy that is found.

    Args:
        problem: what to look for.
        solver: one of `SOLVERS`.
        progress: called after each simulation; may raise `Stop`, and the best so far is the plan.
    """
    return Planner(problem.model, problem.allow).plan(problem, solver, progress)


class Planner:
    """Makes plans for one model; what it learns of the model serves all of them.

    Args:
        model: the step.
        allow: whether plans may swap and recompute.
        known: trees of all layers in which operators must be; None takes those of the model.
    """

    def __init__(
        self,
        model: StepModel,
        allow: Allow = DEFAULT_ALLOW,
        known: Sequence[CellNode] | None = None,
    ):
        self.model = model
        self.catalog = collect_items(model, allow, known)
        self.shorts = short_model(model)
        self.facts = facts_of(model, self.shorts[-1].simulate(Policy()))

    def plan(self, problem: Problem, solver: str = "fast", progress: Progress = lambda: None) -> Plan:
        """The best policy that is found for a problem of this model."""
        progress = _Interruptible(progress)
        if problem.objective is Objective.MEMORY:
            return self._least_memory(problem, solver, progress)
        return self._plan(problem, solver, progress)

    def _plan(self, problem: Problem, solver: str, progress: "_Interruptible") -> Plan:
        policies = {
            name: _with_settings(STRATEGIES[name](self.model, problem.budget_bytes), problem.settings)
            for name in QUICK_STRATEGIES
        }
        judged = {name: evaluate_short(problem, policy, self.shorts) for name, policy in policies.items()}
        keep = judged["keep all"]
        bound_ns = self.bound_ns(problem, keep.step_time_ns)
        policy, best, num_evaluations = self._search(problem, solver, progress, keep.step_time_ns, bound_ns)
        # Those that may be better are replayed in full, as the plan was.
        for name in sorted(judged, key=lambda name: _rank(judged[name])):
            if _rank(judged[name])[:2] >= _rank(best)[:2]:
                break
            if self._is_allowed(problem.allow, policies[name]):
                replayed = evaluate(problem, policies[name])
                if _rank(replayed)[:2] < _rank(best)[:2]:
                    policy, best = policies[name], replayed
        return Plan(
            status=Status.FEASIBLE if best.fits else Status.INFEASIBLE,
            policy=policy,
            step_time_ns=best.step_time_ns,
            stage_peak_bytes=best.stage_peak_bytes,
            stage_static_bytes=tuple(static.total_bytes for static in self.model.static),
            host_bytes=best.host_bytes,
            budget_bytes=problem.budget_bytes,
            unconstrained_ns=keep.step_time_ns,
            lower_bound_ns=bound_ns,
            smallest_budget_bytes=min(problem.budget_bytes, best.peak_bytes) if best.fits else best.peak_bytes,
            least_budget_bytes=least_budget_bytes(self.facts, problem.host_bytes_per_card, problem.allow),
            host_budget_bytes=problem.host_bytes,
            holders=_holders(best),
            compared=tuple(Compared(name, one.step_time_ns, one.peak_bytes, one.fits) for name, one in judged.items()),
            num_evaluations=num_evaluations,
            uncoupled_peak_bytes=self._uncoupled_peak_bytes(problem, policy),
            is_interrupted=progress.is_stopped,
        )

    def bound_ns(self, problem: Problem, keep_ns: int) -> int | None:
        """Step time that no policy within the budget can beat; None if none can be within it.

        Args:
            problem: of this model.
            keep_ns: step time if everything is kept.
        """
        bound_ns = least_step_ns(self.facts, problem.budget_bytes, problem.host_bytes_per_card, problem.allow)
        return None if bound_ns is None else max(bound_ns, keep_ns)

    def _uncoupled_peak_bytes(self, problem: Problem, policy: Policy) -> int | None:
        """Device memory if coupling rule 2 held; None if it makes no difference."""
        uncoupled = without_idle_swaps(self.model, self.catalog.uses, policy)
        return None if uncoupled is None else evaluate_short(problem, uncoupled, self.shorts).peak_bytes

    def _search(
        self, problem: Problem, solver: str, progress: "_Interruptible", keep_ns: int, bound_ns: int | None
    ) -> tuple[Policy, Evaluation, int]:
        """The best policy by coupling rule 2, or one that breaks it where that gains much; replayed; simulations made.

        Both are replayed in full: a short step does not show copies that fall behind from one micro-batch to the next.
        """
        found: list[tuple[Policy, Evaluation]] = []
        num_evaluations = 0

        def solve(catalog: Catalog, effort_permille: int) -> None:
            nonlocal num_evaluations
            policy, more = self._solve(problem, catalog, solver, progress, effort_permille)
            found.append((policy, evaluate(problem, policy)))
            num_evaluations += more

        if not problem.allow.coupled:
            solve(self.catalog, 1000)
            return *found[0], num_evaluations
        strict_bound_ns = self.bound_ns(replace(problem, allow=replace(problem.allow, coupled=False)), keep_ns)
        good_ns = 0 if bound_ns is None else bound_ns * (1000 + COUPLING_PERMILLE) // 1000
        # No search comes all the way down to its bound.
        if bound_ns is not None and strict_bound_ns is not None and 2 * strict_bound_ns <= bound_ns + good_ns:
            solve(self.catalog, PROBE_PERMILLE)
            if progress.is_stopped or (found[0][1].fits and found[0][1].step_time_ns <= good_ns):
                return *found[0], num_evaluations
        solve(self.catalog.coupled(), 1000)
        return *min(found, key=lambda entry: self._preference(*entry)), num_evaluations

    def _preference(self, policy: Policy, judged: Evaluation) -> tuple[bool, int, int]:
        """Less is better: `_rank`, where swaps that rule 2 leaves without effect have to gain more than a little."""
        is_over, time_or_peak, other = _rank(judged)
        if judged.fits and without_idle_swaps(self.model, self.catalog.uses, policy) is not None:
            time_or_peak += time_or_peak * COUPLING_PERMILLE // 1000
        return is_over, time_or_peak, other

    def _is_allowed(self, allow: Allow, policy: Policy) -> bool:
        """Whether a plan may be the policy of a common setting, which follows coupling rule 2 in any case."""
        swaps = bool(policy.op_swap or policy.layer_swap)
        again = policy.layer_recompute != NO_LAYERS or bool(policy.select_recompute)
        if (swaps and not allow.swap) or (again and not allow.recompute):
            return False
        return without_idle_swaps(self.model, self.catalog.uses, policy) is None

    def _solve(
        self, problem: Problem, catalog: Catalog, solver: str, progress: "_Interruptible", effort_permille: int
    ) -> tuple[Policy, int]:
        """The policy of all stages together; a stage that turns out over its budget is solved again with less."""
        num_stages = self.model.layout.num_stages
        budgets = [problem.budget_bytes - static.total_bytes for static in self.model.static]
        effort = effort_permille if num_stages == 1 else effort_permille * 4 // (num_stages + 2)
        choices: list[tuple[tuple[int, ...], np.ndarray]] = [((), np.empty((0, 0)))] * num_stages
        todo = list(range(num_stages))
        has_plan = [False] * num_stages
        policy, num_evaluations = Policy(), 0
        for attempt in range(NUM_REPAIRS):
            for stage in todo:
                space = StepSpace(self.model, catalog, stage, budgets[stage], problem.host_bytes_per_card)
                # Stages are alike; the one before has more micro-batches in flight, so what fits there fits here.
                before = [choices[stage - 1][1]] if stage and has_plan[stage - 1] else []
                starts = [choice for choice in before if space.figures.has(choice)]
                search = SOLVERS[solver](space, progress, effort, starts)
                num_evaluations += search.num_evaluations
                assert search.best is not None
                choices[stage] = (tuple(space.layers), search.best)
                has_plan[stage] = search.best_score is not None and search.best_score.fits
            policy = _with_settings(to_policy(self.model, catalog, choices), problem.settings)
            judged = evaluate_short(problem, policy, self.shorts)
            over = [peak - problem.budget_bytes for peak in judged.stage_peak_bytes]
            again = [stage for stage in range(num_stages) if over[stage] > 0 and has_plan[stage]]
            if not again or not all(has_plan) or progress.is_stopped:
                break
            for stage in again:  # more each time: the search may find the same plan with a little less
                budgets[stage] -= max(over[stage], problem.budget_bytes // LEAST_REPAIR) << attempt
            todo = again
        return policy, num_evaluations

    def _least_memory(self, problem: Problem, solver: str, progress: "_Interruptible") -> Plan:
        """Halves the way between what a plan needs and what no policy can move, as long as it costs next to nothing."""
        best = self._plan(replace(problem, objective=Objective.TIME), solver, progress)
        limit_ns = best.unconstrained_ns * (1000 + LOSS_PERMILLE) // 1000
        low, high = max(best.stage_static_bytes), min(best.peak_bytes, problem.budget_bytes)
        if not best.fits or best.step_time_ns > limit_ns:
            return best
        for _ in range(NUM_HALVINGS):
            if progress.is_stopped:
                break
            middle = (low + high) // 2
            plan = self._plan(replace(problem, objective=Objective.TIME, budget_bytes=middle), solver, progress)
            if plan.fits and plan.step_time_ns <= limit_ns:
                best = replace(
                    plan,
                    budget_bytes=problem.budget_bytes,
                    lower_bound_ns=best.lower_bound_ns,
                    compared=best.compared,
                )
                high = plan.peak_bytes
            else:
                low = middle
        return replace(best, is_interrupted=progress.is_stopped)


class _Interruptible:
    """Progress that remembers that it was told to stop: every later search ends at once."""

    def __init__(self, progress: Progress):
        self.progress = progress
        self.is_stopped = False

    def __call__(self) -> None:
        if not self.is_stopped:
            try:
                self.progress()
            except Stop:
                self.is_stopped = True
        if self.is_stopped:
            raise Stop


def _rank(judged: Evaluation) -> tuple[bool, int, int]:
    """Less is better: what fits, then what is faster; where nothing fits, what needs less memory."""
    if judged.fits:
        return (False, judged.step_time_ns, judged.peak_bytes)
    return (True, judged.peak_bytes, judged.step_time_ns)


def _with_settings(policy: Policy, settings: Policy) -> Policy:
    """The policy with the switches of the configuration."""
    return replace(
        policy,
        is_swap_enabled=True,
        recompute_slice_activation=settings.recompute_slice_activation,
        mp_comm_recompute=settings.mp_comm_recompute,
        parallel_optimizer_comm_recompute=settings.parallel_optimizer_comm_recompute,
    )


def _holders(judged: Evaluation) -> tuple[tuple[str, int], ...]:
    """What fills the memory of the fullest stage at its peak, by operator; static memory as one."""
    stage = max(range(len(judged.stage_peak_bytes)), key=lambda s: judged.stage_peak_bytes[s])
    timeline = judged.step.timeline
    profile = profile_memory(timeline, stage)
    intervals, labels = timeline.program.intervals, timeline.program.labels
    sizes: dict[str, int] = {"parameters, optimizer, sums of gradients": judged.step.static[stage].total_bytes}
    for position in profile.holders:
        label = labels[intervals.label[position]]
        sizes[label] = sizes.get(label, 0) + int(intervals.size_bytes[position])
    return tuple(sorted(sizes.items(), key=lambda entry: -entry[1]))
