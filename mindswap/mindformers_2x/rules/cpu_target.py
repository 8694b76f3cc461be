"""Swap is enabled on a CPU target: there all memory is host memory, and nothing is moved.

PASS:
    context: {device_target: Ascend}
    swap: {enable: True, layer_swap: [{layers: [0]}]}

FAIL:
    context: {device_target: CPU}
    swap: {enable: True, layer_swap: [{layers: [0]}]}
"""

from collections.abc import Iterator

from mindswap.document.problem import Level, Problem
from mindswap.mindformers_2x.rule_context import Context

ID = "pynative-cpu-target"
LEVEL = Level.WARNING


def check(context: Context) -> Iterator[Problem]:
    """The target."""
    node = context.document.get("context", "device_target")
    if context.settings.is_swap_enabled and node is not None and str(node.value).upper() == "CPU":
        message = "context.device_target: CPU, where swap moves nothing"
        yield Problem(node.location, ID, LEVEL, message, "Ascend", "device_target: Ascend")
