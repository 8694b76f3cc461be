"""`recompute_comm` names a cell; it takes operators only, and says so in one line at level INFO.

PASS:
    recompute_comm: {enable: True, select_module: {'self_attention\\.cat': [0]}}

FAIL:
    recompute_comm: {enable: True, select_module: {mlp: [0]}}
"""

from collections.abc import Iterator

from mindswap.document.problem import Level, Problem
from mindswap.mindformers_2x.layers import layers_in_words
from mindswap.mindformers_2x.rule_context import Context
from mindswap.policy.words import format_names

ID = "pynative-comm-cell"
LEVEL = Level.ERROR


def check(context: Context) -> Iterator[Problem]:
    """Every pattern that names cells there."""
    for target in context.settings.of("comm"):
        cells: list[str] = []
        layers = []
        for layer, paths in context.effect.matches(target).items():
            if layer < len(context.effect.layers):
                refused = [path for path in paths if path in context.effect.layers[layer].refused_cells]
                cells += refused
                layers += [layer] if refused else []
        if cells:
            names = format_names(dict.fromkeys(cells))
            message = f"{target.pattern_path}: {names} is a cell and is not recomputed, in {layers_in_words(layers)}"
            yield Problem(target.pattern_location, ID, LEVEL, message, "operators", "name an operator in it")
