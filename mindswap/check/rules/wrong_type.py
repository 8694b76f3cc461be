"""A value has a type that its place does not take.

Integers must be integers: `1.0` and `'1'` are none, and neither is `True`.

PASS:
    layer_swap:
      - {backward_prefetch: 20, layers: [0, 3]}

FAIL (`3.0` is a float):
    layer_swap:
      - {backward_prefetch: 20, layers: [0, 3.0]}
"""

import re
from collections.abc import Iterator

from mindswap.check.context import Context
from mindswap.document.nodes import show
from mindswap.document.problem import Level, Problem
from mindswap.policy.schema import Expect
from mindswap.policy.unread import Misfit
from mindswap.policy.words import last_key

_INDEX = re.compile(r"\d{1,6}(?:-\d{1,6})?", re.ASCII)

ID = "wrong-type"
LEVEL = Level.ERROR


def check(context: Context) -> Iterator[Problem]:
    """Values that do not fit; `swap` itself and prefetch distances have rules of their own."""
    for misfit in context.settings.misfits:
        if misfit.expect is not Expect.PREFETCH and misfit.path != "swap_config.swap":
            message = f"{misfit.path}: {_what(misfit)}"
            yield Problem(misfit.node.location, ID, LEVEL, message, misfit.expect.value, _fix(misfit))


def _what(misfit: Misfit) -> str:
    if misfit.expect is Expect.SMALL_SECTION:
        return "the section is too large"
    if misfit.node.value == "":
        return "the string is empty"
    if misfit.node.items == ():
        return "the list is empty"
    return f"{show(misfit.node)} is {misfit.node.kind}"


def _fix(misfit: Misfit) -> str:
    value = misfit.node.value
    key = last_key(misfit.path)
    if misfit.expect is Expect.LAYER_INDEX:
        if isinstance(value, bool):
            return f"{key}: True" if value else "0, if the first layer is meant"
        return _whole_number(value)
    if misfit.expect in (Expect.LAYERS, Expect.RECOMPUTE, Expect.SELECT):
        if _whole_number(value) or isinstance(value, int):
            return f"{key}: [{_whole_number(value) or value}]"
        if isinstance(value, str) and value.strip().lower() in ("true", "all", "every"):
            return f"{key}: True"
        parts = value.replace(" ", "").split(",") if isinstance(value, str) else []
        if len(parts) > 1 and all(_INDEX.fullmatch(part) for part in parts):
            return f"{key}: [{', '.join(part if part.isdecimal() else repr(part) for part in parts)}]"
        if value is None or (isinstance(value, str) and value.strip().lower() in ("false", "none")):
            return "" if misfit.expect is Expect.LAYERS else f"{key}: False"
        if isinstance(value, str) and misfit.expect is Expect.SELECT:
            return f"{key}: ['{value}']"
    if misfit.expect is Expect.BOOL and str(value).strip().lower() in ("true", "false"):
        return f"{key}: {str(value).strip().title()}"
    return ""


def _whole_number(value: object) -> str:
    """The integer that a float or string means; "" if it means none."""
    if isinstance(value, str) and len(value) < 10 and value.strip().isdecimal():
        return str(int(value))
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e9:
        return str(int(value))
    return ""
