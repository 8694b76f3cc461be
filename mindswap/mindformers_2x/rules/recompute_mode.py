"""`recompute.mode` is none of the three words. `None` is the bare word; `null` and `~` are refused.

PASS:
    recompute: {mode: None}

FAIL:
    recompute: {mode: null}
"""

from collections.abc import Iterator

from mindswap.document.nodes import show
from mindswap.document.problem import Level, Problem
from mindswap.mindformers_2x.rule_context import Context
from mindswap.mindformers_2x.settings import Expect
from mindswap.policy.words import closest_names

ID = "pynative-recompute-mode"
LEVEL = Level.ERROR

FIXES = {"none": "None", "false": "None", "off": "None", "true": "full", "all": "full"}


def check(context: Context) -> Iterator[Problem]:
    """The value, and what it is probably meant to be."""
    for misfit in context.settings.misfits:
        if misfit.expect is Expect.MODE:
            meant = FIXES.get(str(misfit.node.value).strip().lower())
            if meant is None and isinstance(misfit.node.value, str):
                meant = next(iter(closest_names(misfit.node.value, ("None", "full", "select"), max_distance=3)), None)
            message = f"recompute.mode: {show(misfit.node)} is no mode"
            fix = f"mode: {meant}" if meant else ""
            yield Problem(misfit.node.location, ID, LEVEL, message, misfit.expect.value, fix)
