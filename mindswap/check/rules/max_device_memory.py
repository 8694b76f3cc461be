"""`context.max_device_memory` is not as MindSpore takes it, or below the memory that steps are planned for.

MindSpore takes a string of digits and `GB`, which is GiB there. Plans and simulations use the smaller of it and of
what the device has; where `mindswap.memory` says more, a plan for that would run out of memory. `mindswap plan
--memory` writes such a budget there.

PASS:
    context:
      max_device_memory: "58GB"

FAIL:
    context:
      max_device_memory: "58 GiB"
"""

from collections.abc import Iterator

from mindswap.check.context import Context
from mindswap.config.device_memory import ALLOWED, PATH, is_device_memory, read_device_memory
from mindswap.document.nodes import show
from mindswap.document.problem import Level, Problem
from mindswap.units import format_bytes, parse_bytes

ID = "max-device-memory"
LEVEL = Level.ERROR


def check(context: Context) -> Iterator[Problem]:
    """A value that MindSpore refuses, and a budget above it."""
    node = context.document.get(*PATH.split("."))
    if node is not None and not node.is_null and not is_device_memory(node.value):
        level = LEVEL if context.settings.is_swap_enabled else Level.WARNING
        yield Problem(node.location, ID, level, f"{PATH}: {show(node)}: MindSpore stops at it", ALLOWED)
    limit = read_device_memory(context.document)
    budget = context.document.get("mindswap", "memory")
    if limit is None or budget is None or not isinstance(budget.value, str):
        return
    try:
        asked_bytes = parse_bytes(budget.value)
    except ValueError:
        return  # said with the figures of the device
    if asked_bytes > limit.size_bytes:
        allowed = format_bytes(limit.size_bytes)
        message = f"mindswap.memory: {show(budget)} is more than the {allowed} of {PATH} ({node.location})"  # type: ignore[union-attr]
        enough = f"{-(-asked_bytes // 2**30)}GB"
        fix = f'{PATH}: "{enough}", or memory: {allowed} and mindswap plan again'
        yield Problem(budget.location, ID, Level.WARNING, message, f"at most {allowed}", fix)
