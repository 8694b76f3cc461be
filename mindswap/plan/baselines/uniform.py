"""Settings that treat all layers alike: what users of MindFormers and Megatron-LM try first. Pure."""

from mindswap.policy.match import match_pattern
from mindswap.policy.model import ALL_LAYERS, DEFAULT_SWAP_PATTERNS, LayerSwap, OpRecompute, OpSwap, Policy
from mindswap.policy.schema import default_operators
from mindswap.simulate.step_model import StepModel

__all__ = ["default_swap", "full_recompute", "keep_all", "select_recompute", "swap_everything"]


def keep_all(model: StepModel, budget_bytes: int) -> Policy:
    """Every activation stays on the device."""
    return Policy(is_swap_enabled=True)


def full_recompute(model: StepModel, budget_bytes: int) -> Policy:
    """Every layer is recomputed whole; it keeps its input.

    Source:
        `recompute: True` of MindFormers; `--recompute-granularity full` of Megatron-LM.
    """
    return Policy(is_swap_enabled=True, layer_recompute=ALL_LAYERS)


def select_recompute(model: StepModel, budget_bytes: int) -> Policy:
    """The operators that MindFormers recomputes by default, in all layers; those of them that the model has.

    Source:
        `select_recompute: True` of MindFormers 1.9.0, for legacy and newer models.
    """
    known = (*default_operators("select_recompute", True), *default_operators("select_recompute", False))
    patterns = [pattern for pattern in known if any(match_pattern(pattern, tree) for tree in model.captured.trees)]
    return Policy(
        is_swap_enabled=True, select_recompute=tuple(OpRecompute(pattern, ALL_LAYERS) for pattern in patterns)
    )


def default_swap(num_prefetch_ops: int, model: StepModel, budget_bytes: int) -> Policy:
    """The default SWAP strategy: the output of flash attention, in all layers.

    Source:
        `swap: True` with `default_prefetch` alone, MindFormers' documentation of fine-grained activation SWAP.
    """
    swaps = tuple(OpSwap(pattern, ALL_LAYERS, num_prefetch_ops) for pattern in DEFAULT_SWAP_PATTERNS)
    return Policy(is_swap_enabled=True, default_prefetch=num_prefetch_ops, op_swap=swaps)


def swap_everything(num_prefetch_ops: int, model: StepModel, budget_bytes: int) -> Policy:
    """Every activation that has a name leaves the device.

    Source:
        `layer_swap` with `layers: True`, MindFormers' documentation of fine-grained activation SWAP.
    """
    return Policy(is_swap_enabled=True, layer_swap=(LayerSwap(ALL_LAYERS, num_prefetch_ops),))
