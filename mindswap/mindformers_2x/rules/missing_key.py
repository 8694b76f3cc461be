"""An entry of `layer_swap` needs `layers`, one of `op_swap` needs `op_name` and `layers`.

PASS:
    op_swap: [{op_name: mlp, layers: [0]}]

FAIL:
    op_swap: [{op_name: mlp}]
"""

from collections.abc import Iterator

from mindswap.document.problem import Level, Problem
from mindswap.mindformers_2x.rule_context import Context

ID = "pynative-missing-key"
LEVEL = Level.ERROR


def check(context: Context) -> Iterator[Problem]:
    """Every key that is missing, at the entry."""
    for missing in context.settings.missing_keys:
        message = f"{missing.path}: '{missing.key}' is missing"
        example = "layers: ['0-2']" if missing.key == "layers" else "op_name: mlp"
        yield Problem(missing.node.location, ID, LEVEL, message, fix=f"add '{example}'")
