"""There is no such layer. Layers for multi-token prediction count behind the others.

PASS (num_hidden_layers: 4):
    layers: ['0-2']

FAIL (num_hidden_layers: 4; layers are counted from 0):
    layers: [4]
"""

from collections.abc import Iterator

from mindswap.document.problem import Level, Problem
from mindswap.mindformers_2x.rule_context import Context

ID = "pynative-layer-out-of-range"
LEVEL = Level.ERROR


def check(context: Context) -> Iterator[Problem]:
    """Every element that reaches beyond the model, where upstream looks at it."""
    limit = context.num_layers
    if limit is None:
        return
    known_from = f"num_hidden_layers: {limit - context.settings.num_mtp_layers}"
    if context.settings.num_mtp_layers:
        known_from += f", and {context.settings.num_mtp_layers} for multi-token prediction"
    is_select_unchecked = bool(context.settings.of("full_recompute_layer"))
    for target in context.settings.targets:
        if target.option == "select_module" and is_select_unchecked:
            continue
        for spec in target.specs:
            if spec.last >= limit:
                message = f"{spec.path}: there is no layer {spec.last}"
                fix = f"write '{spec.first}-{limit - 1}'" if spec.first < limit - 1 else ""
                yield Problem(spec.location, ID, LEVEL, message, f"0 to {limit - 1} ({known_from})", fix)
