"""A pattern has no effect, since others cover it: its layers are taken whole, or its cells stand in named cells.

PASS:
    swap: {enable: True, layer_swap: [{layers: [0]}], op_swap: [{op_name: mlp, layers: [1]}]}

FAIL (layer 0 is swapped whole):
    swap: {enable: True, layer_swap: [{layers: [0]}], op_swap: [{op_name: mlp, layers: [0, 1]}]}
"""

from collections.abc import Iterator

from mindswap.document.problem import Level, Problem
from mindswap.mindformers_2x.layers import layers_in_words
from mindswap.mindformers_2x.rule_context import Context

ID = "pynative-covered"
LEVEL = Level.WARNING


def check(context: Context) -> Iterator[Problem]:
    """Every pattern with such layers, and the layers."""
    settings, maps = context.settings, context.effect.maps
    kinds = {
        "op_swap": (maps.swap, settings.swap_layers, "layer_swap"),
        "select_module": (maps.recompute, settings.full_layers, "full_recompute_layer"),
        "exclude_op": (maps.exclude, frozenset(), ""),
        "comm": (maps.comm, settings.full_layers, "recompute.full_recompute_layer"),
    }
    for target in settings.targets:
        layer_map, whole, key = kinds.get(target.option, (None, frozenset(), ""))
        matches = context.effect.matches(target)
        in_whole = [layer for layer in matches if layer in whole]
        if in_whole:
            message = f"{target.layers_path}: has no effect in {layers_in_words(in_whole)}: {key} has them"
            yield Problem(target.layers_location, ID, LEVEL, message, fix="take them out of one of the two")
        if layer_map is None:
            continue
        lost = [
            layer
            for layer, paths in matches.items()
            if paths and layer not in whole and not set(paths) & set(layer_map.get(layer, ()))
        ]
        if lost:
            message = f"{target.pattern_path}: a cell above it is named, too, so it adds nothing in "
            yield Problem(target.pattern_location, ID, LEVEL, message + layers_in_words(lost), fix="delete it")
