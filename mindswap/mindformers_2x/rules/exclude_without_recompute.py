"""`exclude_op` has no effect, since `mode` is None. Upstream says so only where `recompute_comm` is enabled.

PASS:
    recompute: {mode: full, full_recompute_layer: [0], exclude_op: {mlp: [0]}}

FAIL:
    recompute: {mode: None, exclude_op: {mlp: [0]}}
"""

from collections.abc import Iterator

from mindswap.document.problem import Level, Problem
from mindswap.mindformers_2x.rule_context import Context

ID = "pynative-exclude-without-recompute"
LEVEL = Level.WARNING


def check(context: Context) -> Iterator[Problem]:
    """The key, if it says anything."""
    section = context.document.get("recompute")
    entry = section.entry("exclude_op") if section is not None else None
    if context.settings.mode == "None" and entry is not None and (entry.value.entries or entry.value.items):
        message = "recompute.exclude_op: has no effect, because mode is None"
        yield Problem(entry.location, ID, LEVEL, message, fix="delete it, or set mode: full or select")
