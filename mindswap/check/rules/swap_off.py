"""swap_config says more than `swap: False`, and none of it has an effect.

One warning at most, and never an error: with swap off nothing in swap_config may stop a run.

PASS:
    swap_config:
      swap: False

FAIL:
    swap_config:
      swap: False
      default_prefetch: 10
"""

from collections.abc import Iterator

from mindswap.check.context import Context
from mindswap.document.nodes import Node, key_text
from mindswap.document.problem import Level, Problem
from mindswap.policy.schema import PREFETCH_DEFAULT

ID = "swap-off"
LEVEL = Level.WARNING


def check(context: Context) -> Iterator[Problem]:
    """The first key of swap_config that says something, while swap is off."""
    section = context.document.get("swap_config")
    if section is None or section.entries is None or context.settings.is_swap_enabled or context.settings.misfits:
        return
    said = [entry for entry in section.unique_entries() if not _is_default(entry.key, entry.value)]
    if said:
        first = min(said, key=lambda entry: entry.location)
        state = "False" if section.get("swap") is not None else "not set"
        message = f"swap_config.{key_text(first.key)}: has no effect, because swap is {state}"
        yield Problem(first.location, ID, LEVEL, message, fix="write 'swap: True', or delete it")


def _is_default(key: object, node: Node) -> bool:
    if key == "default_prefetch":
        return node.value == PREFETCH_DEFAULT and not isinstance(node.value, bool)
    return key == "swap" or (key in ("layer_swap", "op_swap") and node.is_null)
