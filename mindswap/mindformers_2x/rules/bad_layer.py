"""An element of a list of layers is neither a number nor an ascending range. No blanks, no minus, no `True`.

PASS:
    layers: [0, '2-3', 5-6]

FAIL:
    layers: ['0 - 3']
"""

import re
from collections.abc import Iterator

from mindswap.document.nodes import show
from mindswap.document.problem import Level, Problem
from mindswap.mindformers_2x.rule_context import Context
from mindswap.mindformers_2x.settings import Expect

ID = "pynative-bad-layer"
LEVEL = Level.ERROR

RANGE = re.compile(r"\s*(\d{1,6})\s*(?:-|~|:|to|\.\.+)\s*(\d{1,6})\s*", re.ASCII)


def check(context: Context) -> Iterator[Problem]:
    """Every such element, and what it may be meant to be."""
    for misfit in context.settings.misfits:
        if misfit.expect is Expect.LAYER:
            message = f"{misfit.path}: {show(misfit.node)} names no layers"
            yield Problem(
                misfit.node.location, ID, LEVEL, message, misfit.expect.value, _fix(misfit.node.value, context)
            )


def _fix(value: object, context: Context) -> str:
    if isinstance(value, float) and value.is_integer() and 0 <= value < 1e9:
        return f"write {int(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and value < 0 and context.num_layers is not None:
        meant = context.num_layers + value
        return f"count from the front: {meant}" if meant >= 0 else ""
    found = RANGE.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return ""
    low, high = sorted((int(found[1]), int(found[2])))
    return f"write '{low}-{high}'"
