"""mindswap: fine-grained activation SWAP and recomputation for MindSpore and MindFormers.

YAML -> Policy -> attributes on cells -> Graph (from the compiler), see CONTRIBUTING.md.
"""

from typing import TYPE_CHECKING, Any

from mindswap.policy.model import Layers, LayerSwap, OpRecompute, OpSwap, Policy
from mindswap.rules.checker import load_policy
from mindswap.steps.network import apply, capture, running_swap
from mindswap.version import __version__

if TYPE_CHECKING:
    from mindswap.features.step import capture_step, load_step
    from mindswap.features.verify import verify

__all__ = [
    "LayerSwap", "Layers", "OpRecompute", "OpSwap", "Policy", "__version__", "apply", "capture", "capture_step",
    "load_policy", "load_step", "running_swap", "verify",
]  # fmt: skip

# Where the names are that bring the simulator along, which takes a second to import: looked up when first used.
_LAZY = {"capture_step": "step", "load_step": "step", "verify": "verify"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'mindswap' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(f"mindswap.features.{_LAZY[name]}"), name)
