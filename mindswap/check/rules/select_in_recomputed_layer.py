"""An operator is selected for recomputation in a layer that is recomputed whole: no effect.

PASS:
    recompute_config:
      recompute: [0]
      select_recompute: {feed_forward: [1]}

FAIL:
    recompute_config:
      recompute: [0]
      select_recompute: {feed_forward: [0, 1]}
"""

from collections.abc import Iterator

from mindswap.check.context import Context, shared_layers
from mindswap.document.problem import Level, Problem
from mindswap.policy.words import format_layers

ID = "select-in-recomputed-layer"
LEVEL = Level.WARNING


def check(context: Context) -> Iterator[Problem]:
    """Every select option that names a layer which `recompute` names as well."""
    selected = (*context.settings.of("select_recompute"), *context.settings.of("select_comm_recompute"))
    for whole in context.settings.of("recompute"):
        for statement in selected:
            layers = shared_layers(whole.layers, statement.layers)
            if layers:
                where = format_layers(layers)
                message = f"{statement.path}: recompute takes {where} whole, so this has no effect there"
                yield Problem(statement.pattern_location, ID, LEVEL, message, fix=f"take {where} out")
