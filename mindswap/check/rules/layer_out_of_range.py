"""A layer index is negative, or there is no such layer.

PASS (num_layers: 4):
    layers: [0, 3]

FAIL (num_layers: 4; layers are counted from 0):
    layers: [1, 4]
"""

from collections.abc import Iterator

from mindswap.check.context import Context
from mindswap.document.problem import Level, Location, Problem
from mindswap.policy.schema import MAX_NUM_LAYERS
from mindswap.policy.words import format_indices

ID = "layer-out-of-range"
LEVEL = Level.ERROR


def check(context: Context) -> Iterator[Problem]:
    """Every place that names layers the model does not have."""
    limit = context.num_layers or MAX_NUM_LAYERS
    known_from = f" (num_layers: {limit})" if context.num_layers else ""
    wrong: dict[tuple[str, Location], set[int]] = {}
    for statement in context.settings.statements:
        for ref in statement.layer_refs:
            if not 0 <= ref.index < limit:
                wrong.setdefault((statement.layers_path, ref.location), set()).add(ref.index)
    for (path, location), indices in wrong.items():
        if len(indices) == 1:
            message = f"{path}: there is no layer {next(iter(indices))}"
        else:
            message = f"{path}: there are no layers {format_indices(indices)}"
        fix = ""
        if min(indices) < 0:
            meant = [index + limit for index in sorted(indices) if index + limit >= 0]
            fix = f"count from the front: {format_indices(meant)}" if meant and context.num_layers else ""
        yield Problem(location, ID, LEVEL, message, f"0 to {limit - 1}{known_from}", fix)
