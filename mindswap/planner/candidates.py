"""Activations that can be swapped or recomputed, and the operator names to do so.

Swap frees a storage only if all of its holders are swapped; recompute frees it only if all operators between it and
tensors that are saved anyway are recomputed. A policy names operators, and a name may match several: `add` matches both
additions of a layer. So activations whose producers share a name are decided together, as one `ActivationGroup`.
"""

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from itertools import product

from mindswap.graph.analysis.saved_tensors import Names, OperatorNames, find_boundary_operators, merged_readers
from mindswap.graph.model import Graph, Node, first_source
from mindswap.graph.ops import ORDERING_OPS, REDISTRIBUTION_OPS, TUPLE_OPS, VIEW_OPS, WEIGHT_OPS
from mindswap.graph.passes.gather import is_gathering
from mindswap.graph.sequences import cache_readers
from mindswap.graph.storage import SavedStorage, classify_saved
from mindswap.policy.cell_tree import CellNode, is_within

# Operators that only read a weight or order side effects: nothing to recompute.
IGNORED_OPS = WEIGHT_OPS | ORDERING_OPS


@dataclass(frozen=True)
class ActivationGroup:
    """Activations of a layer that are decided together."""

    label: Names  # names of the first producer
    producers: tuple[Names, ...]  # names of the producers, which are the labels of the simulator
    sizes_bytes: tuple[int, ...]  # size of each tensor
    # producers with a name and holders of the tensors: swap names those that hold a tensor. Empty if a holder has none
    swap_names: tuple[str, ...]
    # each path recomputes some or all of the tensors: the operators that `select_recompute` must name, back to tensors
    # that are saved anyway. Empty if recompute is impossible
    recompute_paths: tuple[tuple[str, ...], ...]
    # of these, the paths that leave a cell with weights, or lead to a cell that is only recomputed as a whole
    across_cells: frozenset[tuple[str, ...]] = frozenset()

    @property
    def size_bytes(self) -> int:
        """Total size of the tensors."""
        return sum(self.sizes_bytes)


def find_activation_groups(
    graph: Graph,
    names: OperatorNames,
    layer_index: int,
    layer: CellNode,
    has_cells: bool = True,
    is_newer: bool = False,
) -> tuple[ActivationGroup, ...]:
    """Return the groups of one compiled layer in order of production, followed by recompute-only cells.

    Args:
        graph: step without swap and recompute.
        names: operator names of its nodes.
        layer_index: index of the compiled layer, as in `Node.layer_index`.
        layer: its cells and primitives.
        has_cells: whether to include recompute-only cells.
        is_newer: exclude recompute paths that MindSpore cannot compile in the newer models.
    """
    saved = [entry for entry in classify_saved(graph) if entry.storage.size_bytes]
    walker = _Walker(graph, names, layer_index, layer, saved, is_newer)
    layer_storages = [entry for entry in saved if entry.storage.layer_index == layer_index and _can_leave(entry)]
    storage_groups = _group_by_name(layer_storages, walker)
    groups = tuple(walker.group(storages) for storages in storage_groups)
    if not has_cells:
        return groups
    # Tensors that no operator name reaches, such as those of functions, are recomputed with a cell around them.
    out_of_reach = (storages for storages in storage_groups if not walker.is_within_reach(storages))
    cells = dict.fromkeys(cell for storages in out_of_reach for entry in storages for cell in _cells_around(entry))
    before = {around for cell in cells for around in walker.cells_before(cell)}
    groups = tuple(_with_across(group, before) for group in groups)
    return (*groups, *(ActivationGroup(Names.of(cell), (), (), (), ((cell,),)) for cell in cells))


def _can_leave(entry: SavedStorage) -> bool:
    """Return whether a policy can free the storage; it cannot free an all-gathered weight."""
    return entry.storage.producer is None or not is_gathering(entry.storage.producer)


def _with_across(group: ActivationGroup, cells_before: Set[str]) -> ActivationGroup:
    """Mark the recompute paths through one of the cells `cells_before`, whose outputs a recomputed cell reads.

    Recompute of both in all layers does not compile (docs/internals/notes.md#recompute-of-a-cell-and-its-inputs).
    """
    recompute_paths = {
        path for path in group.recompute_paths if any(name.rpartition(".")[0] in cells_before for name in path)
    }
    return replace(group, across_cells=group.across_cells | recompute_paths)


def _cells_around(entry: SavedStorage) -> Iterator[str]:
    """Yield the cells around the producer of a storage, innermost first, without the layer itself."""
    producer = entry.storage.producer
    cell = producer.cell_path if producer is not None else ""
    while cell:
        yield cell
        cell = cell.rpartition(".")[0]


def _group_by_name(saved: Iterable[SavedStorage], walker: "_Walker") -> list[list[SavedStorage]]:
    """Group storages whose producers share an operator name."""
    storage_groups: list[tuple[set[str], list[SavedStorage]]] = []
    for entry in saved:
        names = set(walker.label(entry))
        members = [entry]
        for storages in [storages for storages in storage_groups if storages[0] & names]:
            storage_groups.remove(storages)
            names |= storages[0]
            members = storages[1] + members
        storage_groups.append((names, members))
    return [members for _, members in storage_groups]


def _parts(storages: list[SavedStorage]) -> list[list[SavedStorage]]:
    """Return each storage of a group on its own, then the whole group."""
    return [*([entry] for entry in storages if len(storages) > 1), storages]


class _Walker:
    """Walks from saved storages back to their producers."""

    def __init__(
        self,
        graph: Graph,
        names: OperatorNames,
        layer_index: int,
        layer: CellNode,
        saved: Iterable[SavedStorage],
        is_newer: bool = False,
    ):
        self.is_newer = is_newer
        self.graph = graph
        self.names = names
        self.layer_index = layer_index
        self.layer = layer
        self.kept = {node.name for entry in saved for node in entry.holders}
        # Recompute of a boundary tensor would recompute the full layer, so no path may name its producer in any layer;
        # nor an operator that reads keys and values of other sequence pieces.
        boundary_nodes = (graph.owner(graph.index.forward_nodes[name]) for name in find_boundary_operators(graph))
        fixed = (*boundary_nodes, *(graph.index.forward_nodes[name] for name in cache_readers(graph)))
        self.output_names = frozenset(name for node in fixed for name in names(node))
        # Cells in which an operator reads a weight.
        weights = {node.name for node in graph.forward if node.op in WEIGHT_OPS}
        self.weight_cells = {node.cell_path for node in graph.forward if not weights.isdisjoint(node.inputs)}

    def label(self, entry: SavedStorage) -> Names:
        if entry.storage.producer is None:
            raise AssertionError("a saved storage without its operator")
        return self.names(entry.storage.producer)

    def group(self, storages: list[SavedStorage]) -> ActivationGroup:
        producers = tuple(dict.fromkeys(self.label(entry) for entry in storages))
        holders = [self.graph.owner(node) for entry in storages for node in entry.holders]
        makers = [entry.storage.producer for entry in storages if entry.storage.producer is not None]
        named = [maker for maker in makers if self.names.can_name(maker)]  # without recompute the holders' names do
        recompute_paths = {
            path: is_across
            for path, is_across in self.recompute_paths(storages).items()
            if self.output_names.isdisjoint(path)
        }
        return ActivationGroup(
            label=producers[0],
            producers=producers,
            sizes_bytes=tuple(entry.storage.size_bytes for entry in storages),
            swap_names=self._paths([*holders, *named]) if self._can_swap(holders) else (),
            recompute_paths=tuple(filter(None, recompute_paths)),
            across_cells=frozenset(path for path, is_across in recompute_paths.items() if is_across),
        )

    def recompute_paths(self, storages: list[SavedStorage]) -> dict[tuple[str, ...], bool]:
        """Return the recompute paths of some or all storages, and whether each leads out of a cell with weights.

        A path is empty if one of its operators has no name.
        """
        paths: dict[tuple[str, ...], bool] = {}
        for selected, is_short in product(_parts(storages), (False, True)):
            nodes = list(self._recomputed_nodes(selected, is_short))
            # Except for the full path, some paths into a cell do not compile: "The pointer[context] is null".
            if (selected is storages and not is_short) or not (self.is_newer and self._is_into_cell(nodes)):
                path = self._recompute_path(nodes)
                paths[path] = paths.get(path, False) or self._is_across(nodes)
        return paths

    def is_within_reach(self, storages: list[SavedStorage]) -> bool:
        """Return whether operator names can recompute any of the storages from tensors kept anyway."""
        return any(
            self._recompute_path(list(self._recomputed_nodes(selected, is_short=False)))
            for selected in _parts(storages)
        )

    def cells_before(self, cell: str) -> set[str]:
        """Return the cells of the layer, outside the given one, whose outputs it reads."""
        nodes_of_layer = {node.name: node for node in self.graph.forward if node.layer_index == self.layer_index}
        inside = [node for node in nodes_of_layer.values() if is_within(node.cell_path, cell)]
        sources = {source.cell_path for node in inside for source in self._sources(node, nodes_of_layer)}
        return {path for path in sources if path and not is_within(path, cell)}

    def _is_across(self, nodes: list[Node]) -> bool:
        """Return whether an operator outside a cell with weights reads an output of that cell."""
        weighted_nodes = {node.name: node for node in nodes if node.cell_path in self.weight_cells}
        return any(
            not is_within(node.cell_path, source.cell_path)
            for node in nodes
            for source in self._sources(node, weighted_nodes)
        )

    def _is_into_cell(self, nodes: list[Node]) -> bool:
        """Return whether an operator that is recomputed with its cell reads an output of a cell with weights."""
        cells = {node.cell_path for node in nodes if node.op == "MakeTuple"}
        inside = [node for node in nodes if any(is_within(node.cell_path, cell) for cell in cells)]
        weighted_nodes = {
            node.name: node for node in nodes if node.cell_path in self.weight_cells and node not in inside
        }
        return any(self._sources(node, weighted_nodes) for node in inside)

    def _sources(self, node: Node, candidates: Mapping[str, Node]) -> list[Node]:
        """Return the candidates whose outputs a node reads, also as members of tuples."""
        names = (first_source(name, TUPLE_OPS, self.graph.index.forward_nodes) for name in node.inputs)
        return [candidates[name] for name in names if name in candidates]

    def _can_swap(self, holders: list[Node]) -> bool:
        """Return whether each holder has a name in the cell in which the compiler places it.

        Of two consecutive reshapes the compiler keeps one, with the name of the first and the cell of the second; plans
        do not swap these.
        """
        return bool(self._paths(holders)) and all(
            any(name.rpartition(".")[0] == node.cell_path for name in self.names(node)) for node in holders
        )

    def _recompute_path(self, nodes: list[Node]) -> tuple[str, ...]:
        """Return the names that recompute these operators.

        A tuple that an operator reads has no name; it is recomputed with its cell. The producer of a cell's output is
        not recomputed with the cell, so the path is empty if it is needed.
        """
        cells = tuple(dict.fromkeys(node.cell_path for node in nodes if node.op == "MakeTuple"))
        inside = {node.name for node in nodes if any(is_within(node.cell_path, cell) for cell in cells)}
        read_outside = {name for reader in self.graph.forward if reader.name not in inside for name in reader.inputs}
        if "" in cells or not inside.isdisjoint(read_outside):
            return ()
        outside = [node for node in nodes if node.op not in TUPLE_OPS and node.name not in inside]
        names = self._paths(outside)
        seconds = (name for node in outside for name in self._second_names(node))
        return tuple(dict.fromkeys((*cells, *names, *seconds))) if names else ()

    def _second_names(self, node: Node) -> list[str]:
        """Return the names of a second reshape merged with this one by the compiler: both must be recomputed."""
        return merged_readers(node, (tuple(name.split(".")) for name in self.names(node)), self.layer)

    def _paths(self, nodes: Iterable[Node]) -> tuple[str, ...]:
        """Return the names of operators; an empty tuple if one of them has none."""
        paths: dict[str, None] = {}
        for node in nodes:
            if self.names.can_name(node):
                paths.update(dict.fromkeys(self.names(node)))
            elif node.op not in VIEW_OPS and "-" in node.scope.rpartition("/")[0]:
                return ()  # operators without name that the compiler inserts are recomputed with their reader
        return tuple(paths)

    def _recomputed_nodes(self, storages: list[SavedStorage], is_short: bool) -> Iterator[Node]:
        """Yield the operators from the holders of storages back to values that are saved anyway.

        A short path ends at an operator whose output is larger than its inputs and not saved, such as a cast to a wider
        dtype; its inputs are saved instead.
        """
        target_names = {node.name for entry in storages for node in entry.holders}
        stack = [node for entry in storages for node in entry.holders]
        seen = set()
        while stack:
            node = stack.pop()
            if node.name in seen or node.layer_index not in (self.layer_index, None):
                continue
            seen.add(node.name)
            if node.op != "TupleGetItem":
                yield node
            sources = []
            for name in node.inputs:
                source = self.graph.index.forward_nodes.get(name)
                if source is None or source.op in IGNORED_OPS or source.op in REDISTRIBUTION_OPS:
                    continue
                is_kept = name in self.kept and name not in target_names
                if not is_kept and (source.layer_index == self.layer_index or source.op in TUPLE_OPS):
                    sources.append(source)
            if (
                not is_short
                or node.op in TUPLE_OPS
                or sum(source_node.size_bytes for source_node in sources) >= node.size_bytes
            ):
                stack += sources
