"""The cells and primitives of one transformer layer as plain data.

An adapter makes the tree from a real network, or it is read from a table of the package
(`data/families/`); matching and the rules need nothing else.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class CellNode:
    """One cell or primitive."""

    name: str  # attribute name in its parent; "" for the layer itself
    type_name: str  # class name, e.g. `LLamaAttention`, or primitive name, e.g. `MatMul`
    is_primitive: bool = False  # True for a primitive (it has no children)
    children: tuple["CellNode", ...] = ()  # what the cell holds, cells and primitives, in order of definition
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.name, self.type_name, self.is_primitive, self.children)))

    def __hash__(self) -> int:
        """Found when it is made: trees are keys of what patterns match, which planners ask for thousands of times."""
        return self._hash

    def walk(self, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], "CellNode"]]:
        """Every node below this one with its path from here, parents first."""
        for child in self.children:
            path = (*prefix, child.name)
            yield path, child
            yield from child.walk(path)

    def primitives_by_place(self) -> Mapping[tuple[str, str], Sequence[tuple[str, ...]]]:
        """(Cell, type) -> paths of the primitives there, in order of definition; most often one."""
        return _primitives_by_place(self)


@functools.lru_cache(maxsize=64)  # planners ask the few trees of a model thousands of times
def _primitives_by_place(layer: CellNode) -> Mapping[tuple[str, str], Sequence[tuple[str, ...]]]:
    found: dict[tuple[str, str], list[tuple[str, ...]]] = {}
    for path, node in layer.walk():
        if node.is_primitive:
            found.setdefault((".".join(path[:-1]), node.type_name), []).append(path)
    return found


@dataclass(frozen=True)
class LayerTrees:
    """The layers of a model."""

    layers: tuple[CellNode, ...]  # one tree per layer; equal layers may be the same object
    # for a primitive path in a layer (`attention.wq.matmul`), the paths of the primitives in the same layer that read
    # its output in forward. Read from a compiled graph; empty where it is not known
    uses: dict[str, tuple[str, ...]]
    source: str  # where the trees come from, for messages ("the real network", "table llama ...")
    # tree of the layer of multi-token prediction, which has the number of the last layer; None without
    prediction: CellNode | None = None
