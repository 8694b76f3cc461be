"""A list of layers is not strictly ascending, or names a layer twice.

PASS:
    layers: [0, '2-3']

FAIL:
    layers: ['2-3', 0]
"""

from collections.abc import Iterator

from mindswap.document.problem import Level, Problem
from mindswap.mindformers_2x.layers import to_specs
from mindswap.mindformers_2x.rule_context import Context

ID = "pynative-layer-order"
LEVEL = Level.ERROR


def check(context: Context) -> Iterator[Problem]:
    """The first element of each list that does not stand behind the one before."""
    for target in context.settings.targets:
        for before, spec in zip(target.specs, target.specs[1:], strict=False):
            if spec.first <= before.last:
                what = "is named twice" if spec.last >= before.first else "stands behind a larger one"
                message = f"{spec.path}: layer {spec.first} {what} (before it: {before.text})"
                fix = f"write {to_specs(context.settings.layers_of(target))}"
                yield Problem(spec.location, ID, LEVEL, message, "strictly ascending, each layer once", fix)
                break
