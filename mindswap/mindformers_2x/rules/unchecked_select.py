"""`select_module` names layers that do not exist, next to `full_recompute_layer`: then upstream drops them silently.

PASS (num_hidden_layers: 4):
    recompute: {mode: select, full_recompute_layer: [0], select_module: {mlp: ['1-3']}}

FAIL (num_hidden_layers: 4):
    recompute: {mode: select, full_recompute_layer: [0], select_module: {mlp: ['1-9']}}
"""

from collections.abc import Iterator

from mindswap.document.problem import Level, Problem
from mindswap.mindformers_2x.rule_context import Context

ID = "pynative-unchecked-select"
LEVEL = Level.ERROR


def check(context: Context) -> Iterator[Problem]:
    """Every layer that is dropped that way."""
    limit = context.num_layers
    if limit is None or not context.settings.of("full_recompute_layer"):
        return
    for target in context.settings.of("select_module"):
        for spec in target.specs:
            if spec.last >= limit:
                message = f"{spec.path}: there is no layer {spec.last}; upstream drops it without a word here"
                yield Problem(spec.location, ID, LEVEL, message, f"0 to {limit - 1}")
