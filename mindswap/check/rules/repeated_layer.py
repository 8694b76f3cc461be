"""A layer is named twice for the same purpose; the second time has no effect.

PASS:
    layers: [0, 1, 3]

FAIL:
    layers: [0, 1, 1]
"""

from collections.abc import Iterator

from mindswap.check.context import Context, shared_layers
from mindswap.check.nearby import FirstOfLayer
from mindswap.document.problem import Level, Problem
from mindswap.policy.words import format_layers

ID = "repeated-layer"
LEVEL = Level.WARNING


def check(context: Context) -> Iterator[Problem]:
    """Indices that stand twice in one list, then entries that repeat what an earlier one says."""
    groups: dict[tuple[object, ...], FirstOfLayer] = {}
    for number, statement in enumerate(context.settings.statements):
        seen: set[int] = set()
        for ref in statement.layer_refs:
            if ref.index in seen:
                message = f"{statement.layers_path}: layer {ref.index} appears twice"
                yield Problem(ref.location, ID, LEVEL, message, "each layer once", f"delete one {ref.index}")
            seen.add(ref.index)
        group = groups.setdefault((statement.option, statement.pattern, statement.num_prefetch_ops), FirstOfLayer())
        earlier = group.other(statement.layers, number)
        if earlier is not None:
            layers = shared_layers(earlier.layers, statement.layers)
            message = f"{statement.path}: {earlier.path} says the same for {format_layers(layers)}"
            yield Problem(statement.pattern_location, ID, LEVEL, message, fix="delete one of them")
        group.add(statement, number)
