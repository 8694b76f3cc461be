"""A list of layers is empty, so its entry means nothing. Upstream accepts it without a word.

PASS:
    op_swap: [{op_name: mlp, layers: [0]}]

FAIL:
    op_swap: [{op_name: mlp, layers: []}]
"""

from collections.abc import Iterator

from mindswap.document.problem import Level, Problem
from mindswap.mindformers_2x.rule_context import Context
from mindswap.mindformers_2x.settings import Expect

ID = "pynative-no-layers"
LEVEL = Level.WARNING


def check(context: Context) -> Iterator[Problem]:
    """Every empty list, unless its elements could not be read."""
    wrong = {m.path.rpartition("[")[0] for m in context.settings.misfits if m.expect is Expect.LAYER}
    wrong |= {misfit.path for misfit in context.settings.misfits}
    for target in context.settings.targets:
        if not target.specs and target.layers_path not in wrong and target.option != "full_recompute_layer":
            message = f"{target.layers_path}: the list is empty, so the entry has no effect"
            yield Problem(target.layers_location, ID, LEVEL, message, fix="name layers, or delete the entry")
