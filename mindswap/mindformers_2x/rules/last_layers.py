"""A layer is swapped that has no layer `default_prefetch` places behind it: the last ones cannot be swapped.

The copies back start when backward of that later layer begins. So the largest layer is L - 1 - default_prefetch, where
L counts the layers with those for multi-token prediction.

PASS (num_hidden_layers: 4):
    swap: {enable: True, default_prefetch: 1, layer_swap: [{layers: ['0-2']}]}

FAIL (num_hidden_layers: 4):
    swap: {enable: True, default_prefetch: 1, layer_swap: [{layers: ['0-3']}]}
"""

from collections.abc import Iterator

from mindswap.document.problem import Level, Problem
from mindswap.mindformers_2x.layers import to_specs
from mindswap.mindformers_2x.rule_context import Context

ID = "pynative-last-layers"
LEVEL = Level.ERROR


def check(context: Context) -> Iterator[Problem]:
    """Every list that reaches into the last layers."""
    settings, num_layers = context.settings, context.num_layers
    prefetch = settings.prefetch
    if num_layers is None or prefetch is None or prefetch >= num_layers:
        return
    for target in (*settings.of("layer_swap"), *settings.of("op_swap")):
        largest = num_layers - 1 - prefetch
        too_large = [spec for spec in target.specs if largest < spec.last < num_layers]
        if too_large:
            rest = [index for index in settings.layers_of(target) if index <= largest]
            kept = "the last layer stays" if prefetch == 1 else f"the last {prefetch} layers stay"
            message = (
                f"{too_large[0].path}: layer {too_large[0].last} cannot be swapped: with default_prefetch {prefetch} "
                f"{kept} on the device"
            )
            fix = f"layers: {to_specs(rest)}" if rest else "delete the entry"
            yield Problem(too_large[0].location, ID, LEVEL, message, f"0 to {largest} (of {num_layers} layers)", fix)
