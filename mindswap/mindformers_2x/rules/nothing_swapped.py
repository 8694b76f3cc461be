"""Swap is enabled, and nothing is swapped: no `layer_swap` and no `op_swap`, or none that wraps anything.

There is no default strategy in 2.x: `enable: True` alone does nothing.

PASS:
    swap: {enable: True, layer_swap: [{layers: ['0-2']}]}

FAIL:
    swap: {enable: True}
"""

from collections.abc import Iterator

from mindswap.document.problem import Level, Problem
from mindswap.mindformers_2x.rule_context import Context

ID = "pynative-nothing-swapped"
LEVEL = Level.ERROR


def check(context: Context) -> Iterator[Problem]:
    """The whole section, unless something in it is wrong in another way already."""
    settings = context.settings
    is_unread = any(misfit.path.startswith("swap") for misfit in settings.misfits) or settings.missing_keys
    if not settings.is_swap_enabled or is_unread:
        return
    named = [target for target in (*settings.of("layer_swap")[:1], *settings.of("op_swap")) if target.specs]
    if named and (context.num_layers is None or context.effect.swaps_anything):
        return
    if any(spec.last >= (context.num_layers or spec.last + 1) for target in named for spec in target.specs):
        return  # the layers are wrong, which is said elsewhere
    node = context.document.get("swap", "enable")
    if node is not None:
        message = "swap.enable: True, but no cell of any layer is swapped"
        allowed = "layer_swap: [{layers: [...]}] or op_swap: [{op_name: ..., layers: [...]}]"
        yield Problem(node.location, ID, LEVEL, message, allowed, "name layers, or write 'enable: False'")
