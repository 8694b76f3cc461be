"""A key that nothing reads stands in swap_config, in one of its entries, or in recompute_config.

A misspelt `swap_config` at the top level is a warning: MindFormers lets any key stand there.

PASS:
    swap_config:
      swap: True
      default_prefetch: 10

FAIL:
    swap_config:
      swap: True
      default_prefech: 10
"""

from collections.abc import Iterator

from mindswap.check.context import Context
from mindswap.document.nodes import Entry, Node, key_text, show
from mindswap.document.problem import Level, Problem
from mindswap.policy.words import closest_names

ID = "unknown-key"
LEVEL = Level.ERROR

SECTIONS = ("swap_config", "recompute_config")


def check(context: Context) -> Iterator[Problem]:
    """Every unknown key, with the closest one that exists."""
    level = LEVEL if context.settings.is_swap_enabled else Level.WARNING
    for unknown in context.settings.unknown_keys:
        meant_key = context.renamed_keys.get(id(unknown))
        if meant_key is not None:
            message = f"{unknown.path}: no such key; '{meant_key.key}' is missing"
            fix = f"rename it: {meant_key.key}: {show(unknown.entry.value)}"
            yield Problem(unknown.entry.location, ID, level, message, ", ".join(unknown.known), fix)
            continue
        closest = closest_names(key_text(unknown.entry.key), unknown.known, max_distance=4)
        fix = f"write '{closest[0]}'" if closest else "delete it"
        allowed = ", ".join(unknown.known)
        yield Problem(unknown.entry.location, ID, level, f"{unknown.path}: no such key", allowed, fix)
    root = context.document.root
    if root is None:
        return
    for entry in root.unique_entries():
        meant = closest_names(key_text(entry.key), SECTIONS, max_distance=3)
        if meant and entry.key not in SECTIONS and root.get(meant[0]) is None:
            message = f"{key_text(entry.key)}: this key is not used by anything"
            yield Problem(entry.location, ID, Level.WARNING, message, fix=f"write '{meant[0]}'")
        elif entry.key not in SECTIONS:
            yield from _misplaced(root, entry)


def _misplaced(root: Node, entry: Entry) -> Iterator[Problem]:
    """Our sections below another key, and a mapping that has their keys under another name."""
    name = key_text(entry.key)
    for section in SECTIONS:
        below = entry.value.entry(section)
        if below is not None and root.get(section) is None:
            message = f"{name}.{section}: is not used here"
            yield Problem(below.location, ID, Level.WARNING, message, fix=f"move '{section}' to the top level")
    switch = entry.value.get("swap")
    # `optimizer` may have a key `swap`, too.
    is_like = "swap" in name.lower() or any(entry.value.entry(key) for key in ("layer_swap", "op_swap"))
    if root.get("swap_config") is None and is_like and switch is not None and isinstance(switch.value, bool):
        message = f"{name}: is not used; it has keys of swap_config"
        yield Problem(entry.location, ID, Level.WARNING, message, fix="write 'swap_config:'")
