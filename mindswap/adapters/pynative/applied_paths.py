"""Layers and paths of the wrappers for swap and recompute in a network of MindFormers 2.x."""

from collections.abc import Iterator, Sequence
from typing import Any

from mindspore import nn

from mindswap.adapters.pynative.hyper_parallel_stand_in.applied import AppliedWrapper, applied
from mindswap.adapters.pynative.hyper_parallel_stand_in.swap import SwapManager

COUNTS = ("out_bytes", "back_bytes", "num_out", "num_back", "num_runs", "num_recomputed")


class AppliedPaths:
    """What the wrappers of a network did in the last step, by layer and path.

    Args:
        layers: layers of the network, those for multi-token prediction last.
    """

    def __init__(self, layers: Sequence[nn.Cell]):
        self.layers = list(layers)
        self._paths = dict(self._all_paths())

    def _all_paths(self) -> Iterator[tuple[int, tuple[int, str]]]:
        """Yield the id of each cell, and of each function in a cell, with its layer and dotted path."""
        for index, layer in enumerate(self.layers):
            for path, cell in layer.cells_and_names():
                yield id(cell), (index, path)
                for name, value in vars(cell).items():
                    if callable(value) and not isinstance(value, nn.Cell):
                        yield id(value), (index, f"{path}.{name}" if path else name)

    def wrappers_to_data(self) -> list[dict[str, Any]]:
        """Return the wrappers as plain data, with `action`, `layer` and `path`; "" is the layer itself."""
        return [self._wrapper_to_data(wrapper) for wrapper in applied.wrappers if id(wrapper.target) in self._paths]

    def _wrapper_to_data(self, wrapper: AppliedWrapper) -> dict[str, Any]:
        layer, path = self._paths[id(wrapper.target)]
        counts = {name: getattr(wrapper, name) for name in COUNTS}
        return {"action": wrapper.action, "layer": layer, "path": path, **counts}

    def copies_to_data(self) -> list[dict[str, Any]]:
        """Return the copies of each swapped layer as plain data; the cells that trigger them are layers by index."""
        index_of = {id(layer): index for index, layer in enumerate(self.layers)}
        return [
            {
                "layer": index_of[id(swapped.cell)],
                **{name: getattr(swapped.copies, name) for name in COUNTS[:4]},
                "released_by": index_of.get(id(swapped.copies.released_by)),
                "fetched_by": index_of.get(id(swapped.copies.fetched_by)),
            }
            for swapped in SwapManager().layers.values()
            if swapped.copies.num_out
        ]
