"""`default_prefetch` is no integer from 1 to the number of layers less one; `True` and `'1'` are none.

PASS:
    swap: {enable: True, default_prefetch: 1}

FAIL:
    swap: {enable: True, default_prefetch: 0}
"""

from collections.abc import Iterator

from mindswap.document.nodes import show
from mindswap.document.problem import Level, Problem
from mindswap.mindformers_2x.rule_context import Context
from mindswap.mindformers_2x.settings import Expect

ID = "pynative-bad-prefetch"
LEVEL = Level.ERROR


def check(context: Context) -> Iterator[Problem]:
    """A value of the wrong type, or out of range."""
    limit = context.num_layers
    allowed = f"an integer from 1 to {max(limit - 1, 1)} (layers)" if limit is not None else Expect.PREFETCH.value
    for misfit in context.settings.misfits:
        if misfit.expect is Expect.PREFETCH:
            message = f"{misfit.path}: {show(misfit.node)} is no distance in layers"
            yield Problem(misfit.node.location, ID, LEVEL, message, allowed, "default_prefetch: 1")
    prefetch = context.settings.prefetch
    node = context.document.get("swap", "default_prefetch") or context.document.get("swap", "enable")
    if context.settings.is_swap_enabled and limit is not None and prefetch is not None and prefetch >= limit:
        assert node is not None
        if limit == 1:
            message, allowed, fix = (
                "swap: a model of one layer cannot be swapped",
                "two layers or more",
                "enable: False",
            )
        else:
            message = f"swap.default_prefetch: {prefetch} layers, but the model has {limit}"
            fix = "default_prefetch: 1"
        yield Problem(node.location, ID, LEVEL, message, allowed, fix)
