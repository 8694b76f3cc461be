"""Search a plan for MindFormers 2.x: swapped layers, recomputed layers, and one prefetch distance.

For each distance, arrangement and number of swapped layers, the minimum number of recomputed layers that fits is
searched. All candidates are simulated.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from mindswap.planner.build_plan import plan_of
from mindswap.planner.evaluate import Candidate, evaluate, evaluate_short, short_model
from mindswap.planner.lower_bound import collect_bound_inputs, min_step_ns
from mindswap.planner.problem import Compared, Plan, PlanProblem
from mindswap.planner.simple import evenly
from mindswap.planner.solver.search import Interruptible, Progress, Stop
from mindswap.policy.model import Layers, LayerSwap, Policy

# A larger distance keeps more layers in flight, which takes memory, and does not shorten the waits.
MAX_PREFETCH = 4


def plan_layers(problem: PlanProblem, progress: Progress = lambda: None) -> Plan:
    """Search the best policy of whole layers.

    Args:
        problem: problem of a `LayerSwapModel2x` with one pipeline stage.
        progress: called after each simulation; may raise `Stop`, then the best policy so far is the plan.
    """
    interruptible = Interruptible(progress)
    search = _Search(problem, len(problem.model.captured.sample.layer_map), interruptible)
    keep_ns = evaluate(problem, Policy()).step_time_ns
    bound_inputs = collect_bound_inputs(problem.model, search.short_models[-1].simulate(Policy()))
    bound_ns = min_step_ns(bound_inputs, problem.budget_bytes, problem.host_bytes_per_card, problem.allow)
    search.run(None if bound_ns is None else max(bound_ns, keep_ns))
    ranked = sorted(search.evaluated, key=search.rank)
    # The peak of the whole step may differ slightly from that of a short one.
    fitting = [policy for policy in ranked if search.fits(policy)]
    evaluated = ((policy, evaluate(problem, policy)) for policy in fitting)
    policy, evaluation = next(
        (candidate for candidate in evaluated if candidate[1].fits), (ranked[0], evaluate(problem, ranked[0]))
    )
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
    """Return a policy of whole layers; `prefetch` counts layers."""
    swap = (LayerSwap(Layers(swapped), prefetch),) if swapped else ()
    return Policy(is_swap_enabled=True, layer_swap=swap, layer_recompute=Layers(recomputed))


class _Search:
    """Simulates policies on steps of few micro-batches, each once.

    Attributes:
        evaluated: result of each simulated policy.
        short_models: models with few micro-batches.
    """

    def __init__(self, problem: PlanProblem, num_layers: int, progress: Interruptible):
        self.problem = problem
        self.num_layers = num_layers
        self.progress = progress
        self.short_models = short_model(problem.model)
        self.evaluated: dict[Policy, Candidate] = {}

    def run(self, bound_ns: int | None) -> None:
        """Evaluate the baselines and the candidates; stop when a candidate is as fast as the lower bound."""
        for policy in self._common().values():
            self._evaluate(policy)
        allow, count = self.problem.allow, self.num_layers
        with suppress(Stop):
            for prefetch in range(1, min(MAX_PREFETCH, count - 1) + 1 if allow.swap else 2):
                for arrange in ARRANGEMENTS:
                    self._along(arrange, prefetch, max(count - prefetch, 0) if allow.swap else 0)
                    if any(
                        self.fits(candidate) and self.evaluated[candidate].step_time_ns == bound_ns
                        for candidate in self.evaluated
                    ):
                        return

    def _along(self, arrange: "Arrangement", prefetch: int, max_swapped: int) -> None:
        """Increase the number of swapped layers; for each, search the minimum number of recomputed layers that fits."""
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
                return  # further swaps only cost time

    def _evaluate(self, policy: Policy) -> None:
        if policy not in self.evaluated:
            evaluation = evaluate_short(self.problem, policy, self.short_models)
            self.evaluated[policy] = Candidate.of(self.problem, policy, evaluation)

    def fits(self, policy: Policy) -> bool:
        """Return whether an evaluated policy is within the budgets."""
        return self.evaluated[policy].fits(self.problem.budget_bytes)

    def rank(self, policy: Policy) -> tuple[object, ...]:
        """Return a sort key, smaller is better: fits, then time (memory if nothing fits), then fewer changed layers."""
        is_over, first, second = self.evaluated[policy].rank(self.problem.budget_bytes)
        work = (len(policy.layer_recompute.indices or ()), sum(len(e.layers.indices or ()) for e in policy.layer_swap))
        return is_over, first, work, second

    def _common(self) -> Mapping[str, Policy]:
        """Return the allowed baseline policies by name."""
        count, allow = self.num_layers, self.problem.allow
        policies = {"keep all": layer_policy((), (), 1)}
        if allow.recompute:
            policies["full recompute"] = layer_policy((), range(count), 1)
        if allow.swap and count > 1:
            policies["swap all but the last layer"] = layer_policy(range(count - 1), (), 1)
        return policies

    def compared(self) -> tuple[Compared, ...]:
        """Return the baseline policies with their results."""
        evaluated = ((name, self.evaluated[policy], self.fits(policy)) for name, policy in self._common().items())
        return tuple(
            Compared(name, candidate.step_time_ns, candidate.peak_bytes, fits) for name, candidate, fits in evaluated
        )


# (num_layers, prefetch, num_swapped, num_recomputed) -> swapped layers, recomputed layers.
Arrangement = Callable[[int, int, int, int], tuple[Sequence[int], Sequence[int]]]


def _in_front(
    num_layers: int, prefetch: int, num_swapped: int, num_recomputed: int
) -> tuple[Sequence[int], Sequence[int]]:
    """Swap the first layers, recompute the following ones."""
    return range(num_swapped), range(num_swapped, num_swapped + num_recomputed)


def _spread(
    num_layers: int, prefetch: int, num_swapped: int, num_recomputed: int
) -> tuple[Sequence[int], Sequence[int]]:
    """Swap layers at even distances, so that their copies overlap the layers between them."""
    swapped = evenly(range(num_layers - prefetch), num_swapped)
    remaining = [layer for layer in range(num_layers) if layer not in set(swapped)]
    return swapped, evenly(remaining, num_recomputed)


ARRANGEMENTS: tuple[Arrangement, ...] = (_in_front, _spread)
