"""`select_module` has no effect with `mode: full`; not even its layers are looked at.

PASS:
    recompute: {mode: select, full_recompute_layer: [0], select_module: {mlp: [1]}}

FAIL:
    recompute: {mode: full, full_recompute_layer: [0], select_module: {mlp: [1]}}
"""

from collections.abc import Iterator

from mindswap.document.problem import Level, Problem
from mindswap.mindformers_2x.rule_context import Context

ID = "pynative-select-with-full"
LEVEL = Level.WARNING


def check(context: Context) -> Iterator[Problem]:
    """The key, if it says anything."""
    section = context.document.get("recompute")
    entry = section.entry("select_module") if section is not None else None
    if context.settings.mode == "full" and entry is not None and entry.value.entries:
        message = "recompute.select_module: has no effect with mode: full"
        fix = "write 'mode: select': full_recompute_layer acts there, too"
        yield Problem(entry.location, ID, LEVEL, message, fix=fix)
