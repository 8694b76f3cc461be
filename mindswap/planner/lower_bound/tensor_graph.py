"""Tensors of a layer, their readers, and minimum recompute times: input of the lower bound."""

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field

from mindswap.graph.model import Graph, Node
from mindswap.graph.ops import VIEW_OPS, is_kernel
from mindswap.graph.passes.gather import is_gathering
from mindswap.graph.passes.swap_recompute import classify_nodes
from mindswap.planner.lower_bound.captured_layer import CapturedLayer, inputs_of
from mindswap.planner.lower_bound.communication_gaps import CommunicationGap, find_gaps, find_overlapping_ops
from mindswap.planner.lower_bound.recompute_times import recompute_times_ns
from mindswap.planner.lower_bound.recomputed_cells import RecomputedCell, find_recomputed_cells
from mindswap.planner.lower_bound.weight_copies import find_required_recomputes, time_weight_copies
from mindswap.policy.resolve import Path
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
    kinds = range(len(model.captured.trees))
    return tuple(_build_tensor_graph(CapturedLayer(model, kind), *times_ns) for kind in kinds)


def _build_tensor_graph(
    layer: CapturedLayer,
    recompute_ns: Mapping[str, int],
    unfused_extra_ns: Mapping[str, int],
    avoided_store_ns: Mapping[str, int],
) -> TensorGraph:
    """Build the tensor graph of a compiled layer, with the times of `recompute_times_ns`."""
    model, graph, nodes, producers, reads = layer.model, layer.graph, layer.nodes, layer.producers, layer.reads
    boundary_inputs, no_time = layer.boundary_inputs, (0,) * len(layer.boundary_inputs)
    is_gathered = [is_gathering(graph.index.forward_nodes[name]) for name, _ in layer.keys]
    gathered = frozenset(tensor for tensor in range(len(layer.keys)) if is_gathered[tensor]) - boundary_inputs
    outside = (node for node in graph.forward if is_kernel(node.op) and node.layer_index != layer.kind)
    outputs = frozenset(tensor for node in outside for tensor in layer.read_by(node))
    communication_ns = tuple(
        0 if node.name in graph.index.duplicates  # as its time on the compute stream
        else sum(map(model.collective_ns, model.captured.collectives.get(node.name, ())))
        for node in nodes
    )  # fmt: skip
    # With interleaved halves, one half computes while the other one communicates.
    has_halves = model.settings.has_interleaved_halves
    input_names = {name for node in graph.forward if node.layer_index == layer.kind for name in node.inputs}

    def is_named(tensor: int, node: Node) -> bool:
        """Return whether swap by the name of this holder frees the tensor; boundary inputs need a name read here."""
        is_input = tensor not in boundary_inputs or node.name in input_names
        return is_input and model.names.can_name(graph.owner(node))

    named = {tensor for tensor, holders in layer.holders.items() if any(is_named(tensor, node) for node in holders)}
    # Tensors whose only holder is their producer.
    sole_holders = {
        tensor: nodes[producers[tensor]]
        for tensor, holders in layer.holders.items()
        if tensor not in boundary_inputs
        and all(graph.owner(holder).name == nodes[producers[tensor]].name for holder in holders)
    }
    weight_copies = time_weight_copies(layer)
    saved_outputs = {producers[tensor] for tensor in (layer.saved.keys() & sole_holders.keys()) - outputs - gathered}
    copied = {tensor for tensor, producer in enumerate(producers) if producer in weight_copies}
    sizes_bytes = (graph.index.forward_nodes[name].outputs[index].size_bytes for name, index in layer.keys)
    unit = model.costs.device.pool_alignment_bytes

    def times(by_name: Mapping[str, int]) -> tuple[int, ...]:
        return (*(by_name[node.name] if op not in weight_copies else 0 for op, node in enumerate(nodes)), *no_time)

    return TensorGraph(
        sizes_bytes=tuple(-(-size // unit) * unit for size in sizes_bytes),
        producers=producers,
        saved=frozenset(layer.saved) | copied,
        outputs=outputs | gathered | boundary_inputs,
        reads=reads,
        recompute_ns=times(recompute_ns),
        communication_ns=(*communication_ns, *no_time),
        overlapping_ops=find_overlapping_ops(layer, communication_ns, has_halves),
        gaps=tuple(find_gaps(layer, has_halves)),
        unfused_extra_ns=times(unfused_extra_ns),
        gathered=gathered,
        boundary_inputs=boundary_inputs,
        unswappable_tensors=frozenset(range(len(layer.keys))) - named,
        tuple_members=frozenset(tensor for tensor, node in sole_holders.items() if len(node.outputs) > 1),
        recomputed_cells=tuple(cell.without(weight_copies) for cell in find_recomputed_cells(layer)),
        implied_recomputes=(
            *_find_implied_recomputes(layer),
            *find_required_recomputes(layer, weight_copies, saved_outputs),
        ),
        weight_copies=weight_copies,
        avoided_forward_ns=sum(avoided_store_ns[node.name] for node in nodes) + sum(weight_copies.values()),
        op_names=tuple(layer.ops),
    )


def _find_implied_recomputes(layer: CapturedLayer) -> Iterable[tuple[int, int]]:
    """Yield `TensorGraph.implied_recomputes`.

    A policy names both operators, or a cell with both; so the second is recomputed, too, unless an operator outside of
    that cell reads it. An operator that backward saves as a view is recomputed only if the view is.
    """
    graph, saved_ops = layer.graph, {layer.producers[tensor] for tensor in layer.saved}
    classes = classify_nodes(graph, layer.model.names)

    def inner_cell(node: Node, path: Path) -> Path:
        """Return the smallest cell around a path such that no operator outside of it reads this one."""
        cells = (path[:depth] for depth in range(len(path) - 1, 0, -1))
        return next((cell for cell in cells if not classes.is_read_outside(node, cell)), ())

    by_path: dict[Path, list[tuple[int, Path]]] = {}
    for op, node in enumerate(layer.nodes):
        if op in saved_ops and len(paths := classes.paths(node)) == 1:
            by_path.setdefault(paths[0], []).append((op, inner_cell(node, paths[0])))
    for op, node in enumerate(layer.nodes):
        for view in _with_views(graph, node, layer.holder_names):
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
