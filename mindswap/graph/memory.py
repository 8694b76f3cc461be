"""Activation memory by layer and operator: what is kept, what is swapped, what recompute saves. Pure."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from mindswap.graph.model import Graph, Node
from mindswap.graph.names import Names
from mindswap.graph.sample import LayerSample
from mindswap.graph.storage import SavedStorage, classify_saved
from mindswap.policy.cell_tree import CellNode


@dataclass(frozen=True)
class OperatorMemory:
    """What one operator makes that backward needs."""

    # operator path below the layer as `op_swap` names it; outside the layers, the cell path from the root. Text:
    # several names that the graph cannot tell apart have `|` between them
    path: str
    op: str
    kept_bytes: int = 0  # stays on the device from forward to backward
    swapped_bytes: int = 0  # crosses the link, each way; what is copied for nothing included
    recomputed_bytes: int = 0  # would be kept, and is made again in backward instead
    swappable_bytes: int = 0  # leaves the device if `op_swap` names this operator, alone among all


@dataclass(frozen=True)
class LayerMemory:
    """Activation memory of one layer, or of what is outside the layers."""

    # index in the model; None for what is made once for all layers (masks, rotary tables) and for embedding, head and
    # loss
    layer_index: int | None
    operators: tuple[OperatorMemory, ...]  # in execution order, each operator once

    @property
    def kept_bytes(self) -> int:
        """Bytes on the device from forward to backward."""
        return sum(operator.kept_bytes for operator in self.operators)

    @property
    def swapped_bytes(self) -> int:
        """Bytes that cross the link, each way."""
        return sum(operator.swapped_bytes for operator in self.operators)

    @property
    def recomputed_bytes(self) -> int:
        """Bytes that recompute saves."""
        return sum(operator.recomputed_bytes for operator in self.operators)


# The compiler's count of operators of one type, at the end of a scope.
OP_NUMBER = re.compile(r"-op\d+$")
# Cells that the capture puts around the model.
CAPTURE_PREFIX = re.compile(r"^(network(\.|$))*")


def path_from_root(node: Node) -> str:
    """Cells and type of an operator, without the cells around the model."""
    return f"{CAPTURE_PREFIX.sub('', node.cell_path)}.{node.op}".strip(".")


class OperatorNames:
    """From a node of the graph to the operator path that `op_swap` can name.

    Primitives that share cell and type in a tree of `layers` carry their path in the graph `tagged`. With
    `has_all_tags` every primitive does; what has none is none of the model's.
    """

    def __init__(self, layers: Iterable[CellNode], tagged: Graph, has_all_tags: bool = False):
        found = [{} if has_all_tags else layer.primitives_by_place() for layer in layers]
        self._by_place = [{place: Names(map(".".join, paths)) for place, paths in each.items()} for each in found]
        self._tags = {node.scope: Names(node.paths) for node in tagged.forward if node.paths}

    def can_name(self, node: Node) -> bool:
        """Whether `op_swap` has a name for an operator: it is in a layer, and an attribute of a cell."""
        if node.layer_index is None:
            return False
        return self.is_tagged(node) or node.place in self._by_place[node.layer_index]

    def is_tagged(self, node: Node) -> bool:
        return node.scope.removeprefix("recompute_") in self._tags

    def __call__(self, node: Node) -> Names:
        """Paths of an operator; its cell and type where the model has no attribute for it."""
        if node.layer_index is None:
            return Names.of(path_from_root(node))
        scope = node.scope.removeprefix("recompute_")
        if scope in self._tags:
            return self._tags[scope]
        names = self._by_place[node.layer_index].get(node.place)
        return names or Names.of(f"{node.cell_path}.{node.op}".strip("."))


def measure_layers(graph: Graph, plain: Graph, names: OperatorNames, sample: LayerSample) -> tuple[LayerMemory, ...]:
    """Activation memory of every layer under its policy, what is outside them last; `plain`: what there is to save."""
    rows: dict[int | None, dict[str, OperatorMemory]] = {}

    def add(entry: SavedStorage, node: Node, **sizes: int) -> None:
        """Book bytes on the operator through which backward holds the storage: the one that `op_swap` must name."""
        layer, path = rows.setdefault(entry.storage.layer_index, {}), str(names(node))
        known = layer.get(path, OperatorMemory(path, node.op))
        layer[path] = replace(known, **{key: getattr(known, key) + size for key, size in sizes.items()})

    saved_plain, saved = classify_saved(plain), classify_saved(graph)
    identities, identities_plain = _identities(graph), _identities(plain)
    remaining = {identities[node.name] for entry in saved for node in _holders(graph, entry)}
    for entry in saved_plain:
        node = plain.owner(entry.keepers[0])
        is_recomputed = not any(identities_plain[held.name] in remaining for held in _holders(plain, entry))
        # Naming one of several names of a storage frees nothing.
        is_swappable = len(entry.keepers) == 1 and names.can_name(node)
        add(
            entry, node,
            recomputed_bytes=entry.kept_bytes * is_recomputed, swappable_bytes=entry.kept_bytes * is_swappable,
        )  # fmt: skip
    for entry in saved:
        node = graph.owner((*entry.keepers, *(pair.producer for pair in entry.pairs))[0])
        add(entry, node, kept_bytes=entry.kept_bytes, swapped_bytes=entry.copied_bytes)
    compiled = {index: tuple(operators.values()) for index, operators in rows.items()}
    layers = tuple(LayerMemory(i, compiled.get(position, ())) for i, position in enumerate(sample.layer_map))
    return (*layers, LayerMemory(None, compiled.get(None, ())))


def _identities(graph: Graph) -> dict[str, tuple[str, int]]:
    """For each forward operator what tells it apart in another graph of the same network: place and number.

    Recompute puts a prefix before the scope, and its copies take numbers of the compiler's own count, so only
    the order among operators of one cell and type is the same in both.
    """
    counts: Counter[str] = Counter()
    identities = {}
    for node in graph.forward:
        place = OP_NUMBER.sub("", node.scope.removeprefix("recompute_"))
        identities[node.name] = (place, counts[place])
        counts[place] += 1
    return identities


def _holders(graph: Graph, entry: SavedStorage) -> Iterator[Node]:
    """The operator that makes a storage, and those under whose names backward holds or copies it.

    One of them is enough to know it again: the compiler may give a copy of its maker another scope.
    """
    assert entry.storage.producer is not None
    yield entry.storage.producer
    for node in (*entry.keepers, *(pair.producer for pair in entry.pairs)):
        yield graph.owner(node)
