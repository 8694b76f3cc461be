"""Which layers to compile when most are alike. Pure.

What a layer keeps depends on itself and on its neighbours: a recomputed layer keeps its input, which
the layer before it made. So of each run of equal layers three are enough: the first, one that has an
equal layer on both sides, and the last. The middle one stands for all the others of its run.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby

__all__ = ["LayerSample", "sample_layers"]

LAYERS_PER_RUN = 3


@dataclass(frozen=True)
class LayerSample:
    """Layers of a model that are compiled, and what each layer of the model looks like.

    Attributes:
        indices: model layers that are compiled, in order.
        layer_map: for each layer of the model, the position in `indices` of the one that stands for it.
    """

    indices: tuple[int, ...]
    layer_map: tuple[int, ...]

    @property
    def is_whole(self) -> bool:
        """Every layer is compiled."""
        return len(self.indices) == len(self.layer_map)


def sample_layers(kinds: Sequence[Hashable]) -> LayerSample:
    """The layers to compile.

    Args:
        kinds: for each layer, what it consists of and what is set on it; equal means alike.
    """
    indices: list[int] = []
    layer_map: list[int] = []
    for _, run in groupby(range(len(kinds)), key=kinds.__getitem__):
        layers = list(run)
        start = len(indices)
        if len(layers) <= LAYERS_PER_RUN:
            indices += layers
            layer_map += range(start, start + len(layers))
        else:
            indices += [layers[0], layers[1], layers[-1]]
            layer_map += [start, *[start + 1] * (len(layers) - 2), start + 2]
    return LayerSample(tuple(indices), tuple(layer_map))
