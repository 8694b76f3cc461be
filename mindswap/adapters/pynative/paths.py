"""Paths of the cells and primitives of a layer while it runs.

If a layer holds a cell or primitive at several paths, the calling cell determines the path; if that cell holds it under
several names, its n-th call belongs to the n-th name.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from mindspore import nn

from mindswap.adapters.graph.apply import cells_below, iterate_primitives

Path = tuple[str, ...]  # names from the layer down
T = TypeVar("T")


class CallPaths:
    """Maps calls to paths of a layer.

    Args:
        layers: the transformer layers of a network.

    Attributes:
        layer_index: the running layer; None outside the layers.
    """

    def __init__(self, layers: Sequence[nn.Cell]):
        self.layer_index: int | None = None
        self._cells: dict[int, nn.Cell] = {}  # cells below the layers, each once
        # (layer index or None for any, `id` of a cell or primitive) -> its paths
        self._paths: dict[tuple[int | None, int], list[Path]] = {}
        # (layer index, cell path, type) -> names of such primitives in the cell, with their `id`
        self._names: dict[tuple[int | None, Path, str], dict[str, int]] = {}
        for index, layer in enumerate(layers):
            for path, cell in cells_below(layer):
                self._cells[id(cell)] = cell
                self._add(index, path, cell)
            for path, primitive in iterate_primitives(layer):
                self._add(index, path, primitive)
                self._names.setdefault((index, path[:-1], primitive.name), {})[path[-1]] = id(primitive)
        self._running: list[Path] = []  # paths of the running cells, the innermost last
        # calls by (calling cell, item), for items with several paths
        self._num_calls: Counter[tuple[Path, int]] = Counter()

    def _add(self, index: int, path: Path, item: Any) -> None:
        for key in ((index, id(item)), (None, id(item))):
            paths = self._paths.setdefault(key, [])
            if path not in paths:
                paths.append(path)

    @property
    def cells(self) -> Iterator[nn.Cell]:
        """Yield the cells below the layers, each once."""
        yield from self._cells.values()

    def begin_layer(self, layer_index: int) -> None:
        """Start forward of a layer; cells that an exception left running are forgotten."""
        self.layer_index = layer_index
        self._running.clear()
        self._num_calls.clear()

    def enter(self, cell: nn.Cell) -> None:
        """Start a cell below a layer."""
        self._running.append(self._path_of(cell) or ())

    def leave(self) -> None:
        """End the innermost cell."""
        if self._running:
            self._running.pop()

    def of_operator(self, name: str, primitive: Any | None, is_forward: bool) -> tuple[Path, list[str]]:
        """Return the path of an operator, and alternative names that its cell has for such primitives.

        Args:
            name: type of the primitive.
            primitive: its object; None if MindSpore does not provide it.
            is_forward: whether it runs in a cell; backward does not.
        """
        path = None if primitive is None else self._path_of(primitive)
        if path is not None:
            return path, []
        cell = self._running[-1] if self._running and is_forward else ()
        names = self._names.get((self.layer_index, cell, name), {name: 0})
        if len(names) > 1 and len(ids := set(names.values())) == 1:
            return (*cell, self._next_call(list(names), cell, ids.pop())), []
        held, *alternative_names = names
        return (*cell, held), alternative_names

    def _path_of(self, item: Any) -> Path | None:
        paths = self._paths.get((self.layer_index, id(item))) or self._paths.get((None, id(item)))
        if paths is None:
            return None
        if len(paths) == 1:
            return paths[0]
        caller = self._running[-1] if self._running else ()
        return self._next_call([path for path in paths if path[:-1] == caller] or paths, caller, id(item))

    def _next_call(self, choices: Sequence[T], caller: Path, item_id: int) -> T:
        """Return the choices in turn, one for each call of the same caller."""
        number = self._num_calls[caller, item_id]
        self._num_calls[caller, item_id] += 1
        return choices[number % len(choices)]
