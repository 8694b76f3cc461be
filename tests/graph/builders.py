"""Compiled steps made by hand, in one line per operator."""

from mindswap.graph.model import Graph, Node, Saved, TensorType

KIB = 1024


def node(name: str, op: str, inputs: str = "", size_bytes: int = KIB, layer: int | None = 0, **attributes) -> Node:
    """An operator `name` of layer `layer`; `inputs` are names with blanks between."""
    outputs = (TensorType((size_bytes // 4,), "float32", size_bytes),) if size_bytes else ()
    is_recomputed = attributes.pop("is_recomputed", False)
    is_duplicate = attributes.pop("is_duplicate", False)
    prefix = "recompute_" if is_recomputed else ""
    return Node(
        name=name,
        op=op,
        layer_index=layer,
        cell_path=attributes.pop("cell_path", "mlp"),
        scope=f"{prefix}Default/{name}",
        inputs=tuple(inputs.split()),
        outputs=outputs,
        attributes=attributes,
        is_recomputed=is_recomputed,
        is_duplicate=is_duplicate,
        paths=attributes.pop("paths", ()),
    )


def graph(forward: list[Node], backward: list[Node] | None = None, saved: str = "", **constants: int) -> Graph:
    """A step; `saved` are names of forward, handed to backward under the name with `_b` behind it.

    Without `backward`, one operator without output reads them all.
    """
    if backward is None:
        backward = [node("reader", "Grad", " ".join(f"{name}_b" for name in saved.split()), size_bytes=0)]
    return Graph(
        forward=tuple(forward),
        backward=tuple(backward),
        saved=tuple(Saved(name, f"{name}_b") for name in saved.split()),
        has_lazy_inline=True,
        constants=constants,
    )


def copy_out(name: str, source: str, size_bytes: int = KIB, prefetch: int = 1, layer: int | None = 0) -> Node:
    """`MoveTo` in forward."""
    return node(name, "MoveTo", f"{source} CPU", size_bytes, layer, backward_prefetch=prefetch)


def copy_in(name: str, copied: str, size_bytes: int = KIB, prefetch: int = 1, layer: int | None = 0) -> Node:
    """`MoveTo` in backward, of what forward copied out as `copied`."""
    return node(name, "MoveTo", f"{copied}_b Ascend", size_bytes, layer, backward_prefetch=prefetch)
