"""Swap is on, but layer_swap and op_swap are empty, so nothing is swapped.

The default strategy acts only where both are null or missing. With recompute in layer indices, `op_swap: []`
is the way to have that and no swap, and nothing is said.

PASS (the default strategy):
    swap_config:
      swap: True

FAIL:
    swap_config:
      swap: True
      op_swap: []
"""

from collections.abc import Iterator

from mindswap.check.context import Context
from mindswap.document.problem import Level, Problem

ID = "nothing-swapped"
LEVEL = Level.WARNING


def check(context: Context) -> Iterator[Problem]:
    """The first of layer_swap and op_swap that stands there, if both name nothing."""
    settings = context.settings
    has_recompute = any(statement.layers for statement in settings.recompute)
    if not settings.is_swap_enabled or settings.swap or has_recompute or settings.misfits or settings.missing_keys:
        return
    for key in ("layer_swap", "op_swap"):
        node = context.document.get("swap_config", key)
        if node is not None and not node.is_null:
            message = f"swap_config.{key}: names nothing, and so the default strategy does not act: nothing is swapped"
            fix = f"delete '{key}' for the default strategy, or write 'swap: False'"
            yield Problem(node.location, ID, LEVEL, message, fix=fix)
            return
