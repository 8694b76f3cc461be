"""Tensors of a layer, their readers, and minimum recompute times: input of the lower bound."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import numpy as np

from mindswap.graph.analysis.saved_tensors import Label
from mindswap.graph.analysis.work import Work, measure_work
from mindswap.graph.layer_paths import has_scope
from mindswap.graph.model import Graph, Node, first_source
from mindswap.graph.ops import (
    COMMUNICATION_OPS,
    FUSED_OPS,
    REDISTRIBUTION_OPS,
    VALUE_PASSING_OPS,
    VIEW_OPS,
    is_kernel,
)
from mindswap.graph.passes.fusion import fuse_forward, min_recompute_work, readers_of_saved
from mindswap.graph.passes.gather import is_gathering
from mindswap.graph.passes.swap_recompute import classify_nodes
from mindswap.graph.ring_attention import RING
from mindswap.graph.storage import StorageKind, classify_saved, first_reader_positions, resolve_storage
from mindswap.planner.lower_bound.weight_copies import find_required_recomputes, time_weight_copies
from mindswap.policy.cell_tree import exact_pattern
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
            if op in readers and tensor_graph.producers[tensor] in readers:
                readers[tensor_graph.producers[tensor]].add(op)
        free = {op: op_readers for op, op_readers in readers.items() if op_readers and op not in self.first_read_ops}
        groups: dict[int, set[int]] = {}
        for op in self.ops:
            group: set[int] = set()
            more = {op}
            while more:
                group |= more
                more = {reader for reader, op_readers in free.items() if reader not in group and op_readers <= group}
            groups[op] = group
        return groups


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
    path: str = ""  # of the cell below the layer; "" for the layer itself

    def without(self, ops: Iterable[int]) -> "RecomputedCell":
        """Return the cell without some functions, which do not depend on it."""
        return replace(self, functions=self.functions.difference(ops))

    def recomputed_before(self, read_before: Set[int], tensor_graph: "TensorGraph") -> frozenset[int]:
        """Return the operators recomputed before the gap, given the tensors that backward reads before it.

        The cell's outputs are freed, so backward recomputes their producers and, transitively, the producers of their
        inputs.
        """
        freed = self.tensors | self.of_weights
        inputs: dict[int, set[int]] = {}
        for op, tensor in tensor_graph.reads:
            if tensor in freed:
                inputs.setdefault(op, set()).add(tensor_graph.producers[tensor])
        return closure((tensor_graph.producers[tensor] for tensor in self.tensors & read_before), inputs)


@dataclass(frozen=True, eq=False)
class TensorGraph:
    """Tensors and operators of one layer, each identified by its index."""

    sizes_bytes: tuple[int, ...]  # of each tensor
    producers: tuple[int, ...]  # producer of each tensor
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
    # members of tuples: a prefetched tuple is read by the gradient of its operator only (`graph.passes`), so recomputed
    # operators read members that are kept or recomputed
    tuple_members: frozenset[int] = frozenset()
    recomputed_cells: tuple[RecomputedCell, ...] = ()  # cells that call functions
    # pairs of operators that share a name: recompute of the first implies recompute of the second
    implied_recomputes: tuple[tuple[int, int], ...] = ()
    # operators that copy a weight for backward -> duration in forward. A policy that recomputes all readers of a copy
    # avoids it: the copy counts as recomputed in no time, and forward is shorter by its duration
    weight_copies: Mapping[int, int] = field(default_factory=dict)
    # upper limit of the stores that forward avoids if nothing holds its outputs, and of the copies of weights
    avoided_forward_ns: int = 0
    op_names: tuple[str, ...] = ()  # operators in the graph, without the producers of boundary inputs
    # with pins (`pinned_layers`): operators that no policy recomputes, or every one; tensors that every one offloads
    never_recomputed: frozenset[int] = frozenset()
    always_recomputed: frozenset[int] = frozenset()
    always_swapped: frozenset[int] = frozenset()

    @property
    def inputs(self) -> dict[int, set[int]]:
        """Producers of the inputs of each operator, within the layer."""
        return _inputs_of(self.producers, self.reads)

    @property
    def saved_bytes(self) -> int:
        """Bytes saved for backward if everything is kept."""
        return sum(self.sizes_bytes[tensor] for tensor in self.saved)


def build_tensor_graphs(model: StepModel) -> tuple[TensorGraph, ...]:
    """Build the tensor graph of each compiled layer."""
    times_ns = _times_recompute_ns(model)
    return tuple(_build_tensor_graph(model, position, *times_ns) for position in range(len(model.captured.trees)))


def _times_recompute_ns(model: StepModel) -> tuple[Mapping[str, int], ...]:
    """Return recompute times, additional times and avoided stores by name of forward operator."""
    graph = model.captured.graph
    works = measure_work(graph)

    def times_ns(of_forward: Iterable[Work]) -> np.ndarray:
        """Return the time on the compute stream of each forward operator."""
        pairs = zip(graph.forward, of_forward, strict=True)
        return np.array(
            [0 if node.op in COMMUNICATION_OPS else model.costs.operator_ns(node, work) for node, work in pairs]
        )

    # Operators that backward recomputes without any policy are not recomputed a second time.
    runs_anyway = np.array([node.name in graph.index.duplicates for node in graph.forward], bool)
    if model.settings.is_fused:
        users = readers_of_saved(graph)
        min_ns, unfused_ns = (times_ns(min_recompute_work(graph, works[0], users, twice)) for twice in (False, True))
        min_ns[runs_anyway] = unfused_ns[runs_anyway] = 0
        min_ns -= fusion_saving_ns(graph, works[1], users, model.costs.operator_ns)
        extra_ns = unfused_ns - min_ns
        # Forward need not store outputs that are recomputed.
        avoided_store_ns = times_ns(fuse_forward(graph, works[0]))
        avoided_store_ns -= times_ns(fuse_forward(graph, works[0], is_saved=False))
        min_ns -= avoided_store_ns
    else:
        min_ns, extra_ns, avoided_store_ns = times_ns(works[0]), *np.zeros((2, len(works[0])), np.int64)
        min_ns[runs_anyway] = 0
    names = [node.name for node in graph.forward]
    return tuple(dict(zip(names, by_op.tolist(), strict=True)) for by_op in (min_ns, extra_ns, avoided_store_ns))


def fusion_saving_ns(
    graph: Graph, works: Sequence[Work], users: Mapping[str, Sequence[Node]], operator_ns: Callable[[Node, Work], int]
) -> np.ndarray:
    """Return the maximum time that fusion of a recomputed operator with its reader saves in backward.

    Only an output with one reader stays in registers. The saving is not linear, because a reader whose remaining inputs
    fit into the cache is much faster; so it depends on which other inputs of the reader are fused.

    Args:
        graph: step without recompute.
        works: work of each backward operator, not fused.
        users: readers of saved tensors, from `readers_of_saved`.
        operator_ns: (node, work) -> duration in ns.

    Returns:
        int64 ns, shape (num_forward_ops,).
    """
    index = graph.index
    work_of = dict(zip((node.name for node in graph.backward), works, strict=True))

    def fusible_producer(name: str) -> Node | None:
        """Return the fusible producer of a value; None if there is none."""
        passed = first_source(name, VALUE_PASSING_OPS, index.nodes)
        maker = first_source(index.forward_names.get(passed, passed), VALUE_PASSING_OPS, index.nodes)
        return index.nodes[maker] if maker in index.nodes and index.nodes[maker].op in FUSED_OPS else None

    def saved_ns(node: Node) -> int:
        readers = users.get(node.name, ())
        if len(readers) != 1 or node.op not in FUSED_OPS or readers[0].op not in FUSED_OPS:
            return 0
        reader, work = readers[0], work_of[readers[0].name]
        may_read = {work.read_bytes}
        for fusible in filter(None, map(fusible_producer, reader.inputs)):
            if fusible.name != node.name:
                may_read |= {read - fusible.size_bytes for read in may_read}

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
    """Build the tensor graph of a compiled layer.

    Args:
        model: step model.
        layer_index: position of the layer among the compiled ones.
        recompute_ns: from `_times_recompute_ns`.
        unfused_extra_ns: from `_times_recompute_ns`.
        avoided_store_ns: from `_times_recompute_ns`.
    """
    graph = model.captured.graph
    kernels = [node for node in graph.forward if is_kernel(node.op)]
    held_gathers = _held_gathers(model, layer_index)
    # No policy changes the lifetime of other gathered weights, so they are left out.
    layer_ops = [
        node
        for node in kernels
        if node.layer_index == layer_index and (not is_gathering(node) or model.names(node) in held_gathers)
    ]
    ops = {node.name: position for position, node in enumerate(layer_ops)}
    keys = [
        (node.name, index)
        for node in layer_ops
        for index, tensor_type in enumerate(node.outputs)
        if tensor_type.size_bytes
    ]
    boundary_keys = _find_boundary_inputs(graph, layer_index)
    tensors = {key: position for position, key in enumerate((*keys, *boundary_keys))}
    boundary_inputs = frozenset(range(len(keys), len(tensors)))
    saved = {
        tensors[entry.storage.name, entry.storage.output_index]: entry
        for entry in classify_saved(graph)
        if (entry.storage.name, entry.storage.output_index) in tensors
    }

    def tensors_held_by(node: Node) -> set[int]:
        """Return the tensors that an operator produces or is a holder of."""
        own_keys = ((node.name, index) for index in range(len(node.outputs)))
        return {tensors[key] for key in (*own_keys, *storages(graph, (node.name,))) if key in tensors}

    def read_by(node: Node) -> set[int]:
        return {tensors[key] for key in storages(graph, node.inputs) if key in tensors}

    gathered = {tensors[name, index] for name, index in keys if is_gathering(graph.index.forward_nodes[name])}
    outputs = {tensor for node in kernels if node.layer_index != layer_index for tensor in read_by(node)}
    reads = tuple((ops[node.name], tensor) for node in layer_ops for tensor in sorted(read_by(node)))
    # Boundary inputs get additional producers that take no time.
    producers = (*(ops[name] for name, _ in keys), *range(len(layer_ops), len(layer_ops) + len(boundary_keys)))
    no_time = (0,) * len(boundary_keys)
    unit = model.costs.device.pool_alignment_bytes
    communication_ns = tuple(
        0 if node.name in graph.index.duplicates  # as its time on the compute stream
        else sum(map(model.collective_ns, model.captured.collectives.get(node.name, ())))
        for node in layer_ops
    )  # fmt: skip
    first_users = {tensor: entry.first_user for tensor, entry in saved.items()}
    # With interleaved halves, one half computes while the other one communicates.
    has_halves = model.settings.has_interleaved_halves
    communicates_early = {ops[node.name] for node in layer_ops if _communicates_early(model, node)}
    holders: dict[int, list[Node]] = {}
    for node in graph.forward:
        for tensor in tensors_held_by(node):
            holders.setdefault(tensor, []).append(node)
    input_names = {name for node in graph.forward if node.layer_index == layer_index for name in node.inputs}

    def is_named(tensor: int, node: Node) -> bool:
        """Return whether swap by the name of this holder frees the tensor; boundary inputs need a name read here."""
        is_input = tensor not in boundary_inputs or node.name in input_names
        return is_input and model.names.can_name(graph.owner(node))

    named = {tensor for tensor, nodes in holders.items() if any(is_named(tensor, node) for node in nodes)}
    # Tensors whose only holder is their producer.
    sole_holders = {
        tensor: layer_ops[producers[tensor]]
        for tensor, nodes in holders.items()
        if tensor not in boundary_inputs
        and all(graph.owner(holder).name == layer_ops[producers[tensor]].name for holder in nodes)
    }
    weight_copies = time_weight_copies(model, layer_ops)
    saved_outputs: dict[int, set[int]] = {}
    for tensor in (saved.keys() & sole_holders.keys()) - outputs - gathered:
        saved_outputs.setdefault(producers[tensor], set()).add(tensor)
    required = find_required_recomputes(model, layer_ops, weight_copies, saved_outputs)
    return TensorGraph(
        sizes_bytes=tuple(
            -(-graph.index.forward_nodes[name].outputs[index].size_bytes // unit) * unit for name, index in tensors
        ),
        producers=producers,
        saved=frozenset((*saved, *(tensor for tensor in range(len(keys)) if producers[tensor] in weight_copies))),
        outputs=frozenset(outputs | gathered | boundary_inputs),
        reads=reads,
        recompute_ns=(
            *(recompute_ns[node.name] if op not in weight_copies else 0 for op, node in enumerate(layer_ops)),
            *no_time,
        ),
        communication_ns=(*communication_ns, *no_time),
        overlapping_ops=_find_overlapping_ops(
            communication_ns, first_users, producers, reads, communicates_early, has_halves
        ),
        gaps=tuple(_find_gaps(model, first_users, producers, reads, has_halves)),
        unfused_extra_ns=(
            *(unfused_extra_ns[node.name] if op not in weight_copies else 0 for op, node in enumerate(layer_ops)),
            *no_time,
        ),
        gathered=frozenset(gathered),
        boundary_inputs=boundary_inputs,
        unswappable_tensors=frozenset(range(len(tensors))) - named,
        tuple_members=frozenset(tensor for tensor, node in sole_holders.items() if len(node.outputs) > 1),
        recomputed_cells=tuple(
            cell.without(weight_copies)
            for cell in _find_recomputed_cells(model, layer_ops, tensors, producers, reads, holders)
        ),
        implied_recomputes=(
            *_find_implied_recomputes(model, layer_ops, {layer_ops[producers[tensor]].name for tensor in saved}),
            *required,
        ),
        weight_copies=weight_copies,
        avoided_forward_ns=sum(avoided_store_ns[node.name] for node in layer_ops) + sum(weight_copies.values()),
        op_names=tuple(node.name for node in layer_ops),
    )


def _find_boundary_inputs(graph: Graph, layer_index: int) -> list[tuple[str, int]]:
    """Return `TensorGraph.boundary_inputs` of a compiled layer: (name, output index), read by this layer only."""
    readers: dict[tuple[str, int], set[int | None]] = {}
    for node in graph.forward:
        if is_kernel(node.op):
            for key in storages(graph, node.inputs):
                readers.setdefault(key, set()).add(node.layer_index)
    saved_keys = {(entry.storage.name, entry.storage.output_index) for entry in classify_saved(graph)}

    def is_saved_name(name: str, index: int) -> bool:
        node = graph.index.forward_nodes[name]
        is_in_previous = node.layer_index is not None and node.layer_index + 1 == layer_index
        return is_in_previous and not is_gathering(node) and node.outputs[index].size_bytes > 0

    return [
        key
        for key, reader_layers in readers.items()
        if reader_layers == {layer_index} and key not in saved_keys and is_saved_name(*key)
    ]


def _find_recomputed_cells(
    model: StepModel,
    layer_ops: Sequence[Node],
    tensors: Mapping[tuple[str, int], int],
    producers: Sequence[int],
    reads: Iterable[tuple[int, int]],
    holders: Mapping[int, Sequence[Node]],
) -> Iterable[RecomputedCell]:
    """Yield `TensorGraph.recomputed_cells`.

    Operators that read weights only are recomputed with the cell in a step with swap only (`simulator.segment_reader`).

    Args:
        model: step model.
        layer_ops: operators of the layer.
        tensors: (name, output index) -> index of the tensor.
        producers: producer of each tensor.
        reads: (operator, tensor) pairs.
        holders: holders of each tensor.
    """
    if model.layers.reads_caches:
        return
    ops_with_inputs = {op for op, _ in reads}
    functions: dict[str, set[int]] = {}
    for op, node in enumerate(layer_ops):
        is_of_cell = has_scope(node) and not is_gathering(node) and node.op not in REDISTRIBUTION_OPS
        if is_of_cell and not model.names.can_name(node):
            functions.setdefault(node.cell_path, set()).add(op)
    for cell, op in _read_by_functions(model, layer_ops):
        functions.setdefault(cell, set()).add(op)
    for cell in (views := _views(model, layer_ops, tensors)):
        functions.setdefault(cell, set())
    for cell, ops in functions.items():
        entries = (OpRecompute(exact_pattern(cell), ALL_LAYERS),) if cell else ()
        policy = Policy(True, select_recompute=entries, layer_recompute=NO_LAYERS if cell else ALL_LAYERS)
        layer_index = model.captured.sample.layer_map.index(layer_ops[0].layer_index)
        graph = model.layers.rewritten(policy, layer_index)
        recomputed = {node.name for node in graph.forward if node.is_recomputed}
        freed = {
            tensor
            for tensor, nodes in holders.items()
            if producers[tensor] < len(layer_ops) and recomputed.issuperset(node.name for node in nodes)
        }
        with_inputs = {tensor for tensor in freed if producers[tensor] in ops_with_inputs}
        yield RecomputedCell(
            frozenset(ops),
            frozenset(op for op, node in enumerate(layer_ops) if node.name in recomputed),
            frozenset(with_inputs),
            frozenset(views.get(cell, ())),
            frozenset(freed - with_inputs),
            cell,
        )


def _function_cell(model: StepModel, node: Node) -> str | None:
    """Return the cell with which an unnamed view or operator is recomputed; None for others."""
    is_unnamed = (node.op in VIEW_OPS or is_kernel(node.op)) and node.op not in REDISTRIBUTION_OPS
    is_unnamed = is_unnamed and has_scope(node) and not is_gathering(node) and not model.names.can_name(node)
    # Of two consecutive reshapes the compiler keeps one, in the cell of the second.
    is_unnamed = is_unnamed and any(name.rpartition(".")[0] == node.cell_path for name in model.names(node))
    return node.cell_path if is_unnamed and node.attributes.get("recompute") is not True else None


def _holder_names(graph: Graph) -> set[str]:
    """Return the names of the holders of all saved tensors."""
    return {holder.name for entry in classify_saved(graph) for holder in entry.holders}


def _read_by_functions(model: StepModel, layer_ops: Iterable[Node]) -> Iterable[tuple[str, int]]:
    """Yield (cell, operator) for operators of the layer that only functions of that cell read.

    Only these functions need their outputs in backward, so they are recomputed with the cell, named or not.
    """
    graph = model.captured.graph
    holder_names = _holder_names(graph)
    for op, node in enumerate(layer_ops):
        readers = graph.index.forward_readers.get(node.name, ())
        cells = {_function_cell(model, reader) for reader in readers if reader.layer_index == node.layer_index}
        is_inner = node.name not in holder_names and all(reader.layer_index == node.layer_index for reader in readers)
        yield from ((cell, op) for cell in cells if cell is not None and is_inner and len(cells) == 1)


def _views(
    model: StepModel, layer_ops: Iterable[Node], tensors: Mapping[tuple[str, int], int]
) -> dict[str, set[tuple[int, int]]]:
    """Return `RecomputedCell.views` by cell."""
    graph = model.captured.graph
    views_of_cell: dict[str, set[tuple[int, int]]] = {}
    for op, node in enumerate(layer_ops):
        for name in node.inputs:
            view = graph.index.forward_nodes.get(name)
            if view is None or view.op not in VIEW_OPS or view.layer_index != node.layer_index:
                continue
            cell = _function_cell(model, view)
            if cell is not None:
                read = {tensors[key] for key in storages(graph, (name,)) if key in tensors}
                views_of_cell.setdefault(cell, set()).update((op, tensor) for tensor in read)
    return views_of_cell


def _find_implied_recomputes(model: StepModel, own: Sequence[Node], saved: Set[str]) -> Iterable[tuple[int, int]]:
    """Yield `TensorGraph.implied_recomputes`.

    A policy names both operators, or a cell with both; so the second is recomputed, too, unless an operator outside of
    that cell reads it. An operator that backward saves as a view is recomputed only if the view is.

    Args:
        model: step model.
        own: operators of the layer.
        saved: names of the producers of saved tensors.
    """
    graph = model.captured.graph
    classes = classify_nodes(graph, model.names)

    def inner_cell(node: Node, path: Path) -> Path:
        """Return the smallest cell around a path such that no operator outside of it reads this one."""
        cells = (path[:depth] for depth in range(len(path) - 1, 0, -1))
        return next((cell for cell in cells if not classes.is_read_outside(node, cell)), ())

    by_path: dict[Path, list[tuple[int, Path]]] = {}
    for op, node in enumerate(own):
        if node.name in saved and len(paths := classes.paths(node)) == 1:
            by_path.setdefault(paths[0], []).append((op, inner_cell(node, paths[0])))
    holder_names = _holder_names(graph)
    for op, node in enumerate(own):
        for view in _with_views(graph, node, holder_names):
            paths = classes.paths(view)
            if len(paths) == 1 and view.attributes.get("recompute") is not True:
                cell = inner_cell(view, paths[0])
                candidates = by_path.get(paths[0], ())
                yield from ((op, other) for other, inner in candidates if other != op and inner[: len(cell)] == cell)


def _with_views(graph: Graph, node: Node, holder_names: Set[str]) -> Iterator[Node]:
    """Yield an operator and the views of its output up to the one that backward holds."""
    yield node
    while node.name not in holder_names:
        readers = graph.index.forward_readers.get(node.name, ())
        if len(readers) != 1 or readers[0].op not in VIEW_OPS:
            return
        node = readers[0]
        yield node


def _communicates_early(model: StepModel, node: Node) -> bool:
    """Return whether the operator communicates before or during its computation."""
    return any(c.is_before or c.kind == RING for c in model.captured.collectives.get(node.name, ()))


def _inputs_of(producers: Sequence[int], reads: Iterable[tuple[int, int]]) -> dict[int, set[int]]:
    """Return, by operator, the producers of its inputs within the layer."""
    inputs: dict[int, set[int]] = {}
    for op, tensor in reads:
        inputs.setdefault(op, set()).add(producers[tensor])
    return inputs


def closure(ops: Iterable[int], inputs: Mapping[int, Iterable[int]]) -> frozenset[int]:
    """Return operators and their transitive producers."""
    pending, visited = list(ops), set[int]()
    while pending:
        op = pending.pop()
        if op not in visited:
            visited.add(op)
            pending += inputs.get(op, ())
    return frozenset(visited)


def _find_overlapping_ops(
    communication_ns: Sequence[int],
    first_users: Mapping[int, int],
    producers: Sequence[int],
    reads: Iterable[tuple[int, int]],
    communicates_early: Set[int],
    has_halves: bool,
) -> dict[int, frozenset[int]]:
    """Return `TensorGraph.overlapping_ops`.

    The first reader of a recomputed operator's output also reads other tensors; their producers may be recomputed after
    the operator, while it communicates. If it communicates before or during its computation (`communicates_early`), the
    operator and its producers count as well.
    """
    inputs = _inputs_of(producers, reads)
    overlapping = {}
    for op in (op for op, time_ns in enumerate(communication_ns) if time_ns):
        users = {first_users[tensor] for tensor in first_users if producers[tensor] == op}
        read_with = [producers[tensor] for tensor, user in first_users.items() if user in users]
        readers = [reader for reader, read in inputs.items() if op in read]
        co_inputs = [other for reader in readers for other in inputs[reader]]
        producers_of_others = closure([*read_with, *co_inputs], inputs)
        own_producers = closure([op], inputs)
        overlapping[op] = producers_of_others - own_producers | (
            own_producers if op in communicates_early else frozenset()
        )
        if has_halves:
            overlapping[op] = frozenset(range(len(communication_ns)))
    return overlapping


def _held_gathers(model: StepModel, layer_index: int) -> set[Label]:
    """Return the gathered weights that backward holds only if their readers are recomputed.

    With several micro-steps there are none.
    """
    if model.layout.num_micro_steps > 1 or model.layers.reads_caches:
        return set()
    index = model.captured.sample.layer_map.index(layer_index)
    held_by_recompute, held_anyway = (
        {
            tensor.label
            for tensor in model.layer_block(policy, index).tensors
            if tensor.is_per_step and tensor.role is None and tensor.uses.first_backward != NO_OP
        }
        for policy in (Policy(True, layer_recompute=ALL_LAYERS), Policy())
    )
    return held_by_recompute - held_anyway


def storages(graph: Graph, names: Iterable[str]) -> Iterable[tuple[str, int]]:
    """Yield (name, output index) of the storages of values; each member of a tuple."""
    for name in names:
        node = graph.index.forward_nodes.get(name)
        if node is not None and node.op == "MakeTuple":
            yield from storages(graph, node.inputs)
            continue
        storage = resolve_storage(graph, name)
        if storage.kind is StorageKind.ACTIVATION:
            yield storage.name, storage.output_index


def _find_gaps(
    model: StepModel,
    first_users: Mapping[int, int],
    producers: Sequence[int],
    reads: Iterable[tuple[int, int]],
    has_halves: bool,
) -> Iterable[CommunicationGap]:
    """Yield the communication gaps of backward: from a collective to the first reader of its result.

    A recomputed operator precedes the first reader of its output, or of outputs computed from it.
    """
    graph, inputs = model.captured.graph, _inputs_of(producers, reads)
    first_reader = first_reader_positions(graph.backward, VALUE_PASSING_OPS, lambda node: is_kernel(node.op))
    for position, node in enumerate(graph.backward):
        name = node.origin if node.is_duplicate else node.name
        collectives = [
            c for c in model.captured.collectives.get(name, ()) if not c.is_before or node.op in COMMUNICATION_OPS
        ]
        if not (idle_ns := sum(map(model.collective_ns, collectives))):
            continue
        last = first_reader.get(node.name, position)
        first_read_ops = frozenset(producers[tensor] for tensor, user in first_users.items() if position < user <= last)
        ops = closure(first_read_ops, inputs)
        read_before = frozenset(tensor for tensor, user in first_users.items() if user <= position)
        if ops:
            yield (
                CommunicationGap(idle_ns, tuple(ops), ops, frozenset())
                if has_halves
                else CommunicationGap(idle_ns, tuple(ops), first_read_ops, read_before)
            )
