"""Two entries give the same layer, or the same operator of a layer, different prefetch distances.

PASS:
    op_swap:
      - {op_name: attention, backward_prefetch: 20, layers: [0, 1]}
      - {op_name: attention, backward_prefetch: 10, layers: [2]}

FAIL (20 or 10 in layer 1?):
    op_swap:
      - {op_name: attention, backward_prefetch: 20, layers: [0, 1]}
      - {op_name: attention, backward_prefetch: 10, layers: [1]}
"""

from collections.abc import Iterator

from mindswap.check.context import Context, shared_layers
from mindswap.check.nearby import FirstOfLayer
from mindswap.document.problem import Level, Problem
from mindswap.policy.words import format_layers

ID = "conflicting-prefetch"
LEVEL = Level.ERROR


def check(context: Context) -> Iterator[Problem]:
    """Every entry that contradicts an earlier one, at its prefetch distance."""
    groups: dict[tuple[object, ...], FirstOfLayer] = {}
    for statement in context.settings.swap:
        if statement.num_prefetch_ops is None or statement.prefetch_location is None:
            continue
        group = groups.setdefault((statement.option, statement.pattern), FirstOfLayer())
        earlier = group.other(statement.layers, statement.num_prefetch_ops)
        if earlier is not None:
            layers = format_layers(shared_layers(earlier.layers, statement.layers))
            message = (
                f"{statement.path}.backward_prefetch: {statement.num_prefetch_ops} for {layers}, "
                f"but {earlier.path} says {earlier.num_prefetch_ops} ({earlier.prefetch_location})"
            )
            fix = f"take {layers} out of one of the two"
            allowed = "one distance per layer and operator"
            yield Problem(statement.prefetch_location, ID, LEVEL, message, allowed, fix)
        group.add(statement, statement.num_prefetch_ops)
