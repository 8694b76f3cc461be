"""MindFormers' own recompute, which it sets with swap off, on a network of some layers as in the whole model.

MindFormers counts layers by pipeline stage, so in a network of fewer layers it would recompute others. Each layer of
that network is set by the object that sets the whole model (`LayerSetting`), under its number there.
"""

import contextlib
import importlib
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mindspore import nn

from mindswap.adapters.graph.apply import iterate_primitives, read_tree
from mindswap.adapters.versions import replaced
from mindswap.policy.cell_tree import CellNode

# What `Cell.recompute` and `Primitive.recompute` of MindSpore leave behind (nn/cell.py, ops/primitive.py).
ATTRIBUTES = ("recompute", "recompute_comm_op", "slice_activation")
SCOPE = "recompute_"
# Where newer models have their `LayerSetting`.
NEWER_SETTING = "mindformers.parallel_core.training_graph.transformer.utils"
# What `with_model_recompute` needs of `LayerSetting`: mindformers 1.8 and later have both, 1.6 and 1.7 the second.
METHODS = ("set_recompute", "_format_recompute_list")


@dataclass(frozen=True)
class MindFormersRecompute:
    """Settings of MindFormers on the whole model."""

    setting: Any  # the object that sets it, by the number of a layer; None where it cannot be asked for single layers
    trees: tuple[CellNode, ...]  # the layers


def has_model_layer_kinds(model: Sequence[CellNode], indices: Sequence[int], trees: Sequence[CellNode]) -> bool:
    """True if layers built alone are alike where those of the model of these numbers are, and differ where they do.

    Some models take the kind of a layer from its number, which is another one there.
    """
    pairs = {(model[index], tree) for index, tree in zip(indices, trees, strict=True)}
    return len(pairs) == len({whole for whole, _ in pairs}) == len({alone for _, alone in pairs})


def read_mindformers_recompute(network: nn.Cell, layers: Sequence[nn.Cell]) -> MindFormersRecompute:
    """From the network of a whole model with swap off, built and not compiled."""
    settings = (getattr(cell, "layer_setting", None) for _, cell in network.cells_and_names())
    setting = next((each for each in settings if each is not None), None)
    has_layer_methods = all(hasattr(setting, method) for method in METHODS)
    return MindFormersRecompute(setting if has_layer_methods else None, tuple(read_tree(layer) for layer in layers))


def recompute_settings(layer: nn.Cell) -> tuple[Hashable, ...]:
    """All recompute that is set on a layer, as attributes of its cells and primitives; equal means compiled alike."""
    cells = tuple(
        name for name, cell in layer.cells_and_names() if str(getattr(cell, "_scope", None)).startswith(SCOPE)
    )
    primitives = tuple(
        (path, tuple((name, primitive.attrs[name]) for name in ATTRIBUTES if name in primitive.attrs))
        for path, primitive in iterate_primitives(layer)
    )
    weights = tuple(
        name
        for name, weight in layer.parameters_and_names()
        if getattr(weight, "parallel_optimizer_comm_recompute", False)
    )
    return cells, primitives, weights


@contextlib.contextmanager
def with_model_recompute(recompute: MindFormersRecompute, indices: Sequence[int]) -> Iterator[None]:
    """While this lasts, a network of some layers gets on each what MindFormers sets on the layer of the whole model.

    `indices` are the numbers in the model of the layers that are built.
    """
    kind = type(recompute.setting)
    of_layer = kind.set_recompute

    def set_recompute(self, layer: nn.Cell, layer_id: int) -> None:
        of_layer(recompute.setting, layer, indices[layer_id])

    def no_counts(self, counts: Any) -> list[list[int]]:
        """Counts of the whole model do not fit the few layers; they are not read."""
        return [[0] * len(row) for row in self.layer_list.tolist()]

    with replaced(kind, set_recompute=set_recompute, _format_recompute_list=no_counts):
        yield


@contextlib.contextmanager
def recompute_by_stage(num_stages: int, num_chunks: int, offset: object) -> Iterator[None]:
    """While this lasts, a newer model that is built on one stage sets recompute by the stages of its configuration.

    The counts of a configuration with swap off are one for each stage and chunk.

    Args:
        num_stages: pipeline stages (`parallel_config.pipeline_stage`).
        num_chunks: virtual chunks of each stage, which act where interleaving is on.
        offset: extra layers of each stage (`model_config.offset`).
    """
    kind = importlib.import_module(NEWER_SETTING).LayerSetting
    original = kind.__init__

    def by_stage(self, num_layers: int, _: Any, parallel_config: Any, *__: Any) -> None:
        original(self, num_layers, offset, parallel_config, num_chunks, stage_num=num_stages)

    with replaced(kind, __init__=by_stage):
        yield
