"""`op_swap` names a cell in a layer that is recomputed as a whole, or below a recomputed cell: nothing is swapped.

Upstream lists it in its "Swap Configuration Map", makes no wrapper and says nothing.

PASS:
    recompute: {mode: full, full_recompute_layer: [0]}
    swap: {enable: True, op_swap: [{op_name: mlp, layers: [1]}]}

FAIL:
    recompute: {mode: full, full_recompute_layer: [0]}
    swap: {enable: True, op_swap: [{op_name: mlp, layers: [0]}]}
"""

from collections.abc import Iterator

from mindswap.document.problem import Level, Problem
from mindswap.mindformers_2x.layers import layers_in_words
from mindswap.mindformers_2x.rule_context import Context
from mindswap.policy.words import format_names

ID = "pynative-swap-below-recompute"
LEVEL = Level.WARNING


def check(context: Context) -> Iterator[Problem]:
    """Every entry that loses something that way, with the layers and the reason."""
    for target in context.settings.of("op_swap"):
        lost: dict[str, tuple[list[int], list[str]]] = {}
        for layer, paths in context.effect.matches(target).items():
            drops = context.effect.layers[layer].drops if layer < len(context.effect.layers) else ()
            for drop in drops:
                if drop.option == "op_swap" and drop.path in paths:
                    layers, names = lost.setdefault(drop.reason, ([], []))
                    layers.append(layer)
                    names.append(drop.path)
        for reason, (layers, names) in lost.items():
            what = format_names(dict.fromkeys(names))
            message = f"{target.pattern_path}: {what} is not swapped in {layers_in_words(layers)}: {reason}"
            fix = "take these layers out of op_swap, or out of recompute"
            yield Problem(target.pattern_location, ID, LEVEL, message, fix=fix)
