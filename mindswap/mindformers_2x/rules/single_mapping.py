"""`layer_swap` or `op_swap` is one mapping instead of a list. The docstring of 2.1.0 allows it, its validator does not.

PASS:
    swap: {enable: True, layer_swap: [{layers: [0]}]}

FAIL:
    swap: {enable: True, layer_swap: {layers: [0]}}
"""

from collections.abc import Iterator

from mindswap.document.nodes import show
from mindswap.document.problem import Level, Problem
from mindswap.mindformers_2x.rule_context import Context
from mindswap.mindformers_2x.settings import Expect
from mindswap.policy.words import last_key

ID = "pynative-single-mapping"
LEVEL = Level.ERROR


def check(context: Context) -> Iterator[Problem]:
    """Every such mapping, with the brackets it needs."""
    for misfit in context.settings.misfits:
        if misfit.expect is Expect.ENTRIES and misfit.node.entries is not None:
            message = f"{misfit.path}: one mapping; it must be a list"
            fix = f"{last_key(misfit.path)}: [{show(misfit.node)}]"
            yield Problem(misfit.node.location, ID, LEVEL, message, misfit.expect.value, fix)
