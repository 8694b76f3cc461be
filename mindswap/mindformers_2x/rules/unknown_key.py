"""A key in `swap`, `recompute` or `recompute_comm` that upstream does not know, or a section with a misspelt name.

Upstream refuses the first. The second has no effect, and nothing says so, since any section may stand at the top level.

PASS:
    swap: {enable: True, default_prefetch: 1}

FAIL:
    swap: {enable: True, default_prefech: 1}
"""

from collections.abc import Iterator

from mindswap.document.nodes import key_text
from mindswap.document.problem import Level, Problem
from mindswap.mindformers_2x.rule_context import Context
from mindswap.mindformers_2x.settings import SECTION_KEYS
from mindswap.policy.words import closest_names

ID = "pynative-unknown-key"
LEVEL = Level.ERROR


def check(context: Context) -> Iterator[Problem]:
    """Every unknown key, with the closest one that exists."""
    for unknown in context.settings.unknown_keys:
        if not unknown.is_in_entry:
            name = key_text(unknown.entry.key)
            closest = closest_names(name, unknown.known, max_distance=4)
            fix = f"write '{closest[0]}'" if closest else "delete it"
            fix = "write 'enable'" if name in ("swap", "enabled") else fix
            yield Problem(
                unknown.entry.location, ID, LEVEL, f"{unknown.path}: no such key", ", ".join(unknown.known), fix
            )
    root = context.document.root
    for entry in root.unique_entries() if root is not None else ():
        name = key_text(entry.key)
        meant = [n for n in closest_names(name, SECTION_KEYS, max_distance=2) if root is not None and not root.get(n)]
        if meant and name not in SECTION_KEYS:
            message = f"{name}: nothing reads this section"
            yield Problem(entry.location, ID, LEVEL, message, ", ".join(SECTION_KEYS), f"write '{meant[0]}'")
