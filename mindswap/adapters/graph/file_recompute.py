"""MindFormers' own recompute (swap disabled), applied to a network of some layers as in the full model.

MindFormers counts layers by pipeline stage, so it would recompute other layers in a network of fewer layers. Here the
object that sets recompute on the full model (`LayerSetting`) sets each layer under its index in that model.
"""

import contextlib
import importlib
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mindspore import nn

from mindswap.adapters.graph.apply import iterate_primitives, read_tree
from mindswap.adapters.graph.frozen_weights import LayerTraining, read_layer_training
from mindswap.adapters.versions import replaced
from mindswap.policy.cell_tree import CellNode

# Attributes set by `Cell.recompute` and `Primitive.recompute` of MindSpore (nn/cell.py, ops/primitive.py).
ATTRIBUTES = ("recompute", "recompute_comm_op", "slice_activation")
SCOPE = "recompute_"
# Module with the `LayerSetting` of newer models.
NEWER_SETTING = "mindformers.parallel_core.training_graph.transformer.utils"
# Methods of `LayerSetting` that `with_model_recompute` needs: mindformers 1.8 and later have both, 1.6 and 1.7 the
# second.
METHODS = ("set_recompute", "_format_recompute_list")


@dataclass(frozen=True)
class MindFormersRecompute:
    """MindFormers' settings of the full model."""

    setting: Any  # object that sets recompute by layer index; None if it cannot do so for single layers
    trees: tuple[CellNode, ...]  # cell trees of the layers
    training: tuple[LayerTraining, ...]  # trained part of each layer


def has_model_layer_kinds(model: Sequence[CellNode], indices: Sequence[int], trees: Sequence[CellNode]) -> bool:
    """Return whether two layers built alone are equal exactly if the corresponding layers of the model are.

    Some models derive the kind of a layer from its index, which differs in a truncated network.
    """
    pairs = {(model[index], tree) for index, tree in zip(indices, trees, strict=True)}
    return len(pairs) == len({in_model for in_model, _ in pairs}) == len({alone for _, alone in pairs})


def read_mindformers_recompute(network: nn.Cell, layers: Sequence[nn.Cell]) -> MindFormersRecompute:
    """Return MindFormers' settings of a full model, built with swap disabled and not compiled."""
    settings = (getattr(cell, "layer_setting", None) for _, cell in network.cells_and_names())
    setting = next((layer_setting for layer_setting in settings if layer_setting is not None), None)
    has_layer_methods = all(hasattr(setting, method) for method in METHODS)
    return MindFormersRecompute(
        setting if has_layer_methods else None,
        tuple(read_tree(layer) for layer in layers),
        read_layer_training(network, layers),
    )


def recompute_settings(layer: nn.Cell) -> tuple[Hashable, ...]:
    """Return all recompute settings of a layer in a comparable form; layers with equal settings compile alike."""
    cells = tuple(
        name for name, cell in layer.cells_and_names() if str(getattr(cell, "_scope", None)).startswith(SCOPE)
    )
    primitives = tuple((path, _recompute_attributes(primitive)) for path, primitive in iterate_primitives(layer))
    weights = tuple(
        name
        for name, weight in layer.parameters_and_names()
        if getattr(weight, "parallel_optimizer_comm_recompute", False)
    )
    return cells, primitives, weights


def _recompute_attributes(primitive: Any) -> tuple[tuple[str, Hashable], ...]:
    return tuple((name, primitive.attrs[name]) for name in ATTRIBUTES if name in primitive.attrs)


@contextlib.contextmanager
def with_model_recompute(recompute: MindFormersRecompute, indices: Sequence[int]) -> Iterator[None]:
    """Set recompute on the layers of a truncated network as on the full model, inside the block.

    Args:
        recompute: settings of the full model.
        indices: index in the model of each layer that is built.
    """
    kind = type(recompute.setting)
    of_layer = kind.set_recompute

    def set_recompute(self, layer: nn.Cell, layer_id: int) -> None:
        of_layer(recompute.setting, layer, indices[layer_id])

    def no_counts(self, counts: Any) -> list[list[int]]:
        """Ignore the counts of the full model, which do not fit a truncated network."""
        return [[0] * len(row) for row in self.layer_list.tolist()]

    with replaced(kind, set_recompute=set_recompute, _format_recompute_list=no_counts):
        yield


@contextlib.contextmanager
def recompute_by_stage(num_stages: int, num_chunks: int, offset: object) -> Iterator[None]:
    """Set recompute by the configured stages for a newer model that is built on one stage, inside the block.

    With swap disabled the configuration has one count for each stage and chunk.

    Args:
        num_stages: pipeline stages (`parallel_config.pipeline_stage`).
        num_chunks: virtual chunks of each stage, used with interleaving.
        offset: extra layers of each stage (`model_config.offset`).
    """
    kind = importlib.import_module(NEWER_SETTING).LayerSetting
    original = kind.__init__

    def by_stage(self, num_layers: int, _: Any, parallel_config: Any, *__: Any) -> None:
        original(self, num_layers, offset, parallel_config, num_chunks, stage_num=num_stages)

    with replaced(kind, __init__=by_stage):
        yield
