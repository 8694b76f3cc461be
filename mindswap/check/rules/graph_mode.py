"""context.mode is not graph mode: swap is done by the graph compiler.

PASS:
    context:
      mode: 0

FAIL:
    context:
      mode: 1
"""

from collections.abc import Iterator

from mindswap.check.context import Context
from mindswap.document.nodes import show
from mindswap.document.problem import Level, Problem

ID = "graph-mode"
LEVEL = Level.ERROR


def check(context: Context) -> Iterator[Problem]:
    """The mode, if swap is on and it is not graph mode (which MindFormers takes where the key is missing)."""
    node = context.document.get("context", "mode")
    if not context.settings.is_swap_enabled or node is None:
        return
    if isinstance(node.value, bool) or node.value not in (0, "GRAPH_MODE"):
        message = f"context.mode: {show(node)}, but swap works in graph mode only"
        yield Problem(node.location, ID, LEVEL, message, "0 or GRAPH_MODE", "mode: 0")
