"""context.mode is no mode in which mindswap swaps.

In graph mode the compiler swaps. In PyNative mode mindswap does, on CPU; its copies for Ascend were never run, so
there they have to be asked for with `mindswap: {stream_copies: True}`.

PASS:
    context:
      mode: 0

PASS:
    context:
      mode: 1
      device_target: CPU

FAIL:
    context:
      mode: 1
      device_target: Ascend
"""

from collections.abc import Iterator

from mindswap.check.context import Context
from mindswap.config.mode import GRAPH, PYNATIVE, is_on_cpu
from mindswap.document.nodes import show
from mindswap.document.problem import Level, Problem

ID = "context-mode"
LEVEL = Level.ERROR


def check(context: Context) -> Iterator[Problem]:
    """The mode, if swap is on and it is not one (MindFormers takes graph mode where the key is missing)."""
    node = context.document.get("context", "mode")
    if not context.settings.is_swap_enabled or node is None:
        return
    is_mode = not isinstance(node.value, bool)
    if is_mode and node.value in GRAPH:
        return
    if not is_mode or node.value not in PYNATIVE:
        message = f"context.mode: {show(node)}, which is no mode"
        yield Problem(node.location, ID, LEVEL, message, "0 or GRAPH_MODE, 1 or PYNATIVE_MODE", "mode: 0")
        return
    asked = context.document.get("mindswap", "stream_copies")
    if not is_on_cpu(context.document) and (asked is None or asked.value is not True):
        message = f"context.mode: {show(node)}: swap in PyNative mode was never run on a device other than CPU"
        allowed = "0 or GRAPH_MODE; PyNative with device_target: CPU, or with mindswap: {stream_copies: True}"
        yield Problem(node.location, ID, LEVEL, message, allowed, "mode: 0")
