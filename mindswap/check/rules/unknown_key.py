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
from mindswap.document.nodes import key_text
from mindswap.document.problem import Level, Problem
from mindswap.policy.words import closest_names

ID = "unknown-key"
LEVEL = Level.ERROR

SECTIONS = ("swap_config", "recompute_config")


def check(context: Context) -> Iterator[Problem]:
    """Every unknown key, with the closest one that exists."""
    for unknown in context.settings.unknown_keys:
        closest = closest_names(key_text(unknown.entry.key), unknown.known, max_distance=4)
        fix = f"write '{closest[0]}'" if closest else "delete it"
        allowed = ", ".join(unknown.known)
        yield Problem(unknown.entry.location, ID, LEVEL, f"{unknown.path}: no such key", allowed, fix)
    root = context.document.root
    if root is None:
        return
    for entry in root.unique_entries():
        meant = closest_names(key_text(entry.key), SECTIONS, max_distance=3)
        if meant and entry.key not in SECTIONS and root.get(meant[0]) is None:
            message = f"{key_text(entry.key)}: nothing reads this key"
            yield Problem(entry.location, ID, Level.WARNING, message, fix=f"write '{meant[0]}'")
