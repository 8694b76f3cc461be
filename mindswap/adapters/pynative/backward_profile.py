"""Memory of a backward pass in PyNative mode by layer, with the gradients that are there."""

from collections.abc import Sequence
from typing import Any

import mindspore as ms
from mindspore import nn

from mindswap.adapters.pynative.values import tensors_in


class BackwardProfile:
    """Parts of the first backward pass of a network: each ends where backward of a layer begins, the last at its end.

    Attributes:
        parts: for each part the peak of device memory, and the gradients at its begin; in bytes.
    """

    def __init__(self) -> None:
        self.parts: list[tuple[int, int]] = []
        self._weights: Sequence[ms.Parameter] = ()
        self._gradient_bytes = 0  # at the begin of the current part
        self._is_open = False

    def measure(self, network: nn.Cell, layers: Sequence[nn.Cell]) -> None:
        """Measure the next backward pass, which waits for the device at each layer; later ones are as without.

        Args:
            network: the network.
            layers: its layers.
        """
        self._weights = list(network.get_parameters())
        self._is_open = True
        for layer in layers:
            layer.register_forward_hook(self._end_of_layer)

    def end(self) -> None:
        """End the last part at the end of backward, and measure no more."""
        if self._is_open and self.parts:
            self._end_part()
        self._is_open = False

    def _end_of_layer(self, cell: nn.Cell, inputs: Any, outputs: Any) -> None:
        if self._is_open:
            for tensor in tensors_in(outputs):
                if tensor._requires_grad and not tensor._is_leaf:
                    tensor.register_hook(lambda gradient: self._end_part())

    def _end_part(self) -> None:
        ms.runtime.synchronize()
        self.parts.append((ms.runtime.max_memory_allocated(), self._gradient_bytes))
        gradients = [weight.grad for weight in self._weights]
        self._gradient_bytes = sum(gradient.nbytes for gradient in gradients if gradient is not None)
        ms.runtime.reset_peak_memory_stats()
