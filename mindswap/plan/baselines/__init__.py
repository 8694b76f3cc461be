"""What others do, as policies: the strategies that a plan is compared with. Pure.

Each is a function of a model and a budget in bytes; those that know no budget ignore it.
"""

from collections.abc import Callable, Mapping
from functools import partial

from mindswap.plan.baselines.hyper_offload import DistanceOptions, hyper_offload
from mindswap.plan.baselines.knapsack import knapsack
from mindswap.plan.baselines.longest_gap import longest_gap
from mindswap.plan.baselines.uniform import default_swap, full_recompute, keep_all, select_recompute, swap_everything
from mindswap.policy.model import Policy
from mindswap.simulate.step_model import StepModel

__all__ = ["STRATEGIES", "Strategy"]

Strategy = Callable[[StepModel, int], Policy]

STRATEGIES: Mapping[str, Strategy] = {
    "keep all": keep_all,
    "full recompute": full_recompute,
    "select recompute": select_recompute,
    "default SWAP, prefetch 1": partial(default_swap, 1),
    "default SWAP, prefetch 10": partial(default_swap, 10),
    "swap everything": partial(swap_everything, 10),
    "HyperOffload, distance": partial(hyper_offload, DistanceOptions()),
    "HyperOffload, adaptive": partial(hyper_offload, DistanceOptions(is_adaptive=True)),
    "longest gap, prefetch 1": partial(longest_gap, 1),
    "longest gap, prefetch 10": partial(longest_gap, 10),
    "MindSpeed knapsack": knapsack,
}
