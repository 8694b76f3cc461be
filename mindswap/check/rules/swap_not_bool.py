"""`swap` is neither True nor False.

PASS:
    swap_config:
      swap: True

FAIL (quotes make it a string):
    swap_config:
      swap: 'True'
"""

from collections.abc import Iterator

from mindswap.check.context import Context
from mindswap.document.nodes import show
from mindswap.document.problem import Level, Problem
from mindswap.policy.schema import Expect

ID = "swap-not-bool"
LEVEL = Level.ERROR


def check(context: Context) -> Iterator[Problem]:
    """The value of `swap`, if it is no bool."""
    for misfit in context.settings.misfits:
        if misfit.path == "swap_config.swap":
            message = f"{misfit.path}: {show(misfit.node)} is {misfit.node.kind}"
            fix = f"swap: {context.settings.is_swap_enabled}"
            yield Problem(misfit.node.location, ID, LEVEL, message, Expect.BOOL.value, fix)
