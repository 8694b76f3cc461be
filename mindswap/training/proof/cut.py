"""A policy for a model with fewer layers: each layer that is left does what the layer did that it stands for. Pure."""

from dataclasses import replace
from typing import Any

from mindswap.policy.convert import change_layers
from mindswap.policy.model import ENTRY_FIELDS, Layers, Policy


def kept_layers(num_layers: int, num_kept: int) -> tuple[int, ...]:
    """Layers of the whole model that the layers of the cut one stand for: the first, the last, evenly between.

    Of 32 layers, 4 stand for 0, 10, 21 and 31.
    """
    if num_kept == 1:
        return (0,)
    return tuple((2 * i * (num_layers - 1) + num_kept - 1) // (2 * (num_kept - 1)) for i in range(num_kept))


def cut_policy(policy: Policy, kept: tuple[int, ...]) -> Policy:
    """The policy for the layers that are left, of which each stands for one of `kept`; entries without a layer go."""

    def cut(layers: Layers) -> Layers:
        if layers.indices is None:
            return layers
        return Layers(tuple(i for i, layer in enumerate(kept) if layer in layers))

    changed = change_layers(policy, cut)
    left: dict[str, Any] = {name: [entry for entry in getattr(changed, name) if entry.layers] for name in ENTRY_FIELDS}
    return replace(changed, **left)
