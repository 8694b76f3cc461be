"""Two policies layer by layer, operator by operator: the judge of every conversion."""

from mindswap.policy.cell_tree import LayerTrees
from mindswap.policy.model import Policy
from mindswap.policy.schema import RECOMPUTE_FLAGS
from mindswap.stage.applied import recomputed_operators

__all__ = ["first_difference"]

MAX_SHOWN = 3


def first_difference(before: Policy, after: Policy, num_layers: int, trees: LayerTrees | None) -> str:
    """What two policies do not recompute alike, in words; "" where they agree.

    Args:
        before, after: with swap on, or from `as_applied`.
        num_layers: layers of the model.
        trees: the layers; None compares whole layers and flags only.
    """
    for flag in RECOMPUTE_FLAGS:
        if getattr(before, flag) != getattr(after, flag):
            return f"{flag} is {getattr(before, flag)} before and {getattr(after, flag)} after"
    for index in range(num_layers):
        for name, part in (("recompute", "layer_recompute"), ("output_recompute", "output_recompute")):
            is_in = [index in getattr(policy, part) for policy in (before, after)]
            if is_in[0] != is_in[1]:
                return f"layer {index} is in {name} only {'before' if is_in[0] else 'after'}"
        if trees is None:
            continue
        old = recomputed_operators(before, index, trees.layers[index])
        new = recomputed_operators(after, index, trees.layers[index])
        for what, was, will_be in zip(("recomputed", "recomputed in communication"), old, new, strict=True):
            for only, when in ((set(was) - set(will_be), "before"), (set(will_be) - set(was), "after")):
                if only:
                    names = ", ".join(sorted(only)[:MAX_SHOWN]) + (", ..." if len(only) > MAX_SHOWN else "")
                    return f"in layer {index} only {when} {what}: {names}"
    return ""
