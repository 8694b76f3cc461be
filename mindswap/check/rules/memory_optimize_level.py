"""context.memory_optimize_level is not O0: the memory planner of the other levels knows no host memory.

Where the key is missing, mindswap sets O0 itself.

PASS:
    context:
      memory_optimize_level: "O0"

FAIL:
    context:
      memory_optimize_level: "O1"
"""

from collections.abc import Iterator

from mindswap.check.context import Context
from mindswap.config.mode import is_pynative
from mindswap.document.nodes import show
from mindswap.document.problem import Level, Problem

ID = "memory-optimize-level"
LEVEL = Level.ERROR


def check(context: Context) -> Iterator[Problem]:
    """The level, if swap is on and it is not O0."""
    node = context.document.get("context", "memory_optimize_level")
    if is_pynative(context.document):
        return
    if context.settings.is_swap_enabled and node is not None and not node.is_null and node.value != "O0":
        message = f"context.memory_optimize_level: {show(node)}, but swap needs O0"
        yield Problem(node.location, ID, LEVEL, message, "'O0'", 'memory_optimize_level: "O0"')
