"""Activation memory by layer and operator: what is kept, what is swapped, what recompute saves."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from mindswap.graph.analysis.liveness import LayerSample
from mindswap.graph.model import LAYER_NUMBER, SAME_LAYERS, Graph, Identity, Node
from mindswap.graph.ops import COMPILER_OPS, LAYER_PASSING_OPS, NO_WORK_OPS
from mindswap.graph.storage import SavedStorage, classify_saved
from mindswap.policy.cell_tree import CellNode

# Names of operators as values: several where a graph cannot tell operators apart.


class Names(tuple[str, ...]):
    """The operator paths that one operator of a graph may have; most often one. As text, `|` stands between them."""

    __slots__ = ()

    def __str__(self) -> str:
        return "|".join(self)

    @classmethod
    def of(cls, path: str) -> "Names":
        """A single one."""
        return cls((path,))


# What the simulator calls an operator or a tensor: the operator of the graph, or words of its own.
Label = Names | str


@dataclass(frozen=True)
class OperatorMemory:
    """Memory of one operator that backward needs."""

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
        found = [{} if has_all_tags else layer.primitives_by_cell_and_type() for layer in layers]
        self._by_key = [
            {operator_key: Names(map(".".join, paths)) for operator_key, paths in each.items()} for each in found
        ]
        self._tags = {node.scope: Names(node.paths) for node in tagged.forward if node.paths}

    def can_name(self, node: Node) -> bool:
        """`op_swap` has a name for the operator: it is in a layer, and an attribute of a cell."""
        if node.layer_index is None:
            return False
        return self.is_tagged(node) or node.operator_key in self._by_key[node.layer_index]

    def is_tagged(self, node: Node) -> bool:
        return node.scope.removeprefix("recompute_") in self._tags

    def with_renumbered_layers(self, baseline_layers: Mapping[int, int]) -> Callable[[Node], Names]:
        """The names in a graph whose layers are like those of `layers` under other numbers."""

        def name(node: Node) -> Names:
            if node.layer_index is None:
                return self(node)
            scope = LAYER_NUMBER.sub(
                lambda found: str(baseline_layers.get(int(found[0]), found[0])), node.scope, count=1
            )
            return self(replace(node, layer_index=baseline_layers.get(node.layer_index, node.layer_index), scope=scope))

        return name

    def __call__(self, node: Node) -> Names:
        """Paths of an operator; its cell and type where the model has no attribute for it."""
        if node.layer_index is None:
            return Names.of(path_from_root(node))
        scope = node.scope.removeprefix("recompute_")
        if scope in self._tags:
            return self._tags[scope]
        names = self._by_key[node.layer_index].get(node.operator_key)
        return names or Names.of(f"{node.cell_path}.{node.op}".strip("."))


def measure_layer_memory(
    graph: Graph,
    plain: Graph,
    names: OperatorNames,
    sample: LayerSample,
    baseline_layers: Mapping[int, int] = SAME_LAYERS,
) -> tuple[LayerMemory, ...]:
    """Activation memory of every layer under its policy, what is outside them last.

    Args:
        graph: under the policy, of the layers of `sample`.
        plain: without it: what there is to save.
        names: of the operators of `plain`.
        like: layer of `graph` -> the one of `plain` that is like it, where that has another number.
    """
    rows: dict[int | None, dict[str, OperatorMemory]] = {}

    def add(index: int | None, path: Names, op: str, **sizes: int) -> None:
        """Book bytes on the operator through which backward holds the storage: the one that `op_swap` must name."""
        layer, text = rows.setdefault(index, {}), str(path)
        known = layer.get(text, OperatorMemory(text, op))
        layer[text] = replace(known, **{key: getattr(known, key) + size for key, size in sizes.items()})

    saved_plain, saved = classify_saved(plain), classify_saved(graph)
    remaining = {graph.index.identities[node.name] for entry in saved for node in _holders(graph, entry)}
    indices: dict[int | None, list[int | None]] = {None: [None]}
    for position in range(len(sample.indices)):
        indices.setdefault(baseline_layers.get(position, position), []).append(position)
    for entry in saved_plain:
        node, plain_index = plain.owner(entry.holders[0]), entry.storage.layer_index
        held = [plain.index.identities[node.name] for node in _holders(plain, entry)]
        # Naming one of several names of a storage frees nothing.
        is_swappable = len(entry.holders) == 1 and names.can_name(node)
        for index in indices.get(plain_index, ()):
            is_recomputed = remaining.isdisjoint(_seen_from(index, plain_index, each) for each in held)
            add(
                index, names(node), node.op,
                recomputed_bytes=entry.kept_bytes * is_recomputed, swappable_bytes=entry.kept_bytes * is_swappable,
            )  # fmt: skip
    for entry in saved:
        node = graph.owner((*entry.holders, *(pair.producer for pair in entry.pairs))[0])
        path = names.with_renumbered_layers(baseline_layers)(node)
        add(entry.storage.layer_index, path, node.op, kept_bytes=entry.kept_bytes, swapped_bytes=entry.copied_bytes)
    compiled = {index: tuple(operators.values()) for index, operators in rows.items()}
    layers = tuple(LayerMemory(i, compiled.get(position, ())) for i, position in enumerate(sample.layer_map))
    return (*layers, LayerMemory(None, compiled.get(None, ())))


def _seen_from(index: int | None, plain_index: int | None, identity: Identity) -> Identity:
    """Identity of what holds memory in or near a layer, where that layer has the other number `index`."""
    layer, scope, number = identity
    if index is None or plain_index is None or layer is None:
        return identity
    return layer - plain_index + index, scope, number


def _holders(graph: Graph, entry: SavedStorage) -> Iterator[Node]:
    """The operator that makes a storage, and those under whose names backward holds or copies it.

    One of them is enough to know it again: the compiler may give a copy of its maker another scope.
    """
    if entry.storage.producer is None:
        raise AssertionError("a saved storage without its operator")
    yield entry.storage.producer
    for node in (*entry.holders, *(pair.producer for pair in entry.pairs)):
        yield graph.owner(node)


# Readers of the output of each operator in forward.


def operator_uses(graph: Graph, names: OperatorNames) -> dict[tuple[int, str], frozenset[tuple[int, str]]]:
    """Operator -> the operators of layers that use its output in forward, each as (compiled layer, path).

    What a cell computes without a name goes by its cell and type; it is a user, and so are those behind it.
    """
    uses: dict[tuple[int, str], set[tuple[int, str]]] = {}
    for node in graph.forward:
        if node.layer_index is None or node.op in COMPILER_OPS:
            continue
        users = {(node.layer_index, path) for path in names(node)}
        for producer in _producers(graph, node, names.can_name):
            if producer.layer_index is None:
                raise AssertionError("a named operator outside the layers")
            for path in names(producer):
                uses.setdefault((producer.layer_index, path), set()).update(users)
    return {producer: frozenset(users) for producer, users in uses.items()}


def merged_readers(node: Node, paths: Iterable[tuple[str, ...]], layer: CellNode) -> list[str]:
    """The operators that read a reshape and are not in the graph: of two in a row the compiler leaves one.

    It has the name of the first and the cell of the second. Where the settings of the two differ, both stay.
    Given are an operator of a step without settings and its own paths; paths of the reshapes of its cell come back: one
    of them was the second.
    """
    cell = tuple(node.cell_path.split("."))
    if node.op != "Reshape" or any(path[:-1] == cell for path in paths):
        return []
    return list(map(".".join, layer.primitives_by_cell_and_type().get(node.operator_key, ())))


def _producers(graph: Graph, node: Node, is_named: Callable[[Node], bool]) -> Iterator[Node]:
    """The named operators whose output a node reads, directly or behind others."""
    pending = list(node.inputs)
    seen = set()
    while pending:
        name = pending.pop()
        if name in seen or name not in graph.index.forward_nodes:
            continue
        seen.add(name)
        producer = graph.index.forward_nodes[name]
        if is_named(producer):
            yield producer
        else:
            pending.extend(producer.inputs)


def find_boundary_operators(graph: Graph) -> frozenset[str]:
    """Names of the operators of layers with which operators of another layer, or of none, compute.

    To make one again in backward takes what the layer before hands on, and so on down to the first layer.
    """
    nodes = graph.index.forward_nodes
    found: set[str] = set()
    for reader in graph.forward:
        if reader.op in NO_WORK_OPS:  # the compiler ties what backward needs in tuples of no layer
            continue
        stack = list(reader.inputs)
        while stack:
            source = nodes.get(stack.pop())
            if source is None or source.name in found:
                continue
            if source.op in LAYER_PASSING_OPS:
                stack += source.inputs
            if source.layer_index not in (None, reader.layer_index):
                found.add(source.name)
    return frozenset(found)
