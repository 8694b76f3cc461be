"""Tensors of a layer, their readers, and minimum recompute times: input of the lower bound."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from mindswap.graph.analysis.saved_tensors import Label
from mindswap.graph.model import Graph, Node
from mindswap.graph.ops import VIEW_OPS, is_kernel
from mindswap.graph.passes.gather import is_gathering
from mindswap.graph.passes.swap_recompute import classify_nodes
from mindswap.graph.storage import classify_saved
from mindswap.planner.lower_bound.communication_gaps import CommunicationGap, find_gaps, find_overlapping_ops, is_early
from mindswap.planner.lower_bound.recompute_times import recompute_times_ns
from mindswap.planner.lower_bound.recomputed_cells import RecomputedCell, find_recomputed_cells
from mindswap.planner.lower_bound.tensor_reads import find_holder_names, inputs_of, labels_read_by_next, storages
from mindswap.planner.lower_bound.weight_copies import find_required_recomputes, time_weight_copies
from mindswap.policy.model import ALL_LAYERS, Policy
from mindswap.policy.resolve import Path
from mindswap.simulator.program import NO_OP
from mindswap.simulator.step_model import StepModel


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
    # outputs that backward of the layer does not read: not held if the next layer is of another pass of the pipeline
    read_by_next: frozenset[int] = frozenset()
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
        return inputs_of(self.producers, self.reads)

    @property
    def saved_bytes(self) -> int:
        """Bytes saved for backward if everything is kept."""
        return sum(self.sizes_bytes[tensor] for tensor in self.saved)


def build_tensor_graphs(model: StepModel) -> tuple[TensorGraph, ...]:
    """Build the tensor graph of each compiled layer."""
    times_ns = recompute_times_ns(model)
    return tuple(_build_tensor_graph(model, position, *times_ns) for position in range(len(model.captured.trees)))


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
        recompute_ns: from `recompute_times_ns`.
        unfused_extra_ns: from `recompute_times_ns`.
        avoided_store_ns: from `recompute_times_ns`.
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
    early_ops = {ops[node.name] for node in layer_ops if is_early(model, node)}
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
    read_by_next = labels_read_by_next(model, layer_index)
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
        overlapping_ops=find_overlapping_ops(communication_ns, first_users, producers, reads, early_ops, has_halves),
        gaps=tuple(find_gaps(model, first_users, producers, reads, has_halves)),
        unfused_extra_ns=(
            *(unfused_extra_ns[node.name] if op not in weight_copies else 0 for op, node in enumerate(layer_ops)),
            *no_time,
        ),
        gathered=frozenset(gathered),
        boundary_inputs=boundary_inputs,
        read_by_next=frozenset(
            tensor
            for tensor in saved.keys() & outputs
            if tensor not in boundary_inputs and model.names(layer_ops[producers[tensor]]) in read_by_next
        ),
        unswappable_tensors=frozenset(range(len(tensors))) - named,
        tuple_members=frozenset(tensor for tensor, node in sole_holders.items() if len(node.outputs) > 1),
        recomputed_cells=tuple(
            cell.without(weight_copies)
            for cell in find_recomputed_cells(model, layer_ops, tensors, producers, reads, holders)
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
    holder_names = find_holder_names(graph)
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
