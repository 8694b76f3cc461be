"""Two policies layer by layer, operator by operator: the judge of every conversion."""

from dataclasses import replace

from mindswap.policy.cell_tree import LayerTrees
from mindswap.policy.model import Layers, OpRecompute, Policy
from mindswap.policy.schema import RECOMPUTE_FLAGS
from mindswap.stage.applied import recomputed_operators

__all__ = ["first_difference", "resolve_policy"]

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


def resolve_policy(policy: Policy, num_layers: int) -> Policy:
    """The policy with every set of layers written out and the operators sorted: equal ones do the same."""

    def resolve(layers: Layers) -> Layers:
        return Layers(layers.resolve(num_layers))

    def resolve_all(entries: tuple[OpRecompute, ...]) -> tuple[OpRecompute, ...]:
        return tuple(OpRecompute(e.pattern, resolve(e.layers)) for e in sorted(entries, key=lambda e: e.pattern))

    return replace(
        policy,
        layer_swap=tuple(replace(entry, layers=resolve(entry.layers)) for entry in policy.layer_swap),
        op_swap=tuple(replace(entry, layers=resolve(entry.layers)) for entry in policy.op_swap),
        layer_recompute=resolve(policy.layer_recompute),
        select_recompute=resolve_all(policy.select_recompute),
        select_comm_recompute=resolve_all(policy.select_comm_recompute),
        select_recompute_exclude=resolve_all(policy.select_recompute_exclude),
        select_comm_recompute_exclude=resolve_all(policy.select_comm_recompute_exclude),
        output_recompute=resolve(policy.output_recompute),
    )
