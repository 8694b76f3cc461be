"""jit_level is neither O0 nor O1: swap exists only there.

PASS:
    context:
      jit_config:
        jit_level: "O1"

FAIL:
    context:
      jit_config:
        jit_level: "O2"
"""

from collections.abc import Iterator

from mindswap.check.context import Context
from mindswap.config.mode import is_pynative
from mindswap.document.nodes import show
from mindswap.document.problem import Level, Problem

ID = "jit-level"
LEVEL = Level.ERROR

PLACES = (("context", "jit_config", "jit_level"), ("context", "jit_level"))


def check(context: Context) -> Iterator[Problem]:
    """The level at either of its places, if swap is on and it is neither O0 nor O1."""
    if not context.settings.is_swap_enabled or is_pynative(context.document):
        return
    for place in PLACES:
        node = context.document.get(*place)
        if node is not None and not node.is_null and node.value not in ("O0", "O1"):
            message = f"{'.'.join(place)}: {show(node)}, but swap needs O0 or O1"
            yield Problem(node.location, ID, LEVEL, message, "'O0' or 'O1'", 'jit_level: "O1"')
