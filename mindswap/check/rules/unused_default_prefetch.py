"""default_prefetch stands next to layer_swap or op_swap, where it has no effect.

PASS:
    swap_config:
      swap: True
      default_prefetch: 10

FAIL:
    swap_config:
      swap: True
      default_prefetch: 10
      layer_swap:
        - {backward_prefetch: 20, layers: [0]}
"""

from collections.abc import Iterator

from mindswap.check.context import Context
from mindswap.document.problem import Level, Problem
from mindswap.policy.schema import PREFETCH_DEFAULT

ID = "unused-default-prefetch"
LEVEL = Level.WARNING


def check(context: Context) -> Iterator[Problem]:
    """default_prefetch, where layer_swap or op_swap replaces the default strategy."""
    settings = context.settings
    entry = context.document.get("swap_config")
    node = entry.get("default_prefetch") if entry is not None else None
    if (
        node is None
        or node.is_null
        or not settings.is_swap_enabled
        or any(statement.is_default for statement in settings.swap)
    ):
        return
    if not node.location.line and node.value == PREFETCH_DEFAULT:
        return  # MindFormers itself puts the default there
    message = "swap_config.default_prefetch: has no effect next to layer_swap or op_swap"
    yield Problem(node.location, ID, LEVEL, message, fix="delete it; backward_prefetch of each entry counts")
