"""mindswap: fine-grained activation SWAP and recomputation for MindSpore and MindFormers.

YAML -> Policy -> attributes on cells -> Graph (from the compiler), see CONTRIBUTING.md.
"""

from mindswap.api import apply, capture, running_swap
from mindswap.check.check import load_policy
from mindswap.policy.model import Policy
from mindswap.version import __version__

__all__ = ["Policy", "__version__", "apply", "capture", "load_policy", "running_swap"]
