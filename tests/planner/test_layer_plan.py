"""Plans of whole layers, on `models.small_model`."""

from itertools import combinations, product

import pytest

from mindswap.planner.evaluate import evaluate
from mindswap.planner.layer_plan import ARRANGEMENTS, layer_policy, plan_layers
from mindswap.planner.problem import Allow, PlanProblem
from mindswap.planner.solver.search import Stop
from mindswap.policy.model import Policy
from mindswap.simulator.cost.device_file import load_device
from mindswap.simulator.layer_swap_2x import LayerSwapModel2x
from tests.planner.models import MB, small_model

NUM_LAYERS = 5
# Copies of 1 MB take 4 us, not 100: a layer of 9 us in forward hides two of them.
FAST = load_device("generic", {"d2h": "250GB/s", "h2d": "250GB/s"})


@pytest.fixture(scope="module")
def model():
    return LayerSwapModel2x.of(small_model(NUM_LAYERS, device=FAST))


def problem(model, budget_bytes, **options):
    return PlanProblem(model, budget_bytes, 2**40, 8, **options)


def keep_peak(model):
    return model.simulate(Policy()).peak_bytes


def subsets(layers):
    return [chosen for size in range(len(layers) + 1) for chosen in combinations(layers, size)]


def test_what_fits_is_kept(model):
    plan = plan_layers(problem(model, keep_peak(model)))
    assert plan.policy == layer_policy((), (), 1)
    assert plan.step_time_ns == plan.unconstrained_ns == plan.lower_bound_ns


@pytest.mark.long
@pytest.mark.parametrize("less", [1, 3, 5, 7])
@pytest.mark.parametrize("allow", [Allow(), Allow(recompute=False), Allow(swap=False)])
def test_it_is_the_best_of_its_candidates_and_none_beats_the_bound(model, less, allow):
    asked = problem(model, keep_peak(model) - less * MB, allow=allow)
    plan = plan_layers(asked)
    candidates = [
        layer_policy(*arrange(NUM_LAYERS, prefetch, swapped, again), prefetch)
        for arrange, prefetch in product(ARRANGEMENTS, range(1, 5))
        for swapped in range(NUM_LAYERS - prefetch + 1 if allow.swap else 1)
        for again in range(NUM_LAYERS - swapped + 1 if allow.recompute else 1)
    ]
    fitting = [one.step_time_ns for one in (evaluate(asked, policy) for policy in candidates) if one.fits]
    assert plan.fits == bool(fitting)
    if fitting:
        assert plan.step_time_ns == min(fitting)
        assert plan.peak_bytes == evaluate(asked, plan.policy).peak_bytes <= asked.budget_bytes


def test_no_policy_of_2x_beats_the_lower_bound(model):
    """Every set of swapped layers with every set of recomputed ones."""
    asked = problem(model, keep_peak(model) - 5 * MB)
    plan = plan_layers(asked)
    assert plan.lower_bound_ns is not None
    times = []
    for prefetch in (1, 2):
        for swapped in subsets(range(NUM_LAYERS - prefetch)):
            for again in subsets([layer for layer in range(NUM_LAYERS) if layer not in swapped]):
                evaluation = evaluate(asked, layer_policy(swapped, again, prefetch))
                times += [evaluation.step_time_ns] if evaluation.fits else []
    assert plan.lower_bound_ns <= min(times) <= plan.step_time_ns


def test_the_last_layers_are_never_swapped(model):
    for less in range(1, 8):
        policy = plan_layers(problem(model, keep_peak(model) - less * MB, allow=Allow(recompute=False))).policy
        for entry in policy.layer_swap:
            assert max(entry.layers.indices) + entry.prefetch < NUM_LAYERS


def test_nothing_fits(model):
    plan = plan_layers(problem(model, MB))
    assert not plan.fits
    assert plan.smallest_budget_bytes == plan.peak_bytes > plan.least_budget_bytes > MB


def test_interrupted_the_best_so_far_counts():
    model = LayerSwapModel2x.of(small_model(NUM_LAYERS))  # slow copies: no policy is as fast as the bound

    def stop():
        raise Stop

    plan = plan_layers(problem(model, keep_peak(model) - 3 * MB), stop)
    assert plan.is_interrupted and plan.num_evaluations == 4  # the well-known policies, and one more
    assert plan.fits
