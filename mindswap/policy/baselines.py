"""Settings that everybody knows, by name: what a policy or a plan is compared with."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mindswap.errors import MindswapError
from mindswap.policy.cell_tree import CellNode
from mindswap.policy.match import match_pattern
from mindswap.policy.model import ALL_LAYERS, LayerSwap, OpRecompute, Policy
from mindswap.policy.schema import default_operators


@dataclass(frozen=True)
class Baseline:
    """A setting that treats all layers alike."""

    title: str  # in tables
    meaning: str  # as one would write it
    policy: Callable[[Sequence[CellNode]], Policy]  # for the trees of all kinds of layers


def _always(**fields: Any) -> Callable[[Sequence[CellNode]], Policy]:
    policy = Policy(is_swap_enabled=True, **fields)
    return lambda trees: policy


def _select_recompute(trees: Sequence[CellNode]) -> Policy:
    """Of the operators for legacy and for newer models those that the model has."""
    known = (*default_operators("select_recompute", True), *default_operators("select_recompute", False))
    patterns = [pattern for pattern in known if any(match_pattern(pattern, tree) for tree in trees)]
    return Policy(
        is_swap_enabled=True, select_recompute=tuple(OpRecompute(pattern, ALL_LAYERS) for pattern in patterns)
    )


KEEP_ALL = "none"
# The defaults of `recompute`, `select_recompute` and `swap` in MindFormers 1.9.0; full recompute is also
# `--recompute-granularity full` of Megatron-LM.
BASELINES: Mapping[str, Baseline] = {
    KEEP_ALL: Baseline("keep all", "keep every activation on the device", _always()),
    "full-recompute": Baseline("full recompute", "recompute: True", _always(layer_recompute=ALL_LAYERS)),
    "select-recompute": Baseline(
        "select recompute", "select_recompute: True, MindFormers' default operators", _select_recompute
    ),
    "default-swap": Baseline(
        "default SWAP, prefetch 1", "swap: True, default_prefetch: 1", _always(default_prefetch=1)
    ),
    "default-swap-10": Baseline(
        "default SWAP, prefetch 10", "swap: True, default_prefetch: 10", _always(default_prefetch=10)
    ),
    "swap-everything": Baseline(
        "swap everything",
        "layer_swap of all layers, backward_prefetch: 10",
        _always(layer_swap=[LayerSwap(ALL_LAYERS, 10)]),
    ),
}


def baseline_policy(name: str, trees: Sequence[CellNode]) -> Policy:
    """The policy of a baseline for the trees of all kinds of layers that the model has.

    Raises:
        MindswapError: if there is no such baseline.
    """
    if name not in BASELINES:
        raise MindswapError(f"no baseline '{name}'; known: {', '.join(BASELINES)}")
    return BASELINES[name].policy(trees)
