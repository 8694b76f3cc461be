"""ENABLE_LAZY_INLINE_NO_PIPELINE is 0 and there is no pipeline parallelism: nothing would be swapped.

Swap needs lazy inline, which mindswap switches on itself unless this variable forbids it.

PASS:
    export ENABLE_LAZY_INLINE_NO_PIPELINE=1     (or not set)

FAIL (parallel_config.pipeline_stage: 1):
    export ENABLE_LAZY_INLINE_NO_PIPELINE=0
"""

from collections.abc import Iterator

from mindswap.check.context import Context
from mindswap.check.rules.device_target import ASCEND
from mindswap.document.problem import Level, Location, Problem

ID = "lazy-inline-env"
LEVEL = Level.ERROR

VARIABLE = "ENABLE_LAZY_INLINE_NO_PIPELINE"


def check(context: Context) -> Iterator[Problem]:
    """The variable, if it forbids what swap needs."""
    if not context.settings.is_swap_enabled or context.settings.pipeline.num_stages > 1:
        return
    device = context.document.get("context", "device_target")
    is_ascend = device is None or device.is_null or device.value == ASCEND
    if is_ascend and context.environ.get(VARIABLE, "").strip() == "0":
        message = f"{VARIABLE}: 0 switches lazy inline off, and without pipeline stages swap needs it"
        yield Problem(Location("environment"), ID, LEVEL, message, "1, or not set", f"export {VARIABLE}=1")
