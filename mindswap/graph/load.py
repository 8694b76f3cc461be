"""MindIR -> Graph: the only module that knows the fields of MindSpore's protobuf.

The message itself comes from an adapter, because its schema ships with MindSpore.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mindswap.errors import GraphError
from mindswap.graph.layer_places import MTP_CELL, place_forward, place_gradients
from mindswap.graph.model import Graph, Node, Saved, TensorType
from mindswap.graph.untagged import place_untagged

__all__ = ["load_graph"]

Message = Any  # of MindSpore's protobuf, whose classes come with MindSpore
Primitives = Mapping[str, Message]  # by name

# How MindSpore marks the two functions that autodiff makes of a lazy_inline cell.
FORWARD_MARK, BACKWARD_MARK = "▸", "◂"
RECOMPUTE_SCOPE = "recompute_"
BYTES_PER_ELEMENT = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2,
    "int32": 4, "uint32": 4, "float": 4, "int64": 8, "uint64": 8, "double": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip
SCOPE_PART = re.compile(r"(?P<name>[^/]+?)-[A-Za-z_]\w*$")
LAYER_LIST = re.compile(r"(?P<name>[^/]*)-(CellList|SequentialCell)")


def load_graph(model: Message, layer_list: str | None = None, tag: str | None = None) -> Graph:
    """The training step in one compiled model.

    Args:
        model: `ModelProto` of MindIR, from an export-phase compile of a gradient cell.
        layer_list: name of the list that holds the layers; default is whichever list an operator is in.
        tag: attribute that every primitive of the layers carries. Others are then placed by what they read.

    Raises:
        GraphError: if the model has more than one lazy_inline function pair.
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
    # A constant that several functions read is in the first of them, whichever that is.
    functions = (*model.functions, model.graph)
    values = {name: value for f in functions for name, value in _read_constants(f)}
    constants = {name: value for name, value in values.items() if isinstance(value, int)}
    partial = _find_partial(forward[0], primitives)
    saved = tuple(
        Saved(captured, parameter.name)
        for captured, parameter in zip(partial.input[1:], backward[0].input, strict=False)
    )
    forward_nodes = place_forward(_read_nodes(forward[0], primitives, layer_list))
    if tag is not None and layer_list is not None:
        forward_nodes = place_untagged(forward_nodes, tag, layer_list)
    names_by_id: dict[str, list[str]] = {}
    for name, identity in _identities(forward[0]).items():
        names_by_id.setdefault(identity, []).append(name)
    origins = {name: names_by_id.get(identity, []) for name, identity in _identities(backward[0]).items()}
    return Graph(
        forward=forward_nodes,
        backward=place_gradients(
            _read_nodes(backward[0], primitives, layer_list), origins, forward_nodes, saved, constants
        ),
        saved=saved,
        has_lazy_inline=True,
        constants=constants,
        tuples={name: value for name, value in values.items() if isinstance(value, tuple)},
        types={**dict(_read_constant_types(functions)), **dict(_read_parameter_types((*forward, *backward)))},
    )


def _find_partial(function: Message, primitives: Primitives) -> Message:
    """The node that binds what backward needs; autodiff puts it last. None if there is none."""
    for node in reversed(function.node):
        if _op_name(node, primitives) == "Partial":
            return node
    return None


def _op_name(node: Message, primitives: Primitives) -> str:
    reference = node.op_type.removeprefix("REF::")
    return primitives[reference].op_type if reference in primitives else node.op_type


def _identities(function: Message) -> dict[str, str]:
    """The compiler's id of each operator: a gradient carries that of its forward operator, a copy the same."""
    found = {}
    for node in function.node:
        ids = {attribute.name: attribute.s.decode() for attribute in node.primal_attr}
        if identity := ids.get("forward_unique_id") or ids.get("unique_id"):
            found[node.name] = identity
    return found


def _read_nodes(function: Message, primitives: Primitives, layer_list: str | None) -> Iterator[Node]:
    for node in function.node:
        if node.op_type == "Constant":
            continue
        reference = node.op_type.removeprefix("REF::")
        primitive = primitives.get(reference)
        marks = {attribute.name for attribute in node.node_attr}
        scope = node.domain.removeprefix("Gradients/")
        layer_index, cell_path = _split_scope(scope.removeprefix(RECOMPUTE_SCOPE), layer_list)
        yield Node(
            name=node.name,
            op=_op_name(node, primitives),
            layer_index=layer_index,
            cell_path=cell_path,
            scope=node.domain,
            inputs=tuple(node.input),
            outputs=tuple(_read_types(node)),
            attributes={a.name: _read_value(a) for a in primitive.attribute} if primitive else {},
            is_recomputed=scope.startswith(RECOMPUTE_SCOPE),
            is_duplicate="duplicated" in marks,
        )


def _read_constants(function: Message) -> Iterator[tuple[str, int | tuple[int, ...]]]:
    for node in function.node:
        if node.op_type == "Constant" and node.attribute:
            value = _read_value(node.attribute[0])
            is_ints = isinstance(value, tuple) and all(isinstance(item, int) for item in value)
            if isinstance(value, int) or is_ints:
                yield node.output[0], value


def _read_constant_types(functions: Iterable[Message]) -> Iterator[tuple[str, TensorType]]:
    for function in functions:
        for node in function.node:
            if node.op_type == "Constant" and node.attribute and len(node.attribute[0].tensors) == 1:
                yield node.output[0], _tensor_type(node.attribute[0].tensors[0])


def _read_parameter_types(functions: Iterable[Message]) -> Iterator[tuple[str, TensorType]]:
    for function in functions:
        for parameter in function.input:
            if len(parameter.tensor) == 1:
                yield parameter.name, _tensor_type(parameter.tensor[0])


def _split_scope(scope: str, layer_list: str | None) -> tuple[int | None, str]:
    """Layer index and cell path of a scope such as `Default/net-Net/layers-CellList/1-Layer/mlp-Mlp/Mul-op0`."""
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


def _read_types(node: Message) -> Iterator[TensorType]:
    for attribute in node.attribute:
        if attribute.name == "shape":
            yield from _flatten_types(attribute)


def _flatten_types(attribute: Message) -> Iterator[TensorType]:
    for tensor in attribute.tensors:
        yield _tensor_type(tensor)
    for value in attribute.values:
        yield from _flatten_types(value)


def _tensor_type(tensor: Message) -> TensorType:
    dtype = tensor.DataType.Name(tensor.data_type).lower()
    size = BYTES_PER_ELEMENT.get(dtype, 0)
    for dim in tensor.dims:
        size *= max(dim, 0)
    return TensorType(tuple(tensor.dims), "float32" if dtype == "float" else dtype, size)


def _read_value(attribute: Message) -> Any:
    """Plain Python value of a primitive's attribute; only the kinds that mindswap reads."""
    kind = attribute.AttributeType.Name(attribute.type)
    if kind == "BOOL":
        return bool(attribute.i)
    if kind in ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"):
        return attribute.ints[0] if attribute.ints else attribute.i
    if kind == "STRING":
        return attribute.s.decode(errors="replace")
    if kind in ("TUPLE", "LIST"):
        return tuple(_read_value(value) for value in attribute.values)
    if kind == "DICT":  # a Layout: each entry has a name and one value
        return {entry.name: _read_value(entry.values[0]) for entry in attribute.values if entry.values}
    return None
