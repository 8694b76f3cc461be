"""A key in an entry of `layer_swap` or `op_swap` that upstream ignores, such as `backward_prefetch` of MindFormers 1.9.

One distance holds for all entries: `swap.default_prefetch`, in layers.

PASS:
    swap: {enable: True, default_prefetch: 2, layer_swap: [{layers: [0]}]}

FAIL:
    swap: {enable: True, layer_swap: [{layers: [0], backward_prefetch: 20}]}
"""

from collections.abc import Iterator

from mindswap.document.nodes import key_text
from mindswap.document.problem import Level, Problem
from mindswap.mindformers_2x.rule_context import Context
from mindswap.policy.words import closest_names

ID = "pynative-ignored-key"
LEVEL = Level.WARNING


def check(context: Context) -> Iterator[Problem]:
    """Every such key."""
    for unknown in context.settings.unknown_keys:
        if unknown.is_in_entry:
            name = key_text(unknown.entry.key)
            closest = closest_names(name, unknown.known, max_distance=2)
            fix = f"write '{closest[0]}'" if closest else "delete it"
            if name in ("backward_prefetch", "prefetch"):
                fix = "delete it, and set swap.default_prefetch (in layers, for all entries)"
            message = f"{unknown.path}: this key is not used by anything"
            yield Problem(unknown.entry.location, ID, LEVEL, message, ", ".join(unknown.known), fix)
