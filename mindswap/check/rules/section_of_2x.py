"""`swap`, `recompute` or `recompute_comm` of MindFormers 2.x stands in a file of MindFormers 1.9: nothing reads it.

An error where the section asks for something, a warning where it is switched off.

PASS:
    swap_config: {swap: True}

FAIL:
    swap: {enable: True, layer_swap: [{layers: ['0-2']}]}
"""

from collections.abc import Iterator

from mindswap.check.context import Context
from mindswap.document.nodes import Node
from mindswap.document.problem import Level, Problem

ID = "section-of-2x"
LEVEL = Level.ERROR

# By section the key that switches it on, and its value for "off".
SWITCHES = {"swap": ("enable", False), "recompute": ("mode", "None"), "recompute_comm": ("enable", False)}


def check(context: Context) -> Iterator[Problem]:
    """Each such section."""
    root = context.document.root
    for name, (switch, off) in SWITCHES.items():
        entry = root.entry(name) if root is not None else None
        if entry is not None and _is_section(entry.value, switch):
            node = entry.value.get(switch)
            level = LEVEL if node is not None and node.value != off else Level.WARNING
            message = f"{name}: a section of MindFormers 2.x; MindFormers 1.9 does not read it, so it has no effect"
            allowed = "swap_config, recompute_config (2.x files have `training` and `parallelism`, and no `trainer`)"
            fix = f"mindswap convert --to 1.9 {context.document.file}"
            yield Problem(entry.location, ID, level, message, allowed, fix)


def _is_section(node: Node, switch: str) -> bool:
    return node.get(switch) is not None or node.get("layer_swap") is not None or node.get("op_swap") is not None
