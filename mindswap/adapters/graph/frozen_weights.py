"""Weights that are not trained, as MindFormers freezes them (`pet_config`, `freeze` of a model): `requires_grad`.

MindFormers freezes by names of weights, which have the index of their layer. A truncated network has other indices, so
its layers are frozen as the layers of the full model.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mindspore import nn


@dataclass(frozen=True)
class LayerTraining:
    """The part of a layer that is trained; it decides what backward of the layer computes."""

    frozen: tuple[str, ...]  # weights that are not trained, by name in the layer
    is_input_trained: bool  # something before the layer is trained, so that backward passes through its input


def read_layer_training(network: nn.Cell, layers: Sequence[nn.Cell]) -> tuple[LayerTraining, ...]:
    """Return the trained part of each layer of a network."""
    places = {id(weight): place for place, weight in enumerate(network.get_parameters())}
    first_trained = min((places[id(weight)] for weight in network.trainable_params()), default=len(places))
    return tuple(_layer_training(layer, places, first_trained) for layer in layers)


def _layer_training(layer: nn.Cell, places: dict[int, int], first_trained: int) -> LayerTraining:
    weights = dict(layer.parameters_and_names())
    first = min((places[id(weight)] for weight in weights.values()), default=0)
    frozen = tuple(name for name, weight in weights.items() if not weight.requires_grad)
    return LayerTraining(frozen, is_input_trained=first_trained < first)


def freeze_layers(layers: Sequence[nn.Cell], training: Sequence[LayerTraining]) -> None:
    """Freeze the layers of a truncated network as the layers of the full model that they are."""
    for layer, of_model in zip(layers, training, strict=True):
        for name, weight in layer.parameters_and_names():
            weight.requires_grad = name not in of_model.frozen
