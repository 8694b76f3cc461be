"""From a problem to a plan: solve each pipeline stage, replay the whole, compare with what everybody knows."""

from collections.abc import Hashable, Sequence
from dataclasses import replace

from mindswap.plan.bound import facts_of, least_budget_bytes, least_step_ns
from mindswap.plan.catalog import collect_items
from mindswap.plan.coupling import without_idle_swaps
from mindswap.plan.curve import Candidate, Curve
from mindswap.plan.evaluate import Evaluation, evaluate, evaluate_short, short_model
from mindswap.plan.problem import DEFAULT_ALLOW, Allow, Objective, PlanProblem
from mindswap.plan.result import Compared, Plan, Status
from mindswap.plan.solvers.search import Interruptible, Progress
from mindswap.policy.baselines import BASELINES, KEEP_ALL, baseline_policy
from mindswap.policy.cell_tree import CellNode
from mindswap.policy.model import NO_LAYERS, Policy
from mindswap.simulate.memory import profile_memory
from mindswap.simulate.step_model import StepModel

# With the objective "memory": step time that may be lost, in thousandths, and halvings of the budget.
LOSS_PERMILLE = 10
NUM_HALVINGS = 6
# A common setting that is so much slower in a short step is not replayed: short and whole steps differ less.
REPLAY_PERMILLE = 20


def make_plan(problem: PlanProblem, solver: str = "fast", progress: Progress = lambda: None) -> Plan:
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
        self.curves: dict[Hashable, Curve] = {}

    def plan(self, problem: PlanProblem, solver: str = "fast", progress: Progress = lambda: None) -> Plan:
        """The best policy that is found for a problem of this model."""
        asked = Interruptible(progress)
        if problem.objective is Objective.MEMORY:
            return self._least_memory(problem, solver, asked)
        return self._plan(problem, solver, asked)

    def _plan(self, problem: PlanProblem, solver: str, progress: Interruptible) -> Plan:
        policies = {
            name: _with_settings(baseline_policy(name, self.model.captured.trees), problem.settings)
            for name in BASELINES
        }
        if self.model.layers.reads_caches:  # no whole layer can run again
            policies = {name: policy for name, policy in policies.items() if policy.layer_recompute == NO_LAYERS}
        judged = {name: evaluate_short(problem, policy, self.shorts) for name, policy in policies.items()}
        keep = evaluate(problem, policies[KEEP_ALL])
        curve = self._curve(problem, solver, keep, progress)
        num_before = curve.num_evaluations
        found = curve.best(problem.budget_bytes, [Candidate.of(problem, policies[KEEP_ALL], keep)])
        limit_ns = found.step_time_ns * (1000 + REPLAY_PERMILLE) // 1000
        others = [
            Candidate.of(problem, policies[name], evaluate(problem, policies[name]))
            for name, one in judged.items()
            if one.fits
            and (not found.fits(problem.budget_bytes) or one.step_time_ns < limit_ns)
            and self._is_allowed(problem.allow, policies[name])
        ]
        fitting = [one for one in (found, *others) if one.fits(problem.budget_bytes)]
        policy = min(fitting, key=lambda one: one.step_time_ns).policy if fitting else found.policy
        best = evaluate(problem, policy)
        bound_ns = self.bound_ns(problem, keep.step_time_ns)
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
            holders=holders_of(best),
            compared=tuple(
                Compared(BASELINES[name].title, one.step_time_ns, one.peak_bytes, one.fits, name)
                for name, one in judged.items()
            ),
            num_evaluations=curve.num_evaluations - num_before,
            uncoupled_peak_bytes=self._uncoupled_peak_bytes(problem, policy),
            is_interrupted=progress.is_stopped,
        )

    def _curve(self, problem: PlanProblem, solver: str, keep: Evaluation, progress: Interruptible) -> Curve:
        """What was planned under the same rules before, to go on with."""
        key = (problem.host_bytes, problem.num_cards_per_node, problem.allow, problem.settings, solver)
        if key not in self.curves:
            self.curves[key] = Curve(
                problem, self.shorts[0], self.facts, self.catalog, keep, solver,
                lambda policy: _with_settings(policy, problem.settings),
            )  # fmt: skip
        curve = self.curves[key]
        curve.progress = progress
        return curve

    def bound_ns(self, problem: PlanProblem, keep_ns: int) -> int | None:
        """Step time that no policy within the budget can beat; None if none can be within it.

        Args:
            problem: of this model.
            keep_ns: step time if everything is kept.
        """
        bound_ns = least_step_ns(self.facts, problem.budget_bytes, problem.host_bytes_per_card, problem.allow)
        return None if bound_ns is None else max(bound_ns, keep_ns)

    def _uncoupled_peak_bytes(self, problem: PlanProblem, policy: Policy) -> int | None:
        """Device memory if coupling rule 2 held; None if it makes no difference."""
        uncoupled = without_idle_swaps(self.model, self.catalog.uses, policy)
        return None if uncoupled is None else evaluate_short(problem, uncoupled, self.shorts).peak_bytes

    def _is_allowed(self, allow: Allow, policy: Policy) -> bool:
        """Whether a plan may be the policy of a common setting, which follows coupling rule 2 in any case."""
        swaps = bool(policy.op_swap or policy.layer_swap)
        again = policy.layer_recompute != NO_LAYERS or bool(policy.select_recompute)
        if (swaps and not allow.swap) or (again and not allow.recompute):
            return False
        return without_idle_swaps(self.model, self.catalog.uses, policy) is None

    def _least_memory(self, problem: PlanProblem, solver: str, progress: Interruptible) -> Plan:
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


def _with_settings(policy: Policy, settings: Policy) -> Policy:
    """The policy with the switches of the configuration."""
    return replace(
        policy,
        is_swap_enabled=True,
        recompute_slice_activation=settings.recompute_slice_activation,
        mp_comm_recompute=settings.mp_comm_recompute,
        parallel_optimizer_comm_recompute=settings.parallel_optimizer_comm_recompute,
    )


def holders_of(judged: Evaluation) -> tuple[tuple[str, int], ...]:
    """What fills the memory of the fullest stage at its peak, by operator; static memory as one."""
    stage = max(range(len(judged.stage_peak_bytes)), key=lambda s: judged.stage_peak_bytes[s])
    timeline = judged.step.timeline
    profile = profile_memory(timeline, stage)
    intervals, labels = timeline.program.intervals, timeline.program.labels
    sizes: dict[str, int] = {"parameters, optimizer, sums of gradients": judged.step.static[stage].total_bytes}
    for position in profile.holders:
        label = str(labels[intervals.label[position]])
        sizes[label] = sizes.get(label, 0) + int(intervals.size_bytes[position])
    return tuple(sorted(sizes.items(), key=lambda entry: -entry[1]))
