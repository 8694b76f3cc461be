"""Conversion of MindIR to `Graph`; the only module that accesses the fields of MindSpore's protobuf.

The message comes from an adapter, because its classes are part of MindSpore.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mindswap.errors import GraphError
from mindswap.graph.layer_paths import MTP_CELL, assign_forward_layers, assign_gradient_layers
from mindswap.graph.model import RECOMPUTE_SCOPE, Graph, Node, Saved, TensorType
from mindswap.graph.ops import WEIGHT_OPS
from mindswap.graph.passes.gather import weight_name

# Layer of operators that no cell owns, such as `x + y` or `ops.gelu(x)` in `construct`.
#
# MindSpore parses `construct` of a class once, so function calls in it carry the scope of the first cell of that class,
# in all layers. Primitives that are attributes of a cell have their own scope. The layer of an operator without a path
# is therefore derived from its inputs and readers:
#
#     layer 0         layer 1
#     norm up gelu +  norm up gelu +      `+` reads the layer that it ends, `norm` of the next layer reads `+`

BEFORE_LAYERS = -1


def assign_untagged_layers(nodes: Sequence[Node], layer_list: str) -> tuple[Node, ...]:
    """Return the forward operators with the layer index of those without `PATH_TAG` derived from their neighbours.

    Where two layers are possible, all operators from the same source line are treated as the first of them: as the
    start or as the end of their layer.

    Args:
        nodes: operators in execution order.
        layer_list: name of the cell list that holds the layers, as it occurs in names of weights.
    """
    layers: dict[str, int] = {}
    readers = _first_reader(nodes)
    starts: dict[str, bool] = {}
    assigned = []
    for node in nodes:
        if node.op in WEIGHT_OPS:
            named = _layer_of_weight(weight_name(node), layer_list)
            source = layers.get(node.inputs[0])
            layer = named if named is not None else node.layer_index if source in (None, BEFORE_LAYERS) else source
            node = replace(node, layer_index=layer)
        elif not node.paths and node.layer_index is not None:
            read = max((layers.get(name, BEFORE_LAYERS) for name in node.inputs), default=BEFORE_LAYERS)
            kind = node.name.rpartition(":")[0]  # name that MindSpore gives to one source location, without the counter
            is_start = starts.setdefault(kind, read < node.layer_index)
            reader = readers.get(node.name, node.layer_index)
            node = replace(node, layer_index=max(read, reader) if is_start or read == BEFORE_LAYERS else read)
        layers[node.name] = BEFORE_LAYERS if node.layer_index is None else node.layer_index
        assigned.append(node)
    return tuple(assigned)


def _first_reader(nodes: Iterable[Node]) -> dict[str, int]:
    """Return the first layer in which a tagged operator reads each value, directly or through untagged ones."""
    first: dict[str, int] = {}
    for node in reversed(tuple(nodes)):
        layer = node.layer_index if node.paths else first.get(node.name)
        if layer is not None:
            for name in node.inputs:
                first[name] = min(layer, first.get(name, layer))
    return first


def _layer_of_weight(name: str, layer_list: str) -> int | None:
    """Return the layer index in the name of a weight: the number after the name of the list; None without one."""
    match = re.search(rf"(?:^|\.){re.escape(layer_list)}\.(\d+)(?:\.|$)", name)
    return int(match[1]) if match else None


Message = Any  # of MindSpore's protobuf, whose classes are part of MindSpore
Primitives = Mapping[str, Message]  # by name

# Markers in the names of the two functions that autodiff creates from a lazy_inline cell.
FORWARD_MARK, BACKWARD_MARK = "▸", "◂"
# Attribute that carries the path of a primitive into the compiled graph.
PATH_TAG = "mindswap_path"
DTYPES = {"float": "float32", "double": "float64"}  # names of the protobuf that differ from MindSpore's
INTEGERS = ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
SCOPE_PART = re.compile(r"(?P<name>[^/]+?)-[A-Za-z_]\w*$")
# The list of `micro_batch_interleave_num` holds cells that slice the batch (nn.MicroBatchInterleaved), no layers.
LAYER_LIST = re.compile(r"(?P<name>(?!interleave_inputs-)[^/]*)-(CellList|SequentialCell)")


def load_graph(model: Message, layer_list: str | None = None) -> Graph:
    """Read the training step from a compiled model.

    Args:
        model: `ModelProto` of MindIR, from an export-phase compile of a gradient cell.
        layer_list: name of the cell list that holds the layers, if all primitives of the layers carry `PATH_TAG`;
            operators without the tag get their layer from their inputs and readers. By default the layer is the index
            in any cell list of the scope.

    Raises:
        GraphError: if the model has more than one pair of lazy_inline functions.
    """
    primitives = {primitive.name: primitive for primitive in model.primitives}
    forward = [f for f in model.functions if FORWARD_MARK in f.name and _find_partial(f, primitives)]
    backward = [f for f in model.functions if BACKWARD_MARK in f.name]
    if not forward:
        nodes = tuple(_read_nodes(model.graph, primitives, layer_list))
        return Graph(forward=nodes, backward=(), saved=(), has_lazy_inline=False)
    if len(forward) > 1 or len(backward) != 1:
        names = ", ".join(f.name for f in (*forward, *backward))
        raise GraphError(
            f"several cells are lazy_inline: {names}\n    allowed: the one cell around all layers, as `mindswap.apply` "
            "marks it\n    fix:     take @lazy_inline off the layers"
        )
    # A constant that several functions read is stored in whichever function comes first.
    constant_nodes = [node for f in (*model.functions, model.graph) for node in f.node if node.op_type == "Constant"]
    constant_nodes = [node for node in constant_nodes if node.attribute]
    values = {node.output[0]: read_value(node.attribute[0]) for node in constant_nodes}
    constants = {name: value for name, value in values.items() if isinstance(value, int)}
    types = {n.output[0]: n.attribute[0].tensors[0] for n in constant_nodes if len(n.attribute[0].tensors) == 1}
    parameters = (parameter for f in (*forward, *backward) for parameter in f.input)
    types |= {parameter.name: parameter.tensor[0] for parameter in parameters if len(parameter.tensor) == 1}
    bound = _find_partial(forward[0], primitives).input[1:]
    saved = tuple(Saved(name, parameter.name) for name, parameter in zip(bound, backward[0].input, strict=False))
    forward_nodes = assign_forward_layers(_read_nodes(forward[0], primitives, layer_list))
    if layer_list is not None:
        forward_nodes = assign_untagged_layers(forward_nodes, layer_list)
    names_by_id: dict[str, list[str]] = {}
    for name, identity in _identities(forward[0]).items():
        names_by_id.setdefault(identity, []).append(name)
    origins = {name: names_by_id.get(identity, []) for name, identity in _identities(backward[0]).items()}
    return Graph(
        forward=forward_nodes,
        backward=assign_gradient_layers(
            _read_nodes(backward[0], primitives, layer_list), origins, forward_nodes, saved, constants
        ),
        saved=saved,
        has_lazy_inline=True,
        constants=constants,
        tuples={name: value for name, value in values.items() if _is_of_integers(value)},
        types={name: read_tensor_type(tensor) for name, tensor in types.items()},
        inputs=tuple(parameter.name for parameter in forward[0].input),
    )


def _find_partial(function: Message, primitives: Primitives) -> Message:
    """Return the `Partial` node that binds the saved values, which autodiff puts last; None if there is none."""
    return next((node for node in reversed(function.node) if primitive_of(node, primitives)[0] == "Partial"), None)


def primitive_of(node: Message, primitives: Primitives) -> tuple[str, Iterable[Message]]:
    """Return the type of an operator and the attributes of its primitive."""
    primitive = primitives.get(node.op_type.removeprefix("REF::"))
    return (primitive.op_type, primitive.attribute) if primitive is not None else (node.op_type, ())


def _is_of_integers(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(item, int) for item in value)


def _identities(function: Message) -> dict[str, str]:
    """Return the compiler's id of each operator; gradients and recomputed copies have that of the forward operator."""
    identities = {}
    for node in function.node:
        ids = {attribute.name: attribute.s.decode() for attribute in node.primal_attr}
        if identity := ids.get("forward_unique_id") or ids.get("unique_id"):
            identities[node.name] = identity
    return identities


def _read_nodes(function: Message, primitives: Primitives, layer_list: str | None) -> Iterator[Node]:
    for node in function.node:
        if node.op_type == "Constant":
            continue
        op, attributes = primitive_of(node, primitives)
        marks = {attribute.name for attribute in node.node_attr}
        scope = node.domain.removeprefix("Gradients/")
        layer_index, cell_path = _split_scope(scope.removeprefix(RECOMPUTE_SCOPE), layer_list)
        values = {attribute.name: read_value(attribute) for attribute in attributes}
        path = values.pop(PATH_TAG, None)
        yield Node(
            name=node.name,
            op=op,
            layer_index=layer_index,
            cell_path=cell_path,
            scope=node.domain,
            inputs=tuple(node.input),
            outputs=tuple(
                tensor_type for a in node.attribute if a.name == "shape" for tensor_type in _flatten_types(a)
            ),
            attributes=values,
            is_recomputed=scope.startswith(RECOMPUTE_SCOPE),
            is_duplicate="duplicated" in marks,
            paths=() if path is None else (path,),
        )


def _split_scope(scope: str, layer_list: str | None) -> tuple[int | None, str]:
    """Return layer index and cell path of a scope like `Default/net-Net/layers-CellList/1-Layer/mlp-Mlp/Mul-op0`."""
    parts = scope.split("/")[:-1]
    names: list[str] = []
    layer_index = None
    for position, part in enumerate(parts):
        match = SCOPE_PART.match(part)
        if match is None:
            continue
        name = match["name"]
        holder = LAYER_LIST.fullmatch(parts[position - 1]) if name.isdecimal() and position else None
        is_layer = holder is not None and layer_list in (None, holder["name"])
        if layer_index is None and is_layer and MTP_CELL not in names:
            layer_index = int(name)
            names = []
        else:
            names.append(name)
    return layer_index, ".".join(names)


def _flatten_types(attribute: Message) -> Iterator[TensorType]:
    yield from map(read_tensor_type, attribute.tensors)
    for value in attribute.values:
        yield from _flatten_types(value)


def read_tensor_type(tensor: Message) -> TensorType:
    """Return the type of a tensor; its size is 0 if a dimension or the dtype is unknown."""
    name = tensor.DataType.Name(tensor.data_type).lower()
    return TensorType.of(tuple(tensor.dims), DTYPES.get(name, name))


def read_value(entry: Message, read_other: Callable[[Message], Any] = lambda entry: None) -> Any:
    """Return the plain value of an attribute or a constant; a number may be stored alone or as a list of one.

    Args:
        entry: the protobuf message.
        read_other: reads the kinds that no training step needs, such as floating point numbers and tensors.
    """
    kind = entry.AttributeType.Name(entry.type)
    if kind == "BOOL":
        return bool(entry.ints[0] if entry.ints else entry.i)
    if kind in INTEGERS:
        return entry.ints[0] if entry.ints else entry.i
    if kind == "STRING":
        return (entry.strings[0] if entry.strings else entry.s).decode(errors="replace")
    if kind in ("TUPLE", "LIST"):
        return tuple(read_value(value, read_other) for value in entry.values)
    if kind == "DICT":  # a Layout: each entry has a name and one value
        return {value.name: read_value(value.values[0], read_other) for value in entry.values if value.values}
    return read_other(entry)
