"""Compiled steps with shapes and strategies, in one line per operator."""

from mindswap.graph.model import Graph, Node, Saved, TensorType


def op(name, op_name, inputs="", *shapes, layer=0, origin="", is_duplicate=False, **attributes):
    """An operator whose outputs have these shapes, float32."""
    return Node(
        name=name,
        op=op_name,
        layer_index=layer,
        cell_path="mlp",
        scope=f"Default/{name}",
        inputs=tuple(inputs.split()),
        outputs=tuple(tensor(shape) for shape in shapes),
        attributes=attributes,
        origin=origin,
        is_duplicate=is_duplicate,
    )


def tensor(shape):
    size = 4
    for dim in shape:
        size *= dim
    return TensorType(tuple(shape), "float32", size)


def graph(*forward, backward=(), saved="", tuples=None, types=None, **constants):
    entries = tuple(Saved(name, f"{name}_b") for name in saved.split())
    known = {name: tensor(shape) for name, shape in (types or {}).items()}
    return Graph(forward, tuple(backward), entries, True, constants, tuples or {}, known)


def shapes(sharding):
    """Name -> shape of the first output on one rank."""
    nodes = (*sharding.graph.forward, *sharding.graph.backward)
    return {node.name: node.outputs[0].shape for node in nodes if node.outputs}
