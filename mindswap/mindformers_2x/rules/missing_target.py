"""A mode or switch needs a key that is missing or empty: upstream refuses that.

`mode: full` needs `full_recompute_layer`, `mode: select` needs `select_module`, `recompute_comm.enable` its
`select_module`.

PASS:
    recompute: {mode: full, full_recompute_layer: [0]}

FAIL:
    recompute: {mode: full}
"""

from collections.abc import Iterator

from mindswap.document.problem import Level, Problem
from mindswap.mindformers_2x.rule_context import Context

ID = "pynative-missing-target"
LEVEL = Level.ERROR


def check(context: Context) -> Iterator[Problem]:
    """Each of the three, at the mode or switch."""
    mode = context.settings.mode
    asked = []
    if mode in ("full", "select"):
        key = "full_recompute_layer" if mode == "full" else "select_module"
        asked.append(("recompute", "mode", key, f"mode is {mode}"))
    if context.settings.is_comm_enabled:
        asked.append(("recompute_comm", "enable", "select_module", "enable is True"))
    for section, switch, key, why in asked:
        node = context.document.get(section, key)
        if node is None or not (node.items or node.entries or node.value):
            place = context.document.get(section, switch)
            assert place is not None
            message = f"{section}.{key}: missing or empty, but {why}"
            example = f"{key}: ['0-3']" if key == "full_recompute_layer" else f"{key}: {{mlp: ['0-3']}}"
            yield Problem(place.location, ID, LEVEL, message, fix=f"add '{example}'")
