"""Two policies layer by layer, operator by operator: the judge of every conversion."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from operator import attrgetter
from typing import Any

from mindswap.policy.applied import recomputed_operators
from mindswap.policy.cell_tree import LayerTrees
from mindswap.policy.model import ENTRY_FIELDS, Layers, Policy
from mindswap.policy.schema import RECOMPUTE_FLAGS, SELECT_OPTIONS
from mindswap.policy.words import format_names


def first_difference(before: Policy, after: Policy, num_layers: int, trees: LayerTrees | None) -> str:
    """What two policies do not recompute alike, in words; "" where they agree.

    Args:
        before, after: with swap on, or from `as_applied`.
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
                    return f"in layer {index} only {when} {what}: {format_names(sorted(only))}"
    return ""


def change_layers(policy: Policy, change: Callable[[Layers], Layers], options: Iterable[str] = ENTRY_FIELDS) -> Policy:
    """The policy with every set of layers changed: of recompute, and of the entries of some options."""
    entries: dict[str, Any] = {
        option: tuple(replace(entry, layers=change(entry.layers)) for entry in getattr(policy, option))
        for option in options
    }
    whole, output = change(policy.layer_recompute), change(policy.output_recompute)
    return replace(policy, layer_recompute=whole, output_recompute=output, **entries)


def resolve_policy(policy: Policy, num_layers: int) -> Policy:
    """The policy with every set of layers written out and the operators sorted: equal ones do the same."""
    written = change_layers(policy, lambda layers: Layers(layers.resolve(num_layers)))
    by_name = attrgetter("pattern")
    entries: dict[str, Any] = {option: sorted(getattr(written, option), key=by_name) for option in SELECT_OPTIONS}
    return replace(written, **entries)
