"""A prefetch distance is no positive integer.

`backward_prefetch` and `default_prefetch` count operators, so 1 is the least; `True` is no integer.

PASS:
    layer_swap:
      - {backward_prefetch: 20, layers: [0]}

FAIL:
    layer_swap:
      - {backward_prefetch: 0, layers: [0]}
"""

import re
from collections.abc import Iterator

from mindswap.check.context import Context
from mindswap.document.nodes import show
from mindswap.document.problem import Level, Problem
from mindswap.policy.schema import Expect

_NUMBER = re.compile(r"\d+(?:\.\d*)?(?:[eE]\+?\d)?", re.ASCII)

ID = "bad-prefetch"
LEVEL = Level.ERROR


def check(context: Context) -> Iterator[Problem]:
    """Every prefetch distance that is no positive integer."""
    for misfit in context.settings.misfits:
        if misfit.expect is Expect.PREFETCH:
            value = misfit.node.value
            is_integer = isinstance(value, int) and not isinstance(value, bool)
            reason = "is out of range" if is_integer else f"is {misfit.node.kind}"
            message = f"{misfit.path}: {show(misfit.node)} {reason}"
            key = misfit.path.rpartition(".")[2]
            yield Problem(misfit.node.location, ID, LEVEL, message, misfit.expect.value, f"{key}: {_meant(value)}")


def _meant(value: object) -> int:
    """The number that was probably meant; 1, the default, where there is no telling."""
    if isinstance(value, str) and len(value) < 10 and _NUMBER.fullmatch(value.strip()):
        value = float(value)  # 1e2 is a string in YAML 1.1
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 1 <= value < 2**31:
        return int(value)
    return 1
