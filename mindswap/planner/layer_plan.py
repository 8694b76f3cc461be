"""Search a plan for MindFormers 2.x: swapped layers, recomputed layers, and one prefetch distance.

For each distance, arrangement and number of swapped layers, the minimum number of recomputed layers that fits is
searched. All candidates are simulated.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress

from mindswap.planner.build_plan import Bounds, plan_of
from mindswap.planner.evaluate import evaluate, short_model
from mindswap.planner.lower_bound import collect_bound_inputs
from mindswap.planner.policy_search import PolicySearch
from mindswap.planner.problem import Plan, PlanProblem
from mindswap.planner.simple import evenly
from mindswap.planner.solver.search import Interruptible, Progress, Stop
from mindswap.planner.traced_plan import Action, layer_baselines, policy_of_actions
from mindswap.policy.model import Policy

# A larger distance keeps more layers in flight, which takes memory, and does not shorten the waits.
MAX_PREFETCH = 4


def plan_layers(problem: PlanProblem, progress: Progress = lambda: None) -> Plan:
    """Search the best policy of whole layers.

    Args:
        problem: problem of a `LayerSwapModel2x` with one pipeline stage.
        progress: called after each simulation; may raise `Stop`, then the best policy so far is the plan.
    """
    interruptible, num_layers = Interruptible(progress), len(problem.model.captured.sample.layer_map)
    search = _Search(problem, interruptible, short_model(problem.model))
    baselines = layer_baselines(range(num_layers), problem.allow)
    for policy in baselines.values():
        search.evaluate(policy, is_interruptible=False)
    keep_ns = evaluate(problem, Policy()).step_time_ns
    bounds = Bounds.of(collect_bound_inputs(problem.model, search.short_models[-1].simulate(Policy())), problem)
    search.run(num_layers, None if bounds.step_ns is None else max(bounds.step_ns, keep_ns))
    ranked = sorted(search.evaluated, key=search.rank)
    # The peak of the whole step may differ slightly from that of a short one.
    evaluated = ((policy, evaluate(problem, policy)) for policy in ranked if search.fits(policy))
    policy, evaluation = next(
        (candidate for candidate in evaluated if candidate[1].fits), (ranked[0], evaluate(problem, ranked[0]))
    )
    return plan_of(
        problem,
        bounds,
        keep_ns,
        policy,
        evaluation,
        compared=search.compared(baselines),
        num_evaluations=len(search.evaluated),
        is_interrupted=interruptible.is_stopped,
    )


def layer_policy(swapped: Sequence[int], recomputed: Sequence[int], prefetch: int) -> Policy:
    """Return a policy of whole layers; `prefetch` counts layers."""
    return policy_of_actions({Action(True, prefetch=prefetch): swapped, Action(False): recomputed})


class _Search(PolicySearch):
    """Searches the layers to swap and to recompute."""

    def run(self, num_layers: int, bound_ns: int | None) -> None:
        """Evaluate the candidates; stop when one is as fast as the lower bound."""
        allow, evaluated = self.problem.allow, self.evaluated
        with suppress(Stop):
            for prefetch in range(1, min(MAX_PREFETCH, num_layers - 1) + 1 if allow.swap else 2):
                for arrange in ARRANGEMENTS:
                    self._along(arrange, num_layers, prefetch, max(num_layers - prefetch, 0) if allow.swap else 0)
                    if any(self.fits(policy) and evaluated[policy].step_time_ns == bound_ns for policy in evaluated):
                        return

    def _along(self, arrange: "Arrangement", num_layers: int, prefetch: int, max_swapped: int) -> None:
        """Increase the number of swapped layers; for each, search the minimum number of recomputed layers that fits."""
        num_recomputed = 0
        for num_swapped in range(max_swapped + 1):
            free = num_layers - num_swapped if self.problem.allow.recompute else 0
            num_recomputed = min(num_recomputed, free)

            def fits(number: int, num_swapped: int = num_swapped) -> bool:
                return self.fits(layer_policy(*arrange(num_layers, prefetch, num_swapped, number), prefetch))

            while not fits(num_recomputed) and num_recomputed < free:
                num_recomputed += 1
            while num_recomputed and fits(num_recomputed - 1):
                num_recomputed -= 1
            if not num_recomputed and fits(0):
                return  # further swaps only cost time


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
