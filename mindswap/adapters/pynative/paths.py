"""Paths of the cells and primitives of a layer while it runs.

A cell or primitive that a layer holds at several paths is told by its caller; where the caller holds it under several
names, its n-th call is the one of the n-th name.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from mindspore import nn

from mindswap.adapters.graph.apply import cells_below, iterate_primitives

Path = tuple[str, ...]  # names from the layer down
T = TypeVar("T")


class CallPaths:
    """Which path of a layer a call is at.

    Args:
        layers: the transformer layers of a network.

    Attributes:
        layer_index: layer that runs; None outside of the layers.
    """

    def __init__(self, layers: Sequence[nn.Cell]):
        self.layer_index: int | None = None
        self._cells: dict[int, nn.Cell] = {}  # below the layers, each once
        # (layer index or None for any, `id` of a cell or primitive) -> its paths
        self._paths: dict[tuple[int | None, int], list[Path]] = {}
        # (layer index, cell path, primitive name) -> under which names the cell holds such primitives, and their `id`
        self._names: dict[tuple[int | None, Path, str], dict[str, int]] = {}
        for index, layer in enumerate(layers):
            for path, cell in cells_below(layer):
                self._cells[id(cell)] = cell
                self._add(index, path, cell)
            for path, primitive in iterate_primitives(layer):
                self._add(index, path, primitive)
                self._names.setdefault((index, path[:-1], primitive.name), {})[path[-1]] = id(primitive)
        self._running: list[Path] = []  # of the cells that run, the innermost last
        self._num_calls: Counter[tuple[Path, int]] = Counter()  # of what has several paths, by caller

    def _add(self, index: int, path: Path, item: Any) -> None:
        for key in ((index, id(item)), (None, id(item))):
            paths = self._paths.setdefault(key, [])
            if path not in paths:
                paths.append(path)

    @property
    def cells(self) -> Iterator[nn.Cell]:
        """The cells below the layers, each once."""
        yield from self._cells.values()

    def begin_layer(self, layer_index: int) -> None:
        """A layer begins forward; what an exception left running is forgotten."""
        self.layer_index = layer_index
        self._running.clear()
        self._num_calls.clear()

    def enter(self, cell: nn.Cell) -> None:
        """A cell below a layer begins."""
        self._running.append(self._path_of(cell) or ())

    def leave(self) -> None:
        """The innermost cell ends."""
        if self._running:
            self._running.pop()

    def of_operator(self, name: str, primitive: Any | None, is_forward: bool) -> tuple[Path, list[str]]:
        """Path of an operator, and other names under which its cell may hold it.

        Args:
            name: of the primitive.
            primitive: its object; None where MindSpore does not show it.
            is_forward: backward does not run in the cells of forward.
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
        """Return the choice whose turn it is: one after the other in the calls of the same caller."""
        number = self._num_calls[caller, item_id]
        self._num_calls[caller, item_id] += 1
        return choices[number % len(choices)]
