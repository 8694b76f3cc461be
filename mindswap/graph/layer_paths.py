"""Layer and cell of operators to which the compiler gives no place, or that of another call of the same code."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from mindswap.graph.model import Graph, Node, Saved, find_dependents, first_source
from mindswap.graph.ops import BOOKKEEPING_OPS, GRADIENT_PASSING_OPS, MATMUL_OPS, ORDERING_OPS, VIEW_OPS, WEIGHT_OPS
from mindswap.graph.passes.interleaved_halves import Branches
from mindswap.graph.sequences import is_sequence_state

# Name of a weight of a layer: `model.decoder.layers.1.mlp.router.weight`.
WEIGHT_LAYER = re.compile(r"\.layers\.(?P<index>\d+)\.(?P<cell>.*)\.\w+$")
# Layers of multi-token prediction are behind those of the model, with the head.
MTP_CELL = "mtp"
# Tie an order or read a weight; their inputs say nothing about where they are.
POSITIONLESS_OPS = ORDERING_OPS | WEIGHT_OPS
# Where values are made, in the order of the step: before the layers, in a layer (its index), behind them.
BEFORE_LAYERS, AFTER_LAYERS = -1, 2**31


def assign_forward_layers(read: Iterable[Node]) -> tuple[Node, ...]:
    """Operators of functions that models call belong where their inputs are made.

    The compiler leaves the `TupleGetItem` it adds, and functions of MindSpore (`Default/DropoutExt-op1`), without any
    cell in their scope: they belong where their first input does. A function that several layers call (`ops.one_hot` of
    the routers of experts) is parsed once, so all its copies have the scope of the first call. What reads a value of a
    later layer than its scope says, or is outside the layers by its scope while layers read it, is such a copy.
    A product without a cell (`Morph` of MindFormers has none) is in that of its weight, and so is the view it reads.
    """
    nodes = tuple(read)
    weight_cells = _weight_cells(nodes)
    read_in_layers: set[str] = set()  # also by way of operators without a place
    for node in reversed(nodes):
        if node.layer_index is not None or (not node.cell_path and node.name in read_in_layers):
            read_in_layers.update(node.inputs)
    assigned: dict[str, Node] = {}
    zones: dict[str, int] = {}  # `BEFORE_LAYERS` the layers, their index, or `AFTER_LAYERS` them
    for node in nodes:
        node = _with_its_weight(node)
        sources = [assigned[name] for name in node.inputs if name in assigned]
        latest = max(sources, key=lambda source: zones[source.name], default=None)
        zone = zones[latest.name] if latest is not None else BEFORE_LAYERS
        if node.layer_index is None and not node.cell_path:
            if sources and sources[0].layer_index is not None:
                cell_path = weight_cells.get(node.name, sources[0].cell_path)
                node = replace(node, layer_index=sources[0].layer_index, cell_path=cell_path)
                zone = zones[sources[0].name]
        elif node.layer_index is None:
            if zone not in (BEFORE_LAYERS, AFTER_LAYERS) and node.name in read_in_layers and latest is not None:
                node = replace(node, layer_index=latest.layer_index, cell_path=latest.cell_path)
            elif zone != BEFORE_LAYERS:
                zone = AFTER_LAYERS
        elif zone > node.layer_index and latest is not None and node.op not in POSITIONLESS_OPS:
            node = replace(node, layer_index=latest.layer_index, cell_path=latest.cell_path)
        elif node.layer_index is not None:
            zone = node.layer_index
        assigned[node.name], zones[node.name] = node, zone
    return tuple(assigned.values())


def _weight_cells(nodes: Sequence[Node]) -> dict[str, str]:
    """Of products that have no cell, and of views without one that they read: the cell of the weight."""
    by_name = {node.name: node for node in nodes}
    bare = {node.name for node in nodes if node.layer_index is None and not node.cell_path}
    cells: dict[str, str] = {}
    for node in nodes:
        if node.op not in MATMUL_OPS or node.name not in bare:
            continue
        names = [first_source(name, WEIGHT_OPS, by_name) for name in node.inputs]
        match = next(filter(None, map(WEIGHT_LAYER.search, names)), None)
        if match is not None:
            cells[node.name] = match["cell"]
            for name in node.inputs:
                while name in bare and by_name[name].op in VIEW_OPS:
                    cells[name] = match["cell"]
                    name = by_name[name].inputs[0]
    return cells


def _with_its_weight(node: Node) -> Node:
    """A read of a weight is where the name of the weight says."""
    match = WEIGHT_LAYER.search(node.inputs[0]) if node.op == "Load" else None
    if match is None or node.layer_index is None:
        return node
    index = None if f"{MTP_CELL}.layers." in node.inputs[0] else int(match["index"])
    return node if index == node.layer_index else replace(node, layer_index=index, cell_path=match["cell"])


def assign_gradient_layers(
    backward: Iterable[Node],
    origins: Mapping[str, Sequence[str]],
    forward: Iterable[Node],
    saved: Iterable[Saved],
    constants: Mapping[str, int],
) -> tuple[Node, ...]:
    """Gradients belong to the cell of the operator that they are the gradient of.

    Their scopes do not tell: autodiff makes the gradient of an operator once and uses it in all layers. What has no
    origin (copies to the device, sums of gradients) belongs where its first input does. `origins` are the operators of
    forward with the compiler's id of its origin; several where the model calls one function in many places.
    """
    assigned = {node.name: node for node in forward}
    branches = Branches(forward, {entry.backward_name: entry.forward_name for entry in saved}, constants)
    assigned |= {entry.backward_name: assigned[entry.forward_name] for entry in saved if entry.forward_name in assigned}
    nodes = []
    for node in backward:
        source = next((assigned[name] for name in node.inputs if name in assigned), None)
        # A copy keeps the scope that its operator was written with, also where that one lost its own. What it
        # reads may be of the layer before.
        has_own_position = node.is_duplicate and (node.layer_index is not None or bool(node.cell_path))
        nearby = node if has_own_position else source
        candidates = [assigned[name] for name in origins.get(node.name, ())]
        branches.add(node, candidates)
        if nearby is not None and len({candidate.layer_index for candidate in candidates}) > 1:
            candidates = [candidate for candidate in candidates if candidate.layer_index == nearby.layer_index]
        if len(candidates) > 1:
            candidates = [candidate for candidate in candidates if branches[candidate.name] == branches[node.name]]
        if len(candidates) == 1:
            source = candidates[0]
            node = replace(node, origin=source.name)
        if source is not None and not has_own_position and (node.origin or not node.is_duplicate):
            node = replace(node, layer_index=source.layer_index, cell_path=source.cell_path)
        assigned[node.name] = node
        nodes.append(node)
    return tuple(nodes)


# Layers of operators where the compiler's scopes do not tell, or tell it of one layer only.


def has_scope(node: Node) -> bool:
    """The scope of an operator names the cell that calls it: the compiler drops some, and adds operators."""
    return "-" in node.scope.rpartition("/")[0]


def assign_layer_indices(graph: Graph) -> Graph:
    """The step with the layer of three kinds of operators put right.

    - What the compiler wrote anew stands with its input. If it is read in another layer only, it belongs there: the
      cast that a norm makes of what the layer before gives.
    - Masks and rotary tables are made in every layer from the inputs of the step; the compiler merges them into the
      first one. What depends on no weight and is read by another layer belongs to none, so that a policy for the
      first layer does not change it for the others. MindSpore computes it again in each layer that is recomputed;
      here it is kept, once for all.
    - A function that all layers call may be written out with the scope of the first one: the reshapes of Ulysses.
      No layer reads what a later one makes, so such an operator belongs to the latest layer that it reads of.
    """
    layers = _layers_of_readers(graph)
    shared = _shared(graph)
    forward = []
    settled: dict[str, int] = {}  # layer of what is in one
    for node in graph.forward:
        layer_index = node.layer_index
        if node.name in shared:
            layer_index = None
        elif layer_index is not None and not has_scope(node) and len(layers.get(node.name, ())) == 1:
            (layer_index,) = layers[node.name]
        if layer_index is not None:
            layer_index = max([layer_index, *(settled[name] for name in node.inputs if name in settled)])
            settled[node.name] = layer_index
        forward.append(node if layer_index == node.layer_index else replace(node, layer_index=layer_index))
    moved = {node.name: new.layer_index for node, new in zip(graph.forward, forward, strict=True) if node is not new}
    backward = []
    for node in graph.backward:
        layer_index = node.layer_index
        if node.is_duplicate and node.origin in shared:
            layer_index = None
        elif layer_index is not None and moved.get(node.origin) is not None:
            layer_index = moved[node.origin]
        backward.append(node if layer_index == node.layer_index else replace(node, layer_index=layer_index))
    return replace(graph, forward=tuple(forward), backward=tuple(backward))


def _layers_of_readers(graph: Graph) -> dict[str, set[int]]:
    """For each value, the layers in which operators compute with it."""
    layers: dict[str, set[int]] = {}
    for node in reversed(graph.forward):
        if node.op in BOOKKEEPING_OPS:
            continue
        own: Iterable[int] = () if node.layer_index is None else (node.layer_index,)
        if not has_scope(node):  # then those count that read it in turn
            own = layers.get(node.name, own)
        for name in node.inputs:
            layers.setdefault(name, set()).update(own)
    return layers


def _shared(graph: Graph) -> set[str]:
    """Operators that depend on no weight and are read by another layer, and those that only make their inputs."""
    nodes = graph.index.forward_nodes
    reads = (n.name for n in graph.forward if n.op in WEIGHT_OPS and not is_sequence_state(n.inputs[0]))
    weighted = find_dependents(graph.forward, reads)
    shared: set[str] = set()
    for node in reversed(graph.forward):
        for name in node.inputs:
            source = nodes.get(name)
            if source is None or source.layer_index is None or name in weighted:
                continue
            if node.name in shared or (node.layer_index is not None and node.layer_index != source.layer_index):
                shared.add(name)
    return shared


# Which operators of backward zero_bubble_v computes apart from the rest.
#
# Source: `DetachBackward::DetachDxAndDwGraph`,
# mindspore/ccsrc/frontend/parallel/pipeline_transformer/detach_backward.cc (mindspore-ai/mindspore_test, 0b71b3f): the
# matrix product whose result is added to the sum of a gradient. A cast between the two is taken away on Ascend
# (`RemoveCastBeforeAssignAdd`, parallel/pass/remove_cast_before_assign_add.cc).


def find_weight_gradients(graph: Graph) -> frozenset[str]:
    """Names of the matrix products that give a gradient of a weight, and of what is between them and its sum."""
    if not graph.backward or graph.backward[-1].op != "MakeTuple":
        return frozenset()
    gradient_tuple = graph.backward[-1].name
    between = {gradient_tuple}  # operators that only pass gradients on
    passed: set[str] = set()  # what these read
    others: set[str] = set()  # what others read
    found: set[str] = set()
    for node in reversed(graph.backward):
        if node.name in passed and node.name not in others:
            if node.op in MATMUL_OPS and not node.is_duplicate:
                found.add(node.name)
            elif node.op in GRADIENT_PASSING_OPS:
                between.add(node.name)
        (passed if node.name in between else others).update(node.inputs)
    for node in graph.backward:
        if node.name in between and node.name != gradient_tuple and found.intersection(node.inputs):
            found.add(node.name)
    return frozenset(found)
