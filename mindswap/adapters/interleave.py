"""Layers of `fine_grain_interleave`, which compute in two halves so that communication of one hides behind the other.

They differ by their place in the model: the first makes query, key and value of the whole, the last computes the whole
behind attention, and the last but one hands on what is gathered. Names are those of mindformers 1.9.0,
models/llama/llama_interleave.py.
"""

import contextlib
import functools
from collections.abc import Iterator, Sequence

from mindformers.models.llama import llama
from mindspore import nn

from mindswap.adapters.replaced import replaced

CLASS_NAME = "LLamaDecodeLayerInterleave"
# Layers from the end that are unlike those before them.
NUM_LAST = 2


def place_in_model(layer: nn.Cell) -> int:
    """What is particular about the place of a layer: 0 nothing, 1 it is the first, -1 the last, -2 the last but one.

    Layers that do not interleave are alike everywhere.
    """
    if type(layer).__name__ != CLASS_NAME:
        return 0
    if layer.layer_id == 0:
        return 1
    return max(-NUM_LAST, layer.layer_id - layer.num_layers) if layer.layer_id >= layer.num_layers - NUM_LAST else 0


@contextlib.contextmanager
def layers_as_in_model(indices: Sequence[int], num_layers: int) -> Iterator[None]:
    """While this lasts, a network of some layers builds each as the layer of the whole model that it stands for.

    `indices` are the numbers in the model of the layers that are built, `num_layers` the layers of the model.
    """
    original = getattr(llama, CLASS_NAME)

    @functools.wraps(original, updated=())
    def build(batch_size: int, seq_length: int, layer_id: int, **settings: object) -> nn.Cell:
        return original(batch_size, seq_length, indices[layer_id], **{**settings, "num_layers": num_layers})

    with replaced(llama, **{CLASS_NAME: build}):
        yield
