"""`layer_swap` has more than one entry; upstream takes the first and drops the others without a word.

PASS:
    swap: {enable: True, layer_swap: [{layers: [0, 2]}]}

FAIL:
    swap: {enable: True, layer_swap: [{layers: [0]}, {layers: [2]}]}
"""

from collections.abc import Iterator

from mindswap.document.problem import Level, Problem
from mindswap.mindformers_2x.layers import to_specs
from mindswap.mindformers_2x.rule_context import Context

ID = "pynative-later-layer-swap"
LEVEL = Level.ERROR


def check(context: Context) -> Iterator[Problem]:
    """Every entry behind the first."""
    entries = context.settings.of("layer_swap")
    layers = {index for entry in entries for index in context.settings.layers_of(entry)}
    for entry in entries[1:]:
        message = f"{entry.path}: has no effect; of layer_swap only the first entry acts"
        fix = f"one entry for all of them: layers: {to_specs(layers)}"
        yield Problem(entry.location, ID, LEVEL, message, "one entry", fix)
