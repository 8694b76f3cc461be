"""A value has a type that its place does not take. Other rules have prefetch, mode, single mappings and `exclude_op`.

PASS:
    swap: {enable: True, layer_swap: [{layers: ['0-2']}]}

FAIL (`layers` must be a list; there is no `True` for every layer in 2.x):
    swap: {enable: True, layer_swap: [{layers: True}]}
"""

from collections.abc import Iterator

from mindswap.document.nodes import show
from mindswap.document.problem import Level, Problem
from mindswap.mindformers_2x.rule_context import Context
from mindswap.mindformers_2x.settings import Expect
from mindswap.policy.unread import Misfit
from mindswap.policy.words import last_key

ID = "pynative-wrong-type"
LEVEL = Level.ERROR

# What other rules report.
ELSEWHERE = (Expect.PREFETCH, Expect.MODE, Expect.EXCLUDE, Expect.LAYER)


def check(context: Context) -> Iterator[Problem]:
    """Values that do not fit and have no rule of their own."""
    for misfit in context.settings.misfits:
        is_single = misfit.expect is Expect.ENTRIES and misfit.node.entries is not None
        if misfit.expect not in ELSEWHERE and not is_single:
            what = "the string is empty" if misfit.node.value == "" else f"{show(misfit.node)} is {misfit.node.kind}"
            if misfit.expect is Expect.SMALL_SECTION:
                what = "the section is too large"
            message = f"{misfit.path}: {what}"
            yield Problem(misfit.node.location, ID, LEVEL, message, misfit.expect.value, _fix(misfit, context))


def _fix(misfit: Misfit, context: Context) -> str:
    key, value = last_key(misfit.path), misfit.node.value
    if misfit.expect is Expect.BOOL:
        return f"{key}: {str(value).strip().lower() in ('yes', 'on', 'true', '1', 'y')}"
    if misfit.expect is Expect.LAYERS:
        if value is True and context.num_layers is not None:
            kept = (context.settings.prefetch or 1) if misfit.path.startswith("swap") else 0
            return f"{key}: ['0-{max(context.num_layers - 1 - kept, 0)}']"
        return f"{key}: [{show(misfit.node)}]" if isinstance(value, (int, str)) and value is not True else ""
    if misfit.expect is Expect.PATTERN and misfit.node.items:
        return "one entry for each name"
    if misfit.expect is Expect.SECTION and misfit.path == "swap":
        return "swap: {enable: True, layer_swap: [{layers: [...]}]}" if value is True else "swap: {enable: False}"
    if misfit.expect is Expect.MODULES and misfit.node.items:
        return "write each path with its layers: {mlp: ['0-3']}"
    return ""
