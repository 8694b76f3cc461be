"""context.device_target is not Ascend: training runs, but in graph mode nothing is swapped.

PASS:
    context:
      device_target: "Ascend"

FAIL:
    context:
      device_target: "CPU"
"""

from collections.abc import Iterator

from mindswap.check.context import Context
from mindswap.config.mode import is_pynative
from mindswap.document.nodes import show
from mindswap.document.problem import Level, Problem

ID = "device-target"
LEVEL = Level.WARNING

ASCEND = "Ascend"


def check(context: Context) -> Iterator[Problem]:
    """The device, if swap is on and it is another than Ascend."""
    node = context.document.get("context", "device_target")
    if is_pynative(context.document):
        return
    if context.settings.is_swap_enabled and node is not None and not node.is_null and node.value != ASCEND:
        message = f"context.device_target: on {show(node)} swap has no effect at run time"
        yield Problem(node.location, ID, LEVEL, message, f"'{ASCEND}'", "none needed to try a configuration out")
