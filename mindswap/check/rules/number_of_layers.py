"""`model.model_config.num_layers` is written, and is no number of layers.

MindFormers stops at it, or at what follows from it, and without it layers and operator names cannot be checked.

PASS:
    model:
      model_config:
        num_layers: 32

FAIL:
    model:
      model_config:
        num_layers: "32"
"""

from collections.abc import Iterator

from mindswap.check.context import Context
from mindswap.document.nodes import show
from mindswap.document.problem import Level, Problem
from mindswap.policy.read import NUM_LAYERS_KEYS, find_num_layers
from mindswap.policy.schema import MAX_NUM_LAYERS

ID = "number-of-layers"
LEVEL = Level.ERROR


def check(context: Context) -> Iterator[Problem]:
    """The first of the keys that is written, if none of them is a number of layers."""
    if find_num_layers(context.document) is not None:
        return
    for key in NUM_LAYERS_KEYS:
        node = context.document.get("model", "model_config", key)
        if node is not None and not node.is_null:
            level = LEVEL if context.settings.is_swap_enabled else Level.WARNING
            number = str(node.value).strip() if isinstance(node.value, (str, float)) else ""
            whole = number.removesuffix(".0")
            fix = f"{key}: {int(whole)}" if whole.isdecimal() and 1 <= int(whole[:6]) <= MAX_NUM_LAYERS else ""
            what = f"is {node.kind}" if node.kind != "an integer" else "is out of range"
            message = f"model.model_config.{key}: {show(node)} {what}"
            yield Problem(node.location, ID, level, message, f"an integer, 1 to {MAX_NUM_LAYERS}", fix)
            return
