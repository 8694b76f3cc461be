"""Layer index and cell path of operators whose scope is missing or belongs to another call of the same code."""

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace

from mindswap.graph.model import Graph, Node, Saved, find_dependents, first_source
from mindswap.graph.ops import BOOKKEEPING_OPS, GRADIENT_PASSING_OPS, MATMUL_OPS, ORDERING_OPS, VIEW_OPS, WEIGHT_OPS
from mindswap.graph.passes.interleaved_halves import Branches
from mindswap.graph.sequences import is_sequence_state

# Name of a weight in a layer: `model.decoder.layers.1.mlp.router.weight`.
WEIGHT_LAYER = re.compile(r"\.layers\.(?P<index>\d+)\.(?P<cell>.*)\.\w+$")
# Layers of multi-token prediction follow the layers of the model, together with the head.
MTP_CELL = "mtp"
# Operators whose inputs do not determine their layer: they order side effects or read a weight.
POSITIONLESS_OPS = ORDERING_OPS | WEIGHT_OPS
# Zones of a value, in execution order: before the layers, in a layer (its index), after them.
BEFORE_LAYERS, AFTER_LAYERS = -1, 2**31


def assign_forward_layers(read: Iterable[Node]) -> tuple[Node, ...]:
    """Return the forward operators with layer index and cell path corrected where the scope is missing or wrong.

    - `TupleGetItem` that the compiler inserts, and functions of MindSpore (`Default/DropoutExt-op1`), have no cell in
      their scope: they get the cell of their first input.
    - A function called by several layers (`ops.one_hot` of the routers of experts) is parsed once, so every copy has
      the scope of the first call. An operator is such a copy if it reads a value of a later layer than its scope names,
      or if its scope is outside the layers while a layer reads its output. It gets the layer of its latest input.
    - A matrix product without a cell (inside a `Morph` of MindFormers) gets the cell of its weight, and so does the
      view that it reads.

    Args:
        read: operators of forward in execution order, with the layer index and cell path of their scope.
    """
    nodes = tuple(read)
    weight_cells = _weight_cells(nodes)
    read_in_layers: set[str] = set()  # directly, or through operators without a cell
    for node in reversed(nodes):
        if node.layer_index is not None or (not node.cell_path and node.name in read_in_layers):
            read_in_layers.update(node.inputs)
    assigned: dict[str, Node] = {}
    zone_of: dict[str, int] = {}  # layer index, or `BEFORE_LAYERS` or `AFTER_LAYERS`
    for read_node in nodes:
        node = _with_its_weight(read_node)
        sources = [assigned[name] for name in node.inputs if name in assigned]
        latest = max(sources, key=lambda source: zone_of[source.name], default=None)
        zone = zone_of[latest.name] if latest is not None else BEFORE_LAYERS
        layer_index = node.layer_index
        if layer_index is not None:
            if zone > layer_index and latest is not None and node.op not in POSITIONLESS_OPS:
                node = _moved_to(node, latest)
            else:
                zone = layer_index
        elif not node.cell_path:
            if sources and sources[0].layer_index is not None:
                node = _moved_to(node, sources[0], weight_cells.get(node.name))
                zone = zone_of[sources[0].name]
        elif zone not in (BEFORE_LAYERS, AFTER_LAYERS) and node.name in read_in_layers and latest is not None:
            node = _moved_to(node, latest)
        elif zone != BEFORE_LAYERS:
            zone = AFTER_LAYERS
        assigned[node.name], zone_of[node.name] = node, zone
    return tuple(assigned.values())


def _moved_to(node: Node, other: Node, cell_path: str | None = None) -> Node:
    """Return an operator with the layer of another one, and with its cell unless a cell is given."""
    return replace(node, layer_index=other.layer_index, cell_path=other.cell_path if cell_path is None else cell_path)


def _weight_cells(nodes: Sequence[Node]) -> dict[str, str]:
    """Return the cell of the weight for matrix products without a cell, and for views without one that they read."""
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
    """Return a read of a weight with the layer and cell that the name of the weight contains."""
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
    """Return the backward operators with the layer and cell of the forward operator whose gradient they compute.

    Scopes in backward are unreliable, because autodiff creates the gradient of an operator once and uses it in all
    layers. An operator without an origin (a copy to the device, a sum of gradients) gets the cell of its first input.

    Args:
        backward: operators in execution order.
        origins: for each operator, the forward operators with the compiler's id of its origin; several if the model
            calls one function in several places.
        forward: operators of forward, from `assign_forward_layers`.
        saved: values passed from forward to backward.
        constants: integer constants by name.
    """
    assigned = {node.name: node for node in forward}
    branches = Branches(forward, {entry.backward_name: entry.forward_name for entry in saved}, constants)
    assigned |= {entry.backward_name: assigned[entry.forward_name] for entry in saved if entry.forward_name in assigned}
    nodes = []
    for node in backward:
        source = next((assigned[name] for name in node.inputs if name in assigned), None)
        # A recomputed operator keeps the scope from the source code, even if its forward operator lost its own; its
        # inputs may belong to the previous layer.
        keeps_own_layer = node.is_duplicate and (node.layer_index is not None or bool(node.cell_path))
        neighbour = node if keeps_own_layer else source
        candidates = [assigned[name] for name in origins.get(node.name, ())]
        branches.add(node, candidates)
        if neighbour is not None and len({candidate.layer_index for candidate in candidates}) > 1:
            candidates = [candidate for candidate in candidates if candidate.layer_index == neighbour.layer_index]
        if len(candidates) > 1:
            candidates = [candidate for candidate in candidates if branches[candidate.name] == branches[node.name]]
        if len(candidates) == 1:
            source = candidates[0]
            node = replace(node, origin=source.name)
        if source is not None and not keeps_own_layer and (node.origin or not node.is_duplicate):
            node = replace(node, layer_index=source.layer_index, cell_path=source.cell_path)
        assigned[node.name] = node
        nodes.append(node)
    return tuple(nodes)


# Layers of operators whose scope is missing, or names one layer for all.


def has_scope(node: Node) -> bool:
    """Return whether the scope names the calling cell; the compiler drops some scopes and inserts bare operators."""
    return "-" in node.scope.rpartition("/")[0]


def assign_layer_indices(graph: Graph) -> Graph:
    """Return the graph with the layer index of three kinds of operators corrected.

    - An operator that the compiler created carries the layer of its input, or none if no layer computes that. If only
      another layer reads it, it moves to that layer: for example the cast before a norm, whose input is the output of
      the previous layer or of the embedding. MindSpore recomputes it with that layer. An operator without a layer must
      depend on a weight: masks and tables of one layer stay outside.
    - Masks and rotary tables are computed in every layer from inputs of the step, and the compiler merges them into the
      first layer. An operator that depends on no weight and is read by another layer gets no layer, so that a policy
      for the first layer does not affect the others. MindSpore recomputes it in each recomputed layer; here one copy is
      kept for all.
    - A function called by all layers may carry the scope of the first call (the reshapes of Ulysses). Since no layer
      reads the output of a later one, the operator gets the latest layer among its inputs.
    """
    layers = _layers_of_readers(graph)
    shared = _shared(graph)
    unassigned = _find_unassigned(graph, layers)
    forward = []
    layer_of: dict[str, int] = {}  # layer of each value that a layer computes
    for node in graph.forward:
        layer_index = node.layer_index
        if node.name in shared:
            layer_index = None
        elif node.name in unassigned or (
            layer_index is not None and not has_scope(node) and len(layers.get(node.name, ())) == 1
        ):
            (layer_index,) = layers[node.name]
        if layer_index is not None:
            layer_index = max([layer_index, *(layer_of[name] for name in node.inputs if name in layer_of)])
            layer_of[node.name] = layer_index
        forward.append(node if layer_index == node.layer_index else replace(node, layer_index=layer_index))
    moved = {node.name: new.layer_index for node, new in zip(graph.forward, forward, strict=True) if node is not new}
    backward = []
    for node in graph.backward:
        layer_index = node.layer_index
        if node.is_duplicate and node.origin in shared:
            layer_index = None
        elif moved.get(node.origin) is not None and (layer_index is not None or node.origin in unassigned):
            layer_index = moved[node.origin]
        backward.append(node if layer_index == node.layer_index else replace(node, layer_index=layer_index))
    return replace(graph, forward=tuple(forward), backward=tuple(backward))


def _layers_of_readers(graph: Graph) -> dict[str, set[int]]:
    """Return, for each value, the layers whose operators compute with it."""
    layers: dict[str, set[int]] = {}
    for node in reversed(graph.forward):
        if node.op in BOOKKEEPING_OPS:
            continue
        reader_layers: Iterable[int] = () if node.layer_index is None else (node.layer_index,)
        if not has_scope(node):  # use the layers of its own readers
            reader_layers = layers.get(node.name, reader_layers)
        for name in node.inputs:
            layers.setdefault(name, set()).update(reader_layers)
    return layers


def _find_unassigned(graph: Graph, layers: Mapping[str, Set[int]]) -> set[str]:
    """Return the operators without a layer and a scope that depend on a weight and that only one layer reads.

    Args:
        graph: the step.
        layers: from `_layers_of_readers`.
    """
    weighted = find_dependents(graph.forward, (node.name for node in graph.forward if node.op in WEIGHT_OPS))
    read_outside: set[str] = set()
    unassigned: set[str] = set()
    for node in reversed(graph.forward):
        if node.layer_index is not None or node.op in BOOKKEEPING_OPS or node.op in WEIGHT_OPS:
            continue
        is_of_layer = not has_scope(node) and len(layers.get(node.name, ())) == 1 and node.name not in read_outside
        if is_of_layer and node.name in weighted:
            unassigned.add(node.name)
        else:
            read_outside.update(node.inputs)
    return unassigned


def _shared(graph: Graph) -> set[str]:
    """Return the operators that depend on no weight and are read by another layer, with their private inputs."""
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


# Weight gradients that zero_bubble_v computes in a pass of their own: the matrix products whose result is added to an
# accumulated gradient. A cast between the two is removed on Ascend (`RemoveCastBeforeAssignAdd`,
# parallel/pass/remove_cast_before_assign_add.cc).
#
# Source: `DetachBackward::DetachDxAndDwGraph`,
# mindspore/ccsrc/frontend/parallel/pipeline_transformer/detach_backward.cc (mindspore-ai/mindspore_test, 0b71b3f).


def find_weight_gradients(graph: Graph) -> frozenset[str]:
    """Return the names of the matrix products that compute weight gradients, and of the operators up to their sum."""
    if not graph.backward or graph.backward[-1].op != "MakeTuple":
        return frozenset()
    gradient_tuple = graph.backward[-1].name
    between = {gradient_tuple}  # operators that only pass gradients on
    passed: set[str] = set()  # inputs of these operators
    read_elsewhere: set[str] = set()  # inputs of all other operators
    gradients: set[str] = set()
    for node in reversed(graph.backward):
        if node.name in passed and node.name not in read_elsewhere:
            if node.op in MATMUL_OPS and not node.is_duplicate:
                gradients.add(node.name)
            elif node.op in GRADIENT_PASSING_OPS:
                between.add(node.name)
        (passed if node.name in between else read_elsewhere).update(node.inputs)
    for node in graph.backward:
        if node.name in between and node.name != gradient_tuple and gradients.intersection(node.inputs):
            gradients.add(node.name)
    return frozenset(gradients)
