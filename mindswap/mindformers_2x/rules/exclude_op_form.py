"""`exclude_op` is a list: that was its form in MindFormers 2.0.0; since 2.1.0 it is a mapping of paths to layers.

PASS:
    recompute: {mode: full, full_recompute_layer: [0], exclude_op: {mlp: [0]}}

FAIL:
    recompute: {mode: full, full_recompute_layer: [0], exclude_op: [MatMul]}
"""

from collections.abc import Iterator

from mindswap.document.nodes import show
from mindswap.document.problem import Level, Problem
from mindswap.mindformers_2x.rule_context import Context
from mindswap.mindformers_2x.settings import Expect

ID = "pynative-exclude-op-form"
LEVEL = Level.ERROR


def check(context: Context) -> Iterator[Problem]:
    """The value, where it is looked at."""
    for misfit in context.settings.misfits:
        if misfit.expect is Expect.EXCLUDE:
            message = f"{misfit.path}: {show(misfit.node)} is {misfit.node.kind}; mindformers 2.1.0 takes a mapping"
            fix = "exclude_op: {path: [layers]}; in 2.0.0 these were parts of operator names, which do not convert"
            yield Problem(misfit.node.location, ID, LEVEL, message, misfit.expect.value, fix)
