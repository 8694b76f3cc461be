"""`default_prefetch` is large: it counts layers, not operators, whatever its description in MindFormers 2.1.0 says.

It is also how long a layer stays on the device after its forward, so up to default_prefetch + 1 swapped layers are
there at once.

PASS:
    swap: {enable: True, default_prefetch: 1, layer_swap: [{layers: [0]}]}

FAIL:
    swap: {enable: True, default_prefetch: 10, layer_swap: [{layers: [0]}]}
"""

from collections.abc import Iterator

from mindswap.document.problem import Level, Problem
from mindswap.mindformers_2x.rule_context import Context

ID = "pynative-prefetch-unit"
LEVEL = Level.WARNING

MAX_USUAL = 4


def check(context: Context) -> Iterator[Problem]:
    """A distance above four layers."""
    prefetch = context.settings.prefetch
    node = context.document.get("swap", "default_prefetch")
    if context.settings.is_swap_enabled and node is not None and prefetch is not None and prefetch > MAX_USUAL:
        message = (
            f"swap.default_prefetch: {prefetch} layers (not operators): up to {prefetch + 1} swapped layers are on "
            "the device at once"
        )
        yield Problem(node.location, ID, LEVEL, message, "1 or 2 is usual", "default_prefetch: 1")
