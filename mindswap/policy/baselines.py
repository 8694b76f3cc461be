"""Settings that everybody knows, by name: what a policy is compared with. Pure."""

from mindswap.errors import MindswapError
from mindswap.policy.model import ALL_LAYERS, DEFAULT_SWAP_PATTERNS, OpRecompute, OpSwap, Policy
from mindswap.policy.schema import default_operators

__all__ = ["BASELINES", "baseline_policy"]

BASELINES = {
    "none": "keep every activation on the device",
    "full-recompute": "recompute: True",
    "select-recompute": "select_recompute: True, MindFormers' default operators",
    "default-swap": "swap: True, default_prefetch: 1",
    "default-swap-10": "swap: True, default_prefetch: 10",
}


def baseline_policy(name: str, use_legacy: bool) -> Policy:
    """The policy of a baseline.

    Args:
        name: one of BASELINES.
        use_legacy: top-level `use_legacy` of the configuration.

    Raises:
        MindswapError: if there is no such baseline.
    """
    if name == "none":
        return Policy(is_swap_enabled=True)
    if name == "full-recompute":
        return Policy(is_swap_enabled=True, layer_recompute=ALL_LAYERS)
    if name == "select-recompute":
        operators = default_operators("select_recompute", use_legacy)
        return Policy(
            is_swap_enabled=True, select_recompute=tuple(OpRecompute(pattern, ALL_LAYERS) for pattern in operators)
        )
    if name in ("default-swap", "default-swap-10"):
        distance = 10 if name.endswith("10") else 1
        swaps = tuple(OpSwap(pattern, ALL_LAYERS, distance) for pattern in DEFAULT_SWAP_PATTERNS)
        return Policy(is_swap_enabled=True, default_prefetch=distance, op_swap=swaps)
    raise MindswapError(f"no baseline '{name}'; known: {', '.join(BASELINES)}")
