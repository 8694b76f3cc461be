"""Choice of the layers of a MindFormers network that represent all others, so that few are compiled."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from mindswap.adapters.graph.apply import check_layers, read_tree
from mindswap.adapters.graph.build import build_network
from mindswap.adapters.graph.experts import layer_position
from mindswap.adapters.graph.file_recompute import MindFormersRecompute, read_mindformers_recompute, recompute_settings
from mindswap.adapters.graph.frozen_weights import LayerTraining, read_layer_training
from mindswap.adapters.graph.mindspore import find_layers
from mindswap.adapters.quiet import report_progress
from mindswap.config.weight_sharding import RankPlacement
from mindswap.errors import GraphError
from mindswap.graph.analysis.liveness import LayerSample, choose_representative_layers
from mindswap.policy.cell_tree import CellNode
from mindswap.policy.model import Policy
from mindswap.policy.resolve import resolve_layer


@dataclass(frozen=True)
class BuiltLayers:
    """The layers of a full model, built without a policy and not compiled."""

    trees: tuple[CellNode, ...]
    positions: tuple[int, ...]  # position class of each, from `layer_position`
    training: tuple[LayerTraining, ...]  # trained part of each


def build_layers(config_path: str) -> BuiltLayers:
    """Build the layers of the network of a YAML file, with swap enabled and no settings on them.

    Raises:
        GraphError: if MindFormers cannot build the network.
    """
    report_progress("building the network")
    network, _ = build_network(config_path, Policy(is_swap_enabled=True))
    layers = find_layers(network)
    return BuiltLayers(
        tuple(map(read_tree, layers)), tuple(map(layer_position, layers)), read_layer_training(network, layers)
    )


def choose_layers(
    policy: Policy, built: BuiltLayers, placement: RankPlacement | None = None, with_peak: bool = True
) -> LayerSample:
    """Choose the layers to compile so that all layers are known, under a policy with swap enabled.

    Args:
        policy: the policy.
        built: layers of the model.
        placement: consider only the layers on the stage of this rank, in `layer_map`, too.
        with_peak: see `choose_representative_layers`.
    """
    check_layers(policy, len(built.trees))
    indices = placement.layers if placement else tuple(range(len(built.trees)))
    if policy.output_recompute:  # all layers of a group are live in backward, which representatives do not show
        return LayerSample(indices, tuple(range(len(indices))))
    decided = {index: resolve_layer(policy, index, built.trees[index]) for index in indices}
    # Settings without effect do not distinguish layers.
    effective = {
        index: replace(decisions, layer_index=0, overridden=(), inactive=()) for index, decisions in decided.items()
    }
    layer_classes = [
        (decisions.layer, built.positions[index], built.training[index], decisions)
        for index, decisions in effective.items()
    ]
    return _sample_model_layers(layer_classes, indices, with_peak)


def choose_mindformers_layers(
    config_path: str, placement: RankPlacement | None, with_peak: bool
) -> tuple[LayerSample, MindFormersRecompute]:
    """Choose the layers to compile with swap disabled, and return MindFormers' own recompute."""
    report_progress("building the network")
    network, _ = build_network(config_path, Policy())
    layers = find_layers(network)
    mindformers_recompute = read_mindformers_recompute(network, layers)
    indices = placement.layers if placement else tuple(range(len(layers)))
    if mindformers_recompute.setting is None:
        require_all_layers(
            indices, mindformers_recompute.trees, "MindFormers cannot be asked what it recomputes in single layers"
        )
        return LayerSample(indices, indices), mindformers_recompute
    layer_classes = [
        (
            mindformers_recompute.trees[index],
            layer_position(layers[index]),
            mindformers_recompute.training[index],
            recompute_settings(layers[index]),
        )
        for index in indices
    ]
    return _sample_model_layers(layer_classes, indices, with_peak), mindformers_recompute


def require_all_layers(indices: Sequence[int], trees: Sequence[CellNode], reason: str) -> None:
    """Refuse to build the layers of one pipeline stage alone.

    Raises:
        GraphError: if these are not all layers of the model.
    """
    if len(indices) < len(trees):
        raise GraphError(
            f"--rank: the layers of one pipeline stage cannot be built alone: {reason} (this model)\n"
            "    fix: leave out --rank"
        )


def _sample_model_layers(kinds: Sequence[Hashable], indices: Sequence[int], with_peak: bool) -> LayerSample:
    """Choose representatives of some layers of the model, with their indices in the model."""
    sample = choose_representative_layers(kinds, with_peak)
    return replace(sample, indices=tuple(indices[position] for position in sample.indices))
