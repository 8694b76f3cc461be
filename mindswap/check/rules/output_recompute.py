"""output_recompute names layers that are not recomputed whole, or stands with a model that does not compile so.

`mindswap: {output_recompute: LAYERS}` keeps not even the output of a recomputed layer: backward computes it
again for the layer that follows. MindSpore 2.9 compiles that for networks whose layers give one tensor
(the legacy models), and stops at the newer models of MindFormers.

PASS:
    recompute_config: {recompute: [0, 1, 2, 3]}
    mindswap: {output_recompute: [0, 2]}

FAIL (layer 2 is not recomputed):
    recompute_config: {recompute: [0, 1]}
    mindswap: {output_recompute: [0, 2]}
"""

from collections.abc import Iterator

from mindswap.check.context import Context
from mindswap.document.problem import Level, Problem
from mindswap.policy.words import format_indices

ID = "output-recompute"
LEVEL = Level.ERROR


def check(context: Context) -> Iterator[Problem]:
    """What output_recompute asks for and cannot have."""
    recomputed = [statement.layers for statement in context.settings.of("recompute")]
    for statement in context.settings.of("output_recompute"):
        if not statement.layers:
            continue
        if not context.settings.use_legacy:
            message = f"{statement.path}: MindSpore 2.9 cannot compile it with the models of use_legacy: False"
            yield Problem(statement.location, ID, LEVEL, message, fix="delete it; every layer then keeps its input")
            continue
        indices = statement.layers.resolve(context.num_layers or 0)
        alone = [index for index in indices if not any(index in layers for layers in recomputed)]
        if alone:
            message = f"{statement.path}: recompute does not have layer{'s' * (len(alone) > 1)} {format_indices(alone)}"
            yield Problem(
                statement.location, ID, LEVEL, message, "layers of recompute_config.recompute", "add them to recompute"
            )
