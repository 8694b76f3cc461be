"""Activation memory by layer and operator: kept, swapped, and avoided by recompute."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from mindswap.graph.analysis.liveness import LayerSample
from mindswap.graph.model import LAYER_NUMBER, SAME_LAYERS, Graph, Identity, Node
from mindswap.graph.ops import COMPILER_OPS, LAYER_PASSING_OPS, NO_WORK_OPS
from mindswap.graph.storage import SavedStorage, classify_saved
from mindswap.policy.cell_tree import CellNode

# Names of operators, as values; several where a graph cannot distinguish operators.


class Names(tuple[str, ...]):
    """The possible operator paths of one operator of a graph, usually one. The text joins them with `|`."""

    __slots__ = ()

    def __str__(self) -> str:
        return "|".join(self)

    @classmethod
    def of(cls, path: str) -> "Names":
        """Return a single path."""
        return cls((path,))


# Label of an operator or a tensor in the simulator: names of the graph's operator, or a description.
Label = Names | str


@dataclass(frozen=True)
class OperatorMemory:
    """Memory that backward holds through one operator."""

    # operator path below the layer as `op_swap` names it, several joined with `|` if the graph cannot distinguish them;
    # outside the layers the cell path from the root
    path: str
    op: str
    kept_bytes: int = 0  # stays on the device from forward to backward
    swapped_bytes: int = 0  # copied to the host and back, useless copies included
    recomputed_bytes: int = 0  # would be kept, but is recomputed
    swappable_bytes: int = 0  # freed if `op_swap` names this operator and no other


@dataclass(frozen=True)
class LayerMemory:
    """Activation memory of one layer, or of everything outside the layers."""

    # index in the model; None for tensors shared by all layers (masks, rotary tables) and for embedding, head and loss
    layer_index: int | None
    operators: tuple[OperatorMemory, ...]  # in execution order, without duplicates


# Prefix of the cells that the capture puts around the model.
CAPTURE_PREFIX = re.compile(r"^(network(\.|$))*")


def path_from_root(node: Node) -> str:
    """Return cell path and type of an operator, without the cells around the model."""
    return f"{CAPTURE_PREFIX.sub('', node.cell_path)}.{node.op}".strip(".")


class OperatorNames:
    """Maps nodes of a graph to the operator paths that `op_swap` can name.

    Args:
        layers: cell tree of each layer.
        tagged: graph in which primitives that share cell and type carry their path.
        has_all_tags: every primitive of the model carries its path; operators without one are the compiler's.
    """

    def __init__(self, layers: Iterable[CellNode], tagged: Graph, has_all_tags: bool = False):
        self._by_key = [{} if has_all_tags else _names_by_key(layer) for layer in layers]
        self._tags = {node.scope: Names(node.paths) for node in tagged.forward if node.paths}

    def can_name(self, node: Node) -> bool:
        """Return whether `op_swap` can name the operator: it is in a layer and an attribute of a cell."""
        if node.layer_index is None:
            return False
        return self.is_tagged(node) or node.operator_key in self._by_key[node.layer_index]

    def is_tagged(self, node: Node) -> bool:
        """Return whether the capture wrote the path of the operator."""
        return node.scope.removeprefix("recompute_") in self._tags

    def with_renumbered_layers(self, baseline_layers: Mapping[int, int]) -> Callable[[Node], Names]:
        """Return the mapping for a graph whose layers equal those of `layers` under other numbers.

        Args:
            baseline_layers: layer of the graph -> equal layer of `layers`.
        """

        def name(node: Node) -> Names:
            if node.layer_index is None:
                return self(node)
            scope = LAYER_NUMBER.sub(
                lambda match: str(baseline_layers.get(int(match[0]), match[0])), node.scope, count=1
            )
            return self(replace(node, layer_index=baseline_layers.get(node.layer_index, node.layer_index), scope=scope))

        return name

    def __call__(self, node: Node) -> Names:
        """Return the paths of an operator; cell and type if the model has no attribute for it."""
        if node.layer_index is None:
            return Names.of(path_from_root(node))
        scope = node.scope.removeprefix("recompute_")
        if scope in self._tags:
            return self._tags[scope]
        names = self._by_key[node.layer_index].get(node.operator_key)
        return names or Names.of(f"{node.cell_path}.{node.op}".strip("."))


def _names_by_key(layer: CellNode) -> dict[tuple[str, str], Names]:
    primitives = layer.primitives_by_cell_and_type().items()
    return {operator_key: Names(map(".".join, paths)) for operator_key, paths in primitives}


def measure_layer_memory(
    graph: Graph,
    plain: Graph,
    names: OperatorNames,
    sample: LayerSample,
    baseline_layers: Mapping[int, int] = SAME_LAYERS,
) -> tuple[LayerMemory, ...]:
    """Return the activation memory of every layer under its policy; the last entry is everything outside the layers.

    Args:
        graph: compiled under the policy, with the layers of `sample`.
        plain: compiled without swap and recompute.
        names: of the operators of `plain`.
        sample: the compiled layers.
        baseline_layers: layer of `graph` -> equal layer of `plain`, where the numbers differ.
    """
    rows: dict[int | None, dict[str, OperatorMemory]] = {}

    def add(index: int | None, path: Names, op: str, **sizes: int) -> None:
        """Add sizes to the operator through which backward holds the storage, which is the one `op_swap` must name."""
        layer, text = rows.setdefault(index, {}), str(path)
        memory = layer.get(text, OperatorMemory(text, op))
        layer[text] = replace(memory, **{key: getattr(memory, key) + size for key, size in sizes.items()})

    saved_plain, saved = classify_saved(plain), classify_saved(graph)
    remaining = {graph.index.identities[node.name] for entry in saved for node in _holders(graph, entry)}
    indices: dict[int | None, list[int | None]] = {None: [None]}
    for position in range(len(sample.indices)):
        indices.setdefault(baseline_layers.get(position, position), []).append(position)
    for entry in saved_plain:
        node, plain_index = plain.owner(entry.holders[0]), entry.storage.layer_index
        held = [plain.index.identities[node.name] for node in _holders(plain, entry)]
        # Swapping one of several names of a storage frees nothing.
        is_swappable = len(entry.holders) == 1 and names.can_name(node)
        for index in indices.get(plain_index, ()):
            is_recomputed = remaining.isdisjoint(_seen_from(index, plain_index, identity) for identity in held)
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
    """Return an identity in or next to layer `plain_index` with the layer renumbered to `index`."""
    if index is None or plain_index is None or identity.layer_index is None:
        return identity
    return identity._replace(layer_index=identity.layer_index - plain_index + index)


def _holders(graph: Graph, entry: SavedStorage) -> Iterator[Node]:
    """Yield the producer of a storage, and the operators through which backward holds or copies it.

    One of them identifies the storage in another graph, because the compiler may change the scope of the producer's
    copy.
    """
    if entry.storage.producer is None:
        raise AssertionError("a saved storage without its operator")
    yield entry.storage.producer
    for node in (*entry.holders, *(pair.producer for pair in entry.pairs)):
        yield graph.owner(node)


# Readers of operator outputs in forward.


def operator_uses(graph: Graph, names: OperatorNames) -> dict[tuple[int, str], frozenset[tuple[int, str]]]:
    """Return the operators of layers that read the output of each operator, as (compiled layer, path).

    An operator without a name is represented by cell and type. It counts as a reader, and so do the readers of its
    output.
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
    """Return the reshapes that the compiler may have merged into a preceding reshape.

    Of two consecutive reshapes the compiler keeps one, with the name of the first and the cell of the second, unless
    their settings differ.

    Args:
        node: operator of a graph without settings.
        paths: its paths.
        layer: cell tree of its layer.

    Returns:
        Paths of the reshapes of its cell, one of which was merged; empty if the operator is in the cell of its path.
    """
    cell = tuple(node.cell_path.split("."))
    if node.op != "Reshape" or any(path[:-1] == cell for path in paths):
        return []
    return list(map(".".join, layer.primitives_by_cell_and_type().get(node.operator_key, ())))


def _producers(graph: Graph, node: Node, is_named: Callable[[Node], bool]) -> Iterator[Node]:
    """Yield the named operators whose output a node reads, directly or through operators without a name."""
    pending = list(node.inputs)
    visited = set()
    while pending:
        name = pending.pop()
        if name in visited or name not in graph.index.forward_nodes:
            continue
        visited.add(name)
        producer = graph.index.forward_nodes[name]
        if is_named(producer):
            yield producer
        else:
            pending.extend(producer.inputs)


def find_boundary_operators(graph: Graph) -> frozenset[str]:
    """Return the names of operators whose output another layer, or an operator outside the layers, computes with.

    Recomputing a boundary tensor needs the boundary tensor of the previous layer, and so on to the first layer.
    """
    nodes = graph.index.forward_nodes
    boundary: set[str] = set()
    for reader in graph.forward:
        if reader.op in NO_WORK_OPS:  # the compiler bundles the saved tensors in tuples outside the layers
            continue
        stack = list(reader.inputs)
        while stack:
            source = nodes.get(stack.pop())
            if source is None or source.name in boundary:
                continue
            if source.op in LAYER_PASSING_OPS:
                stack += source.inputs
            if source.layer_index not in (None, reader.layer_index):
                boundary.add(source.name)
    return frozenset(boundary)
