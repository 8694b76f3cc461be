"""An entry of layer_swap or op_swap names no layer, so it has no effect.

PASS:
    layer_swap:
      - {backward_prefetch: 20, layers: [0]}

FAIL:
    layer_swap:
      - {backward_prefetch: 20, layers: []}
"""

from collections.abc import Iterator

from mindswap.check.context import Context
from mindswap.document.problem import Level, Problem
from mindswap.policy.schema import Expect

ID = "no-layers"
LEVEL = Level.WARNING


def check(context: Context) -> Iterator[Problem]:
    """Every swap entry whose layers are `[]` or False."""
    misread = {misfit.path.partition(".layers")[0] for misfit in context.settings.misfits}
    incomplete = {missing.path for missing in context.settings.missing_keys}
    for statement in context.settings.swap:
        is_read = statement.path not in misread and statement.path not in incomplete
        if is_read and not statement.layers and not statement.layer_refs:
            message = f"{statement.layers_path}: names no layer, so this entry has no effect"
            fix = "name layers, or delete the entry"
            yield Problem(statement.location, ID, LEVEL, message, Expect.LAYERS.value, fix)
