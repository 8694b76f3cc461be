"""Two entries of `op_swap` have the same `op_name`; the last one wins, and the layers of the others are dropped.

PASS:
    swap: {enable: True, op_swap: [{op_name: mlp, layers: [0, 2]}]}

FAIL:
    swap: {enable: True, op_swap: [{op_name: mlp, layers: [0]}, {op_name: mlp, layers: [2]}]}
"""

from collections.abc import Iterator

from mindswap.document.problem import Level, Problem
from mindswap.mindformers_2x.layers import to_specs
from mindswap.mindformers_2x.rule_context import Context
from mindswap.mindformers_2x.settings import Target

ID = "pynative-repeated-op-name"
LEVEL = Level.ERROR


def check(context: Context) -> Iterator[Problem]:
    """Every entry that a later one replaces, at the one that is lost."""
    by_name: dict[str | None, list[Target]] = {}
    for entry in context.settings.of("op_swap"):
        by_name.setdefault(entry.pattern, []).append(entry)
    for name, entries in by_name.items():
        layers = {index for entry in entries for index in context.settings.layers_of(entry)}
        for lost in entries[:-1]:
            last = entries[-1]
            message = f"{lost.path}: has no effect; {last.path} ({last.location}) has the same op_name '{name}'"
            fix = f"one entry for all of them: layers: {to_specs(layers)}"
            yield Problem(lost.location, ID, LEVEL, message, "each op_name once", fix)
