"""Tensors of a layer, their readers, and minimum recompute times: input of the lower bound."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import numpy as np

from mindswap.graph.analysis.saved_tensors import Label
from mindswap.graph.analysis.work import Work, measure_work
from mindswap.graph.constants import constant_operators
from mindswap.graph.layer_paths import has_scope
from mindswap.graph.model import Graph, Node, first_source
from mindswap.graph.ops import (
    BOOKKEEPING_OPS,
    COMMUNICATION_OPS,
    FUSED_OPS,
    REDISTRIBUTION_OPS,
    VALUE_PASSING_OPS,
    VIEW_OPS,
    is_kernel,
)
from mindswap.graph.passes.fusion import fuse_forward, min_recompute_work, readers_of_saved
from mindswap.graph.passes.gather import is_gathering
from mindswap.graph.passes.interleaved_halves import RING
from mindswap.graph.passes.swap_recompute import classify_nodes
from mindswap.graph.storage import StorageKind, classify_saved, first_reader_positions, resolve_storage
from mindswap.policy.cell_tree import exact_pattern, is_within
from mindswap.policy.model import ALL_LAYERS, NO_LAYERS, OpRecompute, Policy
from mindswap.policy.resolve import Path
from mindswap.simulator.program import NO_OP
from mindswap.simulator.step_model import StepModel


@dataclass(frozen=True)
class CommunicationGap:
    """Idle time of the compute stream during communication, and the recomputed operators that may fill it."""

    idle_ns: int  # upper limit of the idle time
    ops: tuple[int, ...]  # operators that may be recomputed in the gap
    # of these, the operators whose outputs backward itself first reads in the gap; others run there for one of them
    first_read_ops: frozenset[int]
    read_before: frozenset[int] = frozenset()  # tensors that backward reads before the gap

    def only_for(self, tensor_graph: "TensorGraph") -> dict[int, set[int]]:
        """Return, by operator, the operators that are recomputed in the gap only if it is, itself included."""
        readers: dict[int, set[int]] = {op: set() for op in self.ops}
        for op, tensor in tensor_graph.reads:
            if op in readers and tensor_graph.makers[tensor] in readers:
                readers[tensor_graph.makers[tensor]].add(op)
        free = {op: own for op, own in readers.items() if own and op not in self.first_read_ops}
        found: dict[int, set[int]] = {}
        for op in self.ops:
            group: set[int] = set()
            more = {op}
            while more:
                group |= more
                more = {other for other, own in free.items() if other not in group and own <= group}
            found[op] = group
        return found


@dataclass(frozen=True)
class RecomputedCell:
    """A cell that calls functions: they have no names, so only recompute of the cell, or one around it, runs them."""

    functions: frozenset[int]  # operators that are recomputed with the cell only
    ops: frozenset[int]  # all operators recomputed with the cell, if something reads them
    tensors: frozenset[int]  # outputs of these that are freed
    # (operator, tensor): the operator reads the tensor through a view that is a function of the cell. If the operator
    # is recomputed without the cell, backward holds the view, so the tensor is kept: no name swaps it
    views: frozenset[tuple[int, int]] = frozenset()
    of_weights: frozenset[int] = frozenset()  # freed outputs of operators that read weights only

    def made_before(self, read_before: Set[int], tensor_graph: "TensorGraph") -> frozenset[int]:
        """Return the operators recomputed before the gap, given the tensors that backward reads before it.

        The cell's outputs are freed, so backward recomputes their producers and, transitively, the producers of their
        inputs.
        """
        gone = self.tensors | self.of_weights
        inputs: dict[int, set[int]] = {}
        for op, tensor in tensor_graph.reads:
            if tensor in gone:
                inputs.setdefault(op, set()).add(tensor_graph.makers[tensor])
        return closure((tensor_graph.makers[tensor] for tensor in self.tensors & read_before), inputs)


@dataclass(frozen=True, eq=False)
class TensorGraph:
    """Tensors and operators of one layer, each identified by its index."""

    sizes_bytes: tuple[int, ...]  # of each tensor
    makers: tuple[int, ...]  # operator that makes each tensor
    saved: frozenset[int]  # tensors that backward reads
    outputs: frozenset[int]  # tensors that other layers read; never recomputed
    reads: tuple[tuple[int, int], ...]  # (operator, tensor) for each tensor that an operator of the layer reads
    # minimum recompute time of each operator on the compute stream; negative if forward saves more than that because it
    # need not store an output that nothing holds
    recompute_ns: tuple[int, ...]
    communication_ns: tuple[int, ...]  # time of the operator on the communication stream
    # communicating operator -> operators that may be recomputed while it communicates
    overlapping_ops: Mapping[int, frozenset[int]] = field(default_factory=dict)
    gaps: tuple[CommunicationGap, ...] = ()  # where recompute may be hidden
    # additional recompute time of each operator if one of its readers is recomputed, too: an output with two readers is
    # not fused (kept in registers). Empty if all are 0.
    unfused_extra_ns: tuple[int, ...] = ()
    # all-gathered weights: never swapped, and freed before backward if nothing is recomputed
    gathered: frozenset[int] = frozenset()
    # outputs of the previous layer that backward holds only for recomputed operators that read them
    boundary_inputs: frozenset[int] = frozenset()
    unswappable_tensors: frozenset[int] = frozenset()  # tensors held under no name: never swapped
    freed_by_recompute: frozenset[int] = frozenset()  # tensors freed if their operator is recomputed
    # members of tuples: a prefetched tuple is read by the gradient of its operator only (`graph.passes`), so recomputed
    # operators read members that are kept or recomputed
    tuple_members: frozenset[int] = frozenset()
    # tensors that share a name: all of them are swapped, except recomputed ones
    swapped_together: tuple[tuple[int, ...], ...] = ()
    # (tensor, operator) pairs that share a name; swapping by that name excludes recomputing the operator
    mutually_exclusive: tuple[tuple[int, int], ...] = ()
    recomputed_cells: tuple[RecomputedCell, ...] = ()  # cells that call functions
    # pairs of operators that share a name: recompute of the first implies recompute of the second
    implied_recomputes: tuple[tuple[int, int], ...] = ()
    # operators that are never recomputed because they read weights only (`simulator.segment_reader`)
    computed_once: frozenset[int] = frozenset()
    avoided_store_ns: int = 0  # upper limit of the stores that forward avoids if nothing holds its outputs

    @property
    def inputs(self) -> dict[int, set[int]]:
        """Producers of the inputs of each operator, within the layer."""
        return _inputs_of(self.makers, self.reads)

    @property
    def saved_bytes(self) -> int:
        """Bytes saved for backward if everything is kept."""
        return sum(self.sizes_bytes[tensor] for tensor in self.saved)


def build_tensor_graphs(model: StepModel) -> tuple[TensorGraph, ...]:
    """Build the tensor graph of each compiled layer."""
    times_ns = _times_recompute_ns(model)
    return tuple(_build_tensor_graph(model, position, *times_ns) for position in range(len(model.captured.trees)))


def _times_recompute_ns(model: StepModel) -> tuple[Mapping[str, int], ...]:
    """By name of an operator of forward, `recompute_ns`, `unfused_extra_ns`, `avoided_store_ns` of `TensorGraph`."""
    graph = model.captured.graph
    works = measure_work(graph)

    def times_ns(of_forward: Iterable[Work]) -> np.ndarray:
        """Time on the compute stream of each operator of forward."""
        pairs = zip(graph.forward, of_forward, strict=True)
        return np.array(
            [0 if node.op in COMMUNICATION_OPS else model.costs.operator_ns(node, work) for node, work in pairs]
        )

    # What backward has a copy of without any policy has no second one with any.
    runs_anyway = np.array([node.name in graph.index.duplicates for node in graph.forward], bool)
    if model.settings.is_fused:
        users = readers_of_saved(graph)
        least_ns, apart_ns = (times_ns(min_recompute_work(graph, works[0], users, twice)) for twice in (False, True))
        least_ns[runs_anyway] = apart_ns[runs_anyway] = 0
        least_ns -= fusion_saving_ns(graph, works[1], users, model.costs.operator_ns)
        more_ns = apart_ns - least_ns
        # What runs again need not be written in forward.
        avoided_store_ns = times_ns(fuse_forward(graph, works[0]))
        avoided_store_ns -= times_ns(fuse_forward(graph, works[0], is_saved=False))
        least_ns -= avoided_store_ns
    else:
        least_ns, more_ns, avoided_store_ns = times_ns(works[0]), *np.zeros((2, len(works[0])), np.int64)
        least_ns[runs_anyway] = 0
    names = [node.name for node in graph.forward]
    return tuple(dict(zip(names, found.tolist(), strict=True)) for found in (least_ns, more_ns, avoided_store_ns))


def fusion_saving_ns(
    graph: Graph, works: Sequence[Work], users: Mapping[str, Sequence[Node]], operator_ns: Callable[[Node, Work], int]
) -> np.ndarray:
    """Time that backward saves at most, where a copy of each operator of forward hands on in registers what it makes.

    Only what has one reader is handed on. What reads so little less that it fits into the cache saves much: so it
    depends on what else the reader gets in registers.

    Args:
        graph: the step without recompute.
        works: of backward, not fused.
        users: from `readers_of_saved`.
        operator_ns: duration of an operator.
    """
    index = graph.index
    work_of = dict(zip((node.name for node in graph.backward), works, strict=True))

    def handed_by(name: str) -> Node | None:
        """The operator that could hand this value on."""
        passed = first_source(name, VALUE_PASSING_OPS, index.nodes)
        maker = first_source(index.forward_names.get(passed, passed), VALUE_PASSING_OPS, index.nodes)
        return index.nodes[maker] if maker in index.nodes and index.nodes[maker].op in FUSED_OPS else None

    def saved_ns(node: Node) -> int:
        own = users.get(node.name, ())
        if len(own) != 1 or node.op not in FUSED_OPS or own[0].op not in FUSED_OPS:
            return 0
        reader, work = own[0], work_of[own[0].name]
        may_read = {work.read_bytes}
        for other in filter(None, map(handed_by, reader.inputs)):
            if other.name != node.name:
                may_read |= {read - other.size_bytes for read in may_read}

        def time_ns(read_bytes: int, is_fused: bool) -> int:
            return operator_ns(reader, replace(work, read_bytes=max(read_bytes, 0), is_fused=is_fused))

        return max(time_ns(read, False) - time_ns(read - node.size_bytes, True) for read in may_read)

    return np.array([saved_ns(node) for node in graph.forward], np.int64)


def _build_tensor_graph(
    model: StepModel,
    layer_index: int,
    recompute_ns: Mapping[str, int],
    unfused_extra_ns: Mapping[str, int],
    avoided_store_ns: Mapping[str, int],
) -> TensorGraph:
    """The flow of a compiled layer.

    Args:
        model: the step.
        layer_index: position of the layer among the compiled ones.
        recompute_ns: from `_times_recompute_ns`.
        unfused_extra_ns: from `_times_recompute_ns`.
        avoided_store_ns: from `_times_recompute_ns`.
    """
    graph = model.captured.graph
    kernels = [node for node in graph.forward if is_kernel(node.op)]
    held = _held_gathers(model, layer_index)
    # What becomes of other gathered weights no policy changes: they are not in the programme.
    own = [
        node
        for node in kernels
        if node.layer_index == layer_index and (not is_gathering(node) or model.names(node) in held)
    ]
    ops = {node.name: position for position, node in enumerate(own)}
    keys = [(node.name, index) for node in own for index, known in enumerate(node.outputs) if known.size_bytes]
    keys_before = _find_boundary_inputs(graph, layer_index)
    tensors = {key: position for position, key in enumerate((*keys, *keys_before))}
    boundary_inputs = frozenset(range(len(keys), len(tensors)))
    saved = {
        tensors[entry.storage.name, entry.storage.output_index]: entry
        for entry in classify_saved(graph)
        if (entry.storage.name, entry.storage.output_index) in tensors
    }

    def held_by(node: Node) -> set[int]:
        """What an operator makes, or is a name of."""
        own = ((node.name, index) for index in range(len(node.outputs)))
        return {tensors[key] for key in (*own, *_storages(graph, (node.name,))) if key in tensors}

    def read_by(node: Node) -> set[int]:
        return {tensors[key] for key in _storages(graph, node.inputs) if key in tensors}

    gathered = {tensors[name, index] for name, index in keys if is_gathering(graph.index.forward_nodes[name])}
    outputs = {tensor for node in kernels if node.layer_index != layer_index for tensor in read_by(node)}
    reads = tuple((ops[node.name], tensor) for node in own for tensor in sorted(read_by(node)))
    # What the layer before hands on has makers of its own here, which take no time.
    makers = (*(ops[name] for name, _ in keys), *range(len(own), len(own) + len(keys_before)))
    no_time = (0,) * len(keys_before)
    unit = model.costs.device.pool_alignment_bytes
    communication_ns = tuple(
        0 if node.name in graph.index.duplicates  # as its time on the compute stream
        else sum(map(model.collective_ns, model.captured.collectives.get(node.name, ())))
        for node in own
    )  # fmt: skip
    first_users = {tensor: entry.first_user for tensor, entry in saved.items()}
    # Where halves of a layer take turns, one goes on while the other one communicates.
    has_halves = model.settings.has_interleaved_halves
    is_early = {ops[node.name] for node in own if _communicates_early(model, node)}
    holders: dict[int, list[Node]] = {}
    for node in graph.forward:
        for tensor in held_by(node):
            holders.setdefault(tensor, []).append(node)
    handed_as = {name for node in graph.forward if node.layer_index == layer_index for name in node.inputs}

    def is_named(tensor: int, node: Node) -> bool:
        """What the layer before hands on stays under a name under which this one reads it."""
        is_held = tensor not in boundary_inputs or node.name in handed_as
        return is_held and model.names.can_name(graph.owner(node))

    named = {tensor for tensor, nodes in holders.items() if any(is_named(tensor, node) for node in nodes)}
    # Tensors that only their operator is a name of.
    decided = {
        tensor: own[makers[tensor]]
        for tensor, nodes in holders.items()
        if tensor not in boundary_inputs
        and all(graph.owner(holder).name == own[makers[tensor]].name for holder in nodes)
    }
    decided_named = {
        tensor: decided[tensor] for tensor in saved if tensor in decided and model.names.can_name(decided[tensor])
    }
    # of these, what is read in the cell of its operator only, so that all of it runs again together
    freed_by_recompute = {tensor for tensor, node in decided.items() if _are_read_inside(graph, node, holders[tensor])}
    return TensorGraph(
        sizes_bytes=tuple(
            -(-graph.index.forward_nodes[name].outputs[index].size_bytes // unit) * unit for name, index in tensors
        ),
        makers=makers,
        saved=frozenset(saved),
        outputs=frozenset(outputs | gathered | boundary_inputs),
        reads=reads,
        recompute_ns=(*(recompute_ns[node.name] for node in own), *no_time),
        communication_ns=(*communication_ns, *no_time),
        overlapping_ops=_find_overlapping_ops(communication_ns, first_users, makers, reads, is_early, has_halves),
        gaps=tuple(_find_gaps(model, first_users, makers, reads, has_halves)),
        unfused_extra_ns=(*(unfused_extra_ns[node.name] for node in own), *no_time),
        gathered=frozenset(gathered),
        boundary_inputs=boundary_inputs,
        unswappable_tensors=frozenset(range(len(tensors))) - named,
        freed_by_recompute=frozenset(freed_by_recompute),
        tuple_members=frozenset(tensor for tensor, node in decided.items() if len(node.outputs) > 1),
        swapped_together=tuple(_find_swapped_together(decided_named, model.names)),
        mutually_exclusive=tuple(_find_mutually_exclusive(decided_named, model.names, own)),
        recomputed_cells=tuple(_find_recomputed_cells(model, own, tensors, makers, reads, holders)),
        implied_recomputes=tuple(_find_implied_recomputes(model, own, {own[makers[tensor]].name for tensor in saved})),
        computed_once=_find_computed_once(model, own),
        avoided_store_ns=sum(avoided_store_ns[node.name] for node in own),
    )


def _find_boundary_inputs(graph: Graph, layer_index: int) -> list[tuple[str, int]]:
    """Return `TensorGraph.boundary_inputs` of a compiled layer: (name, output index), read by this layer only."""
    readers: dict[tuple[str, int], set[int | None]] = {}
    for node in graph.forward:
        if is_kernel(node.op):
            for key in _storages(graph, node.inputs):
                readers.setdefault(key, set()).add(node.layer_index)
    held = {(entry.storage.name, entry.storage.output_index) for entry in classify_saved(graph)}

    def is_saved_name(name: str, index: int) -> bool:
        node = graph.index.forward_nodes[name]
        is_before = node.layer_index is not None and node.layer_index + 1 == layer_index
        return is_before and not is_gathering(node) and node.outputs[index].size_bytes > 0

    return [key for key, found in readers.items() if found == {layer_index} and key not in held and is_saved_name(*key)]


def _find_swapped_together(named: Mapping[int, Node], names: Callable[[Node], Label]) -> Iterable[tuple[int, ...]]:
    """`TensorGraph.swapped_together`, of tensors that only their operator is a name of, with these operators."""
    groups: dict[Hashable, list[int]] = {}
    for tensor, maker in named.items():
        groups.setdefault(names(maker) if len(names(maker)) == 1 else maker.name, []).append(tensor)
    return (tuple(tensors) for tensors in groups.values() if len(tensors) > 1)


def _find_mutually_exclusive(
    named: Mapping[int, Node], names: Callable[[Node], Label], own: Iterable[Node]
) -> Iterable[tuple[int, int]]:
    """`TensorGraph.mutually_exclusive` of such tensors; `own` are the operators of the layer."""
    by_name: dict[Label, list[int]] = {}
    for op, node in enumerate(own):
        by_name.setdefault(names(node), []).append(op)
    return ((tensor, op) for tensor, node in named.items() if len(names(node)) == 1 for op in by_name[names(node)])


def _find_recomputed_cells(
    model: StepModel,
    own: Sequence[Node],
    tensors: Mapping[tuple[str, int], int],
    makers: Sequence[int],
    reads: Iterable[tuple[int, int]],
    holders: Mapping[int, Sequence[Node]],
) -> Iterable[RecomputedCell]:
    """`TensorGraph.recomputed_cells`, of the operators of a layer, its tensors, what makes each, and all names of it.

    What reads weights alone runs again with the cell only in a step that swaps (`simulator.segment_reader`).
    """
    if model.layers.reads_caches:
        return
    reading = {op for op, _ in reads}
    functions: dict[str, set[int]] = {}
    for op, node in enumerate(own):
        is_of_cell = has_scope(node) and not is_gathering(node) and node.op not in REDISTRIBUTION_OPS
        if is_of_cell and not model.names.can_name(node):
            functions.setdefault(node.cell_path, set()).add(op)
    for cell, op in _read_by_functions(model, own):
        functions.setdefault(cell, set()).add(op)
    for cell in (views := _views(model, own, tensors)):
        functions.setdefault(cell, set())
    for cell, ops in functions.items():
        entries = (OpRecompute(exact_pattern(cell), ALL_LAYERS),) if cell else ()
        policy = Policy(True, select_recompute=entries, layer_recompute=NO_LAYERS if cell else ALL_LAYERS)
        layer_index = model.captured.sample.layer_map.index(own[0].layer_index)
        graph = model.layers.rewritten(policy, layer_index)
        again = {node.name for node in graph.forward if node.is_recomputed}
        gone = {
            tensor
            for tensor, nodes in holders.items()
            if makers[tensor] < len(own) and again.issuperset(node.name for node in nodes)
        }
        with_inputs = {tensor for tensor in gone if makers[tensor] in reading}
        yield RecomputedCell(
            frozenset(ops),
            frozenset(op for op, node in enumerate(own) if node.name in again),
            frozenset(with_inputs),
            frozenset(views.get(cell, ())),
            frozenset(gone - with_inputs),
        )


def _find_computed_once(model: StepModel, own: Sequence[Node]) -> frozenset[int]:
    """Return `TensorGraph.computed_once`: with several micro-steps the operators that read no activation."""
    if model.layout.num_micro_steps == 1:
        return frozenset()
    graph = model.captured.graph
    constants = constant_operators(graph).keys()
    return frozenset(
        op
        for op, node in enumerate(own)
        if not any(_storages(graph, node.inputs)) and not is_gathering(node) and constants.isdisjoint(node.inputs)
    )


def _function_cell(model: StepModel, node: Node) -> str | None:
    """The cell of a view or an operator that no name is for, and that runs again with that cell or one around it."""
    is_known = (node.op in VIEW_OPS or is_kernel(node.op)) and node.op not in REDISTRIBUTION_OPS
    is_known = is_known and has_scope(node) and not is_gathering(node) and not model.names.can_name(node)
    # Of two reshapes in a row the compiler leaves one, with the place of the second.
    is_known = is_known and any(name.rpartition(".")[0] == node.cell_path for name in model.names(node))
    return node.cell_path if is_known and node.attributes.get("recompute") is not True else None


def _held_names(graph: Graph) -> set[str]:
    """Operators under whose names backward holds something."""
    return {keeper.name for entry in classify_saved(graph) for keeper in entry.holders}


def _read_by_functions(model: StepModel, own: Iterable[Node]) -> Iterable[tuple[str, int]]:
    """Cells, and operators of the layer that functions of one cell alone read, whatever their names.

    Backward asks none but these functions for them, so they run again with that cell, too.
    """
    graph = model.captured.graph
    held = _held_names(graph)
    for op, node in enumerate(own):
        readers = graph.index.forward_readers.get(node.name, ())
        cells = {_function_cell(model, reader) for reader in readers if reader.layer_index == node.layer_index}
        is_inner = node.name not in held and all(reader.layer_index == node.layer_index for reader in readers)
        yield from ((cell, op) for cell in cells if cell is not None and is_inner and len(cells) == 1)


def _views(
    model: StepModel, own: Iterable[Node], tensors: Mapping[tuple[str, int], int]
) -> dict[str, set[tuple[int, int]]]:
    """`RecomputedCell.views` by cell, of the operators of a layer."""
    graph = model.captured.graph
    found: dict[str, set[tuple[int, int]]] = {}
    for op, node in enumerate(own):
        for name in node.inputs:
            view = graph.index.forward_nodes.get(name)
            if view is None or view.op not in VIEW_OPS or view.layer_index != node.layer_index:
                continue
            cell = _function_cell(model, view)
            if cell is not None:
                read = {tensors[key] for key in _storages(graph, (name,)) if key in tensors}
                found.setdefault(cell, set()).update((op, tensor) for tensor in read)
    return found


def _find_implied_recomputes(model: StepModel, own: Sequence[Node], saved: Set[str]) -> Iterable[tuple[int, int]]:
    """`TensorGraph.implied_recomputes`, of the operators of a layer, and names of those that make what backward reads.

    A policy names both, or a cell that both are in; so the second runs again, too, unless something outside of that
    cell reads it, and backward asks for it in any case. An operator that only a view reads, as which backward has it,
    runs again only if the view does.
    """
    graph = model.captured.graph
    places, readers = classify_nodes(graph, model.names), graph.index.forward_readers
    held = _held_names(graph)

    def inner_cell(node: Node, path: Path) -> Path:
        """The smallest cell around a path outside of which nothing reads an operator."""
        cells = (path[:depth] for depth in range(len(path) - 1, 0, -1))
        return next((cell for cell in cells if not places.is_read_outside(node, cell)), ())

    def with_views(node: Node) -> Iterator[Node]:
        yield node
        while node.name not in held and len(found := readers.get(node.name, ())) == 1 and found[0].op in VIEW_OPS:
            node = found[0]
            yield node

    by_path: dict[Path, list[tuple[int, Path]]] = {}
    for op, node in enumerate(own):
        if node.name in saved and len(paths := places.paths(node)) == 1:
            by_path.setdefault(paths[0], []).append((op, inner_cell(node, paths[0])))
    for op, node in enumerate(own):
        for one in with_views(node):
            paths = places.paths(one)
            if len(paths) > 1 or one.attributes.get("recompute") is True:
                continue
            cell = inner_cell(one, paths[0])
            for other, inner in by_path.get(paths[0], ()):
                if other != op and inner[: len(cell)] == cell:
                    yield op, other


def _are_read_inside(graph: Graph, maker: Node, holders: Iterable[Node]) -> bool:
    """Names of what an operator makes are read in its cell only."""
    return all(
        reader.op in BOOKKEEPING_OPS
        or (
            reader.layer_index == maker.layer_index
            and has_scope(reader)
            and is_within(reader.cell_path, maker.cell_path)
        )
        for holder in holders
        for reader in graph.index.forward_readers.get(holder.name, ())
    )


def _communicates_early(model: StepModel, node: Node) -> bool:
    """The operator communicates before it computes, or meanwhile."""
    return any(c.is_before or c.kind == RING for c in model.captured.collectives.get(node.name, ()))


def _inputs_of(makers: Sequence[int], reads: Iterable[tuple[int, int]]) -> dict[int, set[int]]:
    """Return, by operator, the producers of its inputs within the layer."""
    found: dict[int, set[int]] = {}
    for op, tensor in reads:
        found.setdefault(op, set()).add(makers[tensor])
    return found


def closure(ops: Iterable[int], inputs: Mapping[int, Iterable[int]]) -> frozenset[int]:
    """Operators, and all from which they are made."""
    pending, found = list(ops), set[int]()
    while pending:
        op = pending.pop()
        if op not in found:
            found.add(op)
            pending += inputs.get(op, ())
    return frozenset(found)


def _find_overlapping_ops(
    communication_ns: Sequence[int],
    first_users: Mapping[int, int],
    makers: Sequence[int],
    reads: Iterable[tuple[int, int]],
    is_early: Set[int],
    has_halves: bool,
) -> dict[int, frozenset[int]]:
    """`TensorGraph.overlapping_ops`.

    What is first to read the copy of an operator reads others as well, which may be made again after it, and what these
    are made of. Early is communication before or beside the operator: then what it is made of counts, and itself.
    """
    inputs = _inputs_of(makers, reads)
    found = {}
    for op in (op for op, time_ns in enumerate(communication_ns) if time_ns):
        users = {first_users[tensor] for tensor in first_users if makers[tensor] == op}
        read_with = [makers[tensor] for tensor, user in first_users.items() if user in users]
        readers = [reader for reader, read in inputs.items() if op in read]
        others = closure([*read_with, *(other for reader in readers for other in inputs[reader])], inputs)
        own = closure([op], inputs)
        found[op] = others - own | (own if op in is_early else frozenset())
        if has_halves:
            found[op] = frozenset(range(len(communication_ns)))
    return found


def _held_gathers(model: StepModel, layer_index: int) -> set[Label]:
    """Gathered weights that backward holds only if what reads them runs again; later micro-batches need none."""
    if model.layout.num_micro_steps > 1 or model.layers.reads_caches:
        return set()
    index = model.captured.sample.layer_map.index(layer_index)
    held, held_anyway = (
        {
            tensor.label
            for tensor in model.layer_block(policy, index).tensors
            if tensor.is_per_step and tensor.role is None and tensor.uses.first_backward != NO_OP
        }
        for policy in (Policy(True, layer_recompute=ALL_LAYERS), Policy())
    )
    return held - held_anyway


def _storages(graph: Graph, names: Iterable[str]) -> Iterable[tuple[str, int]]:
    """The pieces of memory behind values; members of tuples one by one."""
    for name in names:
        node = graph.index.forward_nodes.get(name)
        if node is not None and node.op == "MakeTuple":
            yield from _storages(graph, node.inputs)
            continue
        storage = resolve_storage(graph, name)
        if storage.kind is StorageKind.ACTIVATION:
            yield storage.name, storage.output_index


def _find_gaps(
    model: StepModel,
    first_users: Mapping[int, int],
    makers: Sequence[int],
    reads: Iterable[tuple[int, int]],
    has_halves: bool,
) -> Iterable[CommunicationGap]:
    """Communication of backward after which the compute stream goes on, until an operator reads what it brings.

    A copy stands before the first reader of what it makes, or of what is made from that.
    """
    graph, inputs = model.captured.graph, _inputs_of(makers, reads)
    first_reader = first_reader_positions(graph.backward, VALUE_PASSING_OPS, lambda node: is_kernel(node.op))
    for position, node in enumerate(graph.backward):
        name = node.origin if node.is_duplicate else node.name
        behind = [
            c for c in model.captured.collectives.get(name, ()) if not c.is_before or node.op in COMMUNICATION_OPS
        ]
        if not (idle_ns := sum(map(model.collective_ns, behind))):
            continue
        last = first_reader.get(node.name, position)
        first_read_ops = frozenset(makers[tensor] for tensor, user in first_users.items() if position < user <= last)
        ops = closure(first_read_ops, inputs)
        before = frozenset(tensor for tensor, user in first_users.items() if user <= position)
        if ops:
            yield (
                CommunicationGap(idle_ns, tuple(ops), ops, frozenset())
                if has_halves
                else CommunicationGap(idle_ns, tuple(ops), first_read_ops, before)
            )
