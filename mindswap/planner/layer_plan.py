"""Plans for MindFormers 2.x: which whole layers are swapped, which are recomputed, and one distance for all.

Every candidate is simulated. For each distance, arrangement and number of swapped layers as few layers are recomputed
as the budget allows.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from mindswap.planner.evaluate import Candidate, evaluate, evaluate_short, short_model
from mindswap.planner.lower_bound import collect_bound_inputs, min_step_ns
from mindswap.planner.planning import plan_of
from mindswap.planner.problem import Compared, Plan, PlanProblem
from mindswap.planner.simple import evenly
from mindswap.planner.solver.search import Interruptible, Progress, Stop
from mindswap.policy.model import Layers, LayerSwap, Policy

# More layers on the way at once take more memory, and each is waited for all the same.
MAX_PREFETCH = 4


def plan_layers(problem: PlanProblem, progress: Progress = lambda: None) -> Plan:
    """The best policy of whole layers that is found.

    Args:
        problem: of a `LayerSwapModel` with one pipeline stage.
        progress: called after each simulation; may raise `Stop`, and the best so far is the plan.
    """
    interruptible = Interruptible(progress)
    search = _Search(problem, len(problem.model.captured.sample.layer_map), interruptible)
    keep_ns = evaluate(problem, Policy()).step_time_ns
    bound_inputs = collect_bound_inputs(problem.model, search.short_models[-1].simulate(Policy()))
    bound_ns = min_step_ns(bound_inputs, problem.budget_bytes, problem.host_bytes_per_card, problem.allow)
    search.run(None if bound_ns is None else max(bound_ns, keep_ns))
    ranked = sorted(search.evaluated, key=search.rank)
    # The whole step may come out a little otherwise than a short one.
    fitting = [policy for policy in ranked if search.fits(policy)]
    whole = ((policy, evaluate(problem, policy)) for policy in fitting)
    policy, evaluation = next((one for one in whole if one[1].fits), (ranked[0], evaluate(problem, ranked[0])))
    return plan_of(
        problem,
        bound_inputs,
        keep_ns,
        policy,
        evaluation,
        compared=search.compared(),
        num_evaluations=len(search.evaluated),
        is_interrupted=interruptible.is_stopped,
    )


def layer_policy(swapped: Sequence[int], recomputed: Sequence[int], prefetch: int) -> Policy:
    """A policy of whole layers; `prefetch` counts layers."""
    swap = (LayerSwap(Layers(swapped), prefetch),) if swapped else ()
    return Policy(is_swap_enabled=True, layer_swap=swap, layer_recompute=Layers(recomputed))


class _Search:
    """Simulates policies, each once, in a step of few micro-batches.

    Attributes:
        evaluated: what was simulated.
        short_models: the short steps.
    """

    def __init__(self, problem: PlanProblem, num_layers: int, progress: Interruptible):
        self.problem = problem
        self.num_layers = num_layers
        self.progress = progress
        self.short_models = short_model(problem.model)
        self.evaluated: dict[Policy, Candidate] = {}

    def run(self, bound_ns: int | None) -> None:
        """Fills `evaluated` with the candidates, and with what everybody knows; ends where none can be faster."""
        for policy in self._common().values():
            self._evaluate(policy)
        allow, count = self.problem.allow, self.num_layers
        with suppress(Stop):
            for prefetch in range(1, min(MAX_PREFETCH, count - 1) + 1 if allow.swap else 2):
                for arrange in ARRANGEMENTS:
                    self._along(arrange, prefetch, max(count - prefetch, 0) if allow.swap else 0)
                    if any(self.fits(one) and self.evaluated[one].step_time_ns == bound_ns for one in self.evaluated):
                        return

    def _along(self, arrange: "Arrangement", prefetch: int, max_swapped: int) -> None:
        """More and more swapped layers; for each the fewest recomputed ones with which it fits."""
        num_recomputed = 0
        for num_swapped in range(max_swapped + 1):
            free = self.num_layers - num_swapped if self.problem.allow.recompute else 0
            num_recomputed = min(num_recomputed, free)

            def fits(number: int, num_swapped: int = num_swapped) -> bool:
                policy = layer_policy(*arrange(self.num_layers, prefetch, num_swapped, number), prefetch)
                self._evaluate(policy)
                self.progress()
                return self.fits(policy)

            while not fits(num_recomputed) and num_recomputed < free:
                num_recomputed += 1
            while num_recomputed and fits(num_recomputed - 1):
                num_recomputed -= 1
            if not num_recomputed and fits(0):
                return  # more swap only takes more time

    def _evaluate(self, policy: Policy) -> None:
        if policy not in self.evaluated:
            evaluation = evaluate_short(self.problem, policy, self.short_models)
            self.evaluated[policy] = Candidate.of(self.problem, policy, evaluation)

    def fits(self, policy: Policy) -> bool:
        """A known policy is within the budgets."""
        return self.evaluated[policy].fits(self.problem.budget_bytes)

    def rank(self, policy: Policy) -> tuple[object, ...]:
        """Least is best: what fits by time, then what does not by memory; of equals the one with fewer layers in it."""
        is_over, first, second = self.evaluated[policy].rank(self.problem.budget_bytes)
        work = (len(policy.layer_recompute.indices or ()), sum(len(e.layers.indices or ()) for e in policy.layer_swap))
        return is_over, first, work, second

    def _common(self) -> Mapping[str, Policy]:
        """Baseline policies that are allowed as a plan; what is kept in any case."""
        count, allow = self.num_layers, self.problem.allow
        found = {"keep all": layer_policy((), (), 1)}
        if allow.recompute:
            found["full recompute"] = layer_policy((), range(count), 1)
        if allow.swap and count > 1:
            found["swap all but the last layer"] = layer_policy(range(count - 1), (), 1)
        return found

    def compared(self) -> tuple[Compared, ...]:
        """The well-known policies."""
        found = ((name, self.evaluated[policy], self.fits(policy)) for name, policy in self._common().items())
        return tuple(Compared(name, one.step_time_ns, one.peak_bytes, fits) for name, one, fits in found)


# (layers, distance, swapped, recomputed) -> which are swapped, which are recomputed.
Arrangement = Callable[[int, int, int, int], tuple[Sequence[int], Sequence[int]]]


def _in_front(
    num_layers: int, prefetch: int, num_swapped: int, num_recomputed: int
) -> tuple[Sequence[int], Sequence[int]]:
    """The first layers are swapped, those behind them recomputed."""
    return range(num_swapped), range(num_swapped, num_swapped + num_recomputed)


def _spread(
    num_layers: int, prefetch: int, num_swapped: int, num_recomputed: int
) -> tuple[Sequence[int], Sequence[int]]:
    """Swapped layers at even distances, so that copies have the time of the layers between them."""
    swapped = evenly(range(num_layers - prefetch), num_swapped)
    others = [layer for layer in range(num_layers) if layer not in set(swapped)]
    return swapped, evenly(others, num_recomputed)


ARRANGEMENTS: tuple[Arrangement, ...] = (_in_front, _spread)
