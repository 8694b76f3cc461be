"""Cells and primitives below the layers of a network: their paths, and which of them runs."""

from collections.abc import Iterator, Sequence
from typing import Any

from mindspore import nn
from mindspore.ops import Primitive

__all__ = ["names_by_type", "primitives_of", "watch_cells"]


def watch_cells(layer: nn.Cell, index: int, running: list[tuple[int | None, tuple[str, ...]]]) -> Iterator[Any]:
    """Keeps the layer and the path of the cell that runs at the end of `running`."""
    for path, cell in _cells_below(layer, ()):
        yield cell.register_forward_pre_hook(lambda *_, path=path: running.append((index, path)))
        yield cell.register_forward_hook(lambda *_: running.pop() and None)


def _cells_below(cell: nn.Cell, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], nn.Cell]]:
    for name, child in cell._cells.items():
        if child is not None:
            yield (*path, name), child
            yield from _cells_below(child, (*path, name))


def primitives_of(layers: Sequence[nn.Cell]) -> Iterator[tuple[tuple[str, ...], str, Primitive]]:
    """Cell path, name and primitive of all that cells of these layers hold."""
    for layer in layers:
        for path, cell in (((), layer), *_cells_below(layer, ())):
            for name, primitive in cell._primitives.items():
                if primitive is not None:
                    yield path, name, primitive


def names_by_type(layers: Sequence[nn.Cell]) -> dict[tuple[int | None, tuple[str, ...], str], list[str]]:
    """(layer, cell path, primitive name) -> under which names the cell holds it."""
    found: dict[tuple[int | None, tuple[str, ...], str], list[str]] = {}
    for index, layer in enumerate(layers):
        for path, name, primitive in primitives_of([layer]):
            found.setdefault((index, path, primitive.name), []).append(name)
    return found
