"""What others do, as policies: usual settings, and strategies written from public descriptions of other systems.

Each is a function of a model and a budget in bytes; those that know no budget ignore it.
"""

from collections.abc import Callable, Mapping
from functools import partial

from mindswap.policy.coverage import BASELINES, baseline_policy
from mindswap.policy.model import Policy
from mindswap.simulator.step_model import StepModel
from other_systems.hyper_offload import DistanceOptions, hyper_offload
from other_systems.knapsack import knapsack
from other_systems.longest_gap import longest_gap

__all__ = ["STRATEGIES", "Strategy"]

Strategy = Callable[[StepModel, int], Policy]


def _uniform(name: str) -> Strategy:
    return lambda model, budget_bytes: baseline_policy(name, model.captured.trees)


STRATEGIES: Mapping[str, Strategy] = {
    **{baseline.title: _uniform(name) for name, baseline in BASELINES.items()},
    "HyperOffload, distance": partial(hyper_offload, DistanceOptions()),
    "HyperOffload, adaptive": partial(hyper_offload, DistanceOptions(is_adaptive=True)),
    "longest gap, prefetch 1": partial(longest_gap, 1),
    "longest gap, prefetch 10": partial(longest_gap, 10),
    "MindSpeed knapsack": knapsack,
}
