"""An operator is both swapped and recomputed: it is recomputed, and its swap has no effect.

Found also where one of the two names a cell and the other an operator inside it. Operators that an
exclude option takes out of recomputation do not count.

PASS:
    swap_config:      {swap: True, op_swap: [{op_name: attention, backward_prefetch: 10, layers: [0]}]}
    recompute_config: {select_recompute: {feed_forward: [0]}}

FAIL (wq is in attention):
    swap_config:      {swap: True, op_swap: [{op_name: attention, backward_prefetch: 10, layers: [0]}]}
    recompute_config: {select_recompute: {'attention\\.wq': [0]}}
"""

from collections.abc import Iterator

from mindswap.check.context import Context
from mindswap.document.problem import Level, Problem
from mindswap.policy.words import format_layers, format_names

ID = "recompute-wins"
LEVEL = Level.WARNING


def check(context: Context) -> Iterator[Problem]:
    """Every swap statement with each recompute statement that takes operators from it."""
    recompute = (*context.settings.of("recompute"), *context.settings.of("select_recompute"))
    for swap, winner, meeting in context.meetings(context.settings.swap, recompute):
        operators = [name for name in meeting.operators if not context.is_excluded(name, meeting.layers)]
        if meeting.operators and not operators:
            continue
        what = format_names(operators) if operators else "what they share"
        message = (
            f"{swap.pattern_path}: {winner.path} ({winner.location}) recomputes {what} in "
            f"{format_layers(meeting.layers)}, so swap has no effect there"
        )
        fix = f"take {format_layers(meeting.layers)} out of one of the two"
        if winner.option == "recompute" and winner.layers.indices is None:
            fix = "recompute: False, or delete swap_config: every layer is recomputed, so nothing is swapped"
        yield Problem(swap.pattern_location, ID, LEVEL, message, fix=fix)
