"""A layer or cell is recomputed and swapped: then only its input is moved, since nothing else is saved.

MindFormers 2.1.0 accepts it, though its documentation promises an error. It is useful where the inputs of recomputed
layers are what fills the memory.

PASS:
    recompute: {mode: full, full_recompute_layer: [0]}
    swap: {enable: True, layer_swap: [{layers: [1]}]}

FAIL:
    recompute: {mode: full, full_recompute_layer: [0]}
    swap: {enable: True, layer_swap: [{layers: [0, 1]}]}
"""

from collections.abc import Iterator

from mindswap.document.problem import Level, Problem
from mindswap.mindformers_2x.layers import layers_in_words
from mindswap.mindformers_2x.rule_context import Context
from mindswap.policy.words import format_names

ID = "pynative-swap-of-recomputed"
LEVEL = Level.WARNING

FIX = "leave it, if that is meant; else take the layers out of one of the two"


def check(context: Context) -> Iterator[Problem]:
    """Whole layers, then cells."""
    settings = context.settings
    both = sorted(settings.full_layers & settings.swap_layers) if settings.is_swap_enabled else []
    if both:
        entry = settings.of("layer_swap")[0]
        message = f"{entry.layers_path}: {layers_in_words(both)}: recomputed as a whole, so only the input is swapped"
        yield Problem(entry.layers_location, ID, LEVEL, message, fix=FIX)
    for target in settings.of("op_swap"):
        names: list[str] = []
        layers = []
        for layer, paths in context.effect.matches(target).items():
            if layer < len(context.effect.layers):
                effect = context.effect.layers[layer]
                shared = [path for path in paths if path in effect.recomputed and path in effect.swapped]
                names += shared
                layers += [layer] if shared else []
        if names:
            what = f"{format_names(dict.fromkeys(names))} in {layers_in_words(layers)}"
            message = f"{target.pattern_path}: {what} is recomputed; only its input is swapped"
            yield Problem(target.pattern_location, ID, LEVEL, message, fix=FIX)
