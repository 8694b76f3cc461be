"""The output of a swapped operator is used by a recomputed operator.

By the specification its swap does not take effect. (MindSpore 2.9 inserts the copies all the same;
`mindswap verify` shows what the compiler did.) Checked where it is known which operator uses which.

PASS:
    swap_config:      {swap: True, op_swap: [{op_name: 'feed_forward\\.mul', backward_prefetch: 10, layers: [0]}]}
    recompute_config: {select_recompute: {'feed_forward\\.w1': [0]}}

FAIL (w2 reads the output of mul):
    swap_config:      {swap: True, op_swap: [{op_name: 'feed_forward\\.mul', backward_prefetch: 10, layers: [0]}]}
    recompute_config: {select_recompute: {'feed_forward\\.w2': [0]}}
"""

from collections.abc import Iterator

from mindswap.check.context import Context
from mindswap.document.problem import Level, Problem
from mindswap.policy.model import Layers
from mindswap.policy.words import format_layers, format_names

ID = "recomputed-user"
LEVEL = Level.WARNING


def check(context: Context) -> Iterator[Problem]:
    """Every swap statement that names operators with a recomputed user."""
    coverage = context.coverage
    if coverage is None or not coverage.trees.uses:
        return
    for statement in context.settings.swap:
        found: dict[str, set[int]] = {}
        for kind, layers in coverage.layers_by_kind(statement.layers).items():
            swapped = coverage.operators(statement.pattern, kind)
            for layer in layers:
                recomputed = context.recomputed_operators(layer)
                for name in swapped - recomputed:
                    for user in recomputed.intersection(coverage.trees.uses.get(name, ())):
                        found.setdefault(f"{name} by {user}", set()).add(layer)
        if found:
            layers_text = format_layers(Layers(tuple(sorted(set().union(*found.values())))))
            message = (
                f"{statement.pattern_path}: recomputed operators use what this swaps in {layers_text} "
                f"({format_names(sorted(found))}); such a swap takes no effect by the specification, "
                f"though MindSpore 2.9 inserts the copies"
            )
            fix = "recompute neither or both, or swap the user instead"
            yield Problem(statement.pattern_location, ID, LEVEL, message, fix=fix)
