"""mindswap: fine-grained activation SWAP and recomputation for MindSpore and MindFormers.

YAML -> Policy -> attributes on cells -> Graph (from the compiler), see CONTRIBUTING.md.
"""

from typing import TYPE_CHECKING, Any

from mindswap.policy.model import Layers, LayerSwap, OpRecompute, OpSwap, Policy
from mindswap.rules.checker import load_policy
from mindswap.steps.network import apply, capture, running_swap
from mindswap.version import __version__

if TYPE_CHECKING:
    from mindswap.features.check import check_config as check
    from mindswap.features.compare import compare_configs as compare
    from mindswap.features.convert import convert_config as convert
    from mindswap.features.explain import explain_config as explain
    from mindswap.features.inspect import inspect_memory as inspect
    from mindswap.features.step import capture_step, load_step
    from mindswap.features.verify import verify

__all__ = [
    "LayerSwap", "Layers", "OpRecompute", "OpSwap", "Policy", "__version__", "apply", "capture", "capture_step",
    "check", "compare", "convert", "explain", "inspect", "load_policy", "load_step", "running_swap", "verify",
]  # fmt: skip

# Imported when first used, as most of them import the simulator, which takes a second: module and name in it.
_LAZY = {
    "capture_step": ("step", "capture_step"),
    "check": ("check", "check_config"),
    "compare": ("compare", "compare_configs"),
    "convert": ("convert", "convert_config"),
    "explain": ("explain", "explain_config"),
    "inspect": ("inspect", "inspect_memory"),
    "load_step": ("step", "load_step"),
    "verify": ("verify", "verify"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'mindswap' has no attribute '{name}'")
    from importlib import import_module

    module, function = _LAZY[name]
    return getattr(import_module(f"mindswap.features.{module}"), function)
