"""`swap_config` or `recompute_config` of MindFormers 1.9 stands in a 2.x file: nothing reads it, and nothing says so.

PASS:
    swap: {enable: True, layer_swap: [{layers: ['0-2']}]}

FAIL:
    swap_config: {swap: True, layer_swap: [{backward_prefetch: 1, layers: [0, 1, 2]}]}
"""

from collections.abc import Iterator

from mindswap.document.problem import Level, Problem
from mindswap.mindformers_2x.rule_context import Context

ID = "pynative-section-of-graph-mode"
LEVEL = Level.ERROR

SECTIONS = ("swap_config", "recompute_config")


def check(context: Context) -> Iterator[Problem]:
    """Each of the two sections."""
    root = context.document.root
    for name in SECTIONS:
        entry = root.entry(name) if root is not None else None
        if entry is not None:
            message = f"{name}: a section of MindFormers 1.9; MindFormers 2.x does not read it, so it has no effect"
            fix = f"mindswap convert --to 2.x {context.document.file}"
            yield Problem(entry.location, ID, LEVEL, message, "swap, recompute, recompute_comm", fix)
