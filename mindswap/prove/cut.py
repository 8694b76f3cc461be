"""A policy for a model with fewer layers: each layer that is left does what the layer did that it stands for. Pure."""

from dataclasses import replace

from mindswap.policy.model import Layers, OpRecompute, Policy

__all__ = ["cut_policy", "kept_layers"]


def kept_layers(num_layers: int, num_kept: int) -> tuple[int, ...]:
    """Layers of the whole model that the layers of the cut one stand for: the first, the last, evenly between.

    Of 32 layers, 4 stand for 0, 10, 21 and 31.
    """
    if num_kept == 1:
        return (0,)
    return tuple((2 * i * (num_layers - 1) + num_kept - 1) // (2 * (num_kept - 1)) for i in range(num_kept))


def cut_policy(policy: Policy, kept: tuple[int, ...]) -> Policy:
    """The policy for the layers that are left; entries without a layer go.

    Args:
        policy: in layer indices.
        kept: layer of the whole model that each layer stands for.
    """

    def cut(layers: Layers) -> Layers:
        if layers.indices is None:
            return layers
        return Layers(tuple(i for i, layer in enumerate(kept) if layer in layers))

    def select(entries: tuple[OpRecompute, ...]) -> tuple[OpRecompute, ...]:
        cut_entries = (replace(entry, layers=cut(entry.layers)) for entry in entries)
        return tuple(entry for entry in cut_entries if entry.layers)

    op_swap = tuple(replace(entry, layers=cut(entry.layers)) for entry in policy.op_swap)
    layer_swap = tuple(replace(entry, layers=cut(entry.layers)) for entry in policy.layer_swap)
    return replace(
        policy,
        op_swap=tuple(entry for entry in op_swap if entry.layers),
        layer_swap=tuple(entry for entry in layer_swap if entry.layers),
        layer_recompute=cut(policy.layer_recompute),
        select_recompute=select(policy.select_recompute),
        select_comm_recompute=select(policy.select_comm_recompute),
        select_recompute_exclude=select(policy.select_recompute_exclude),
        select_comm_recompute_exclude=select(policy.select_comm_recompute_exclude),
        output_recompute=cut(policy.output_recompute),
    )
