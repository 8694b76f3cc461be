"""Operators of the model by place, cell and type: all that a compiled graph says of most of them. Pure."""

from mindswap.graph.model import Graph, Node
from mindswap.graph.ops import VIEW_OPS
from mindswap.graph.storage import resolve_storage
from mindswap.policy.actions import LayerActions
from mindswap.policy.cell_tree import CellNode

__all__ = ["Place", "asked_prefetch", "places_below", "places_of", "prefetch_by_path", "value_key"]

# (cell path below the layer, primitive name)
Place = tuple[str, str]


def prefetch_by_path(actions: LayerActions, layer: CellNode) -> dict[tuple[str, ...], int | None]:
    """Prefetch distance asked for of each primitive of a layer, by its path; None stands for "not asked".

    `layer_swap` is weaker than `op_swap`, of which the last entry that names a primitive decides.
    """
    prefetch: dict[tuple[str, ...], int | None] = {
        path: actions.layer_prefetch for path, node in layer.walk() if node.is_primitive
    }
    for swap in actions.op_swaps:
        for path in prefetch:
            if path[: len(swap.match.path)] == swap.match.path:
                prefetch[path] = swap.num_prefetch_ops
    return prefetch


def asked_prefetch(actions: LayerActions, layer: CellNode) -> dict[Place, frozenset[int | None]]:
    """Prefetch distances asked for at each place of a layer; None stands for "not asked".

    The graph names a primitive by its cell and its type, not by its attribute. Where a cell has
    several of one type and they differ, each of their distances is allowed.
    """
    prefetch = prefetch_by_path(actions, layer)
    asked: dict[Place, set[int | None]] = {}
    for path, node in layer.walk():
        if node.is_primitive:
            asked.setdefault((".".join(path[:-1]), node.type_name), set()).add(prefetch[path])
    return {place: frozenset(values) for place, values in asked.items()}


def places_below(layer: CellNode, prefix: tuple[str, ...]) -> set[Place]:
    """The place of every primitive at or below a path of the layer."""
    return {
        (".".join(path[:-1]), node.type_name)
        for path, node in layer.walk()
        if node.is_primitive and path[: len(prefix)] == prefix
    }


def places_of(graph: Graph, node: Node) -> frozenset[Place]:
    """Places of the model's own operators that a node of forward may be.

    Of two views in a row the compiler leaves one, with the settings of the first, at the place of the second. The
    first is in the cell that makes what they show, or around one of the two cells.
    """
    owner = graph.owner(node)
    cells = {owner.cell_path}
    maker = resolve_storage(graph, owner.name).producer
    if owner.op in VIEW_OPS and maker is not None:
        for path in (maker.cell_path, owner.cell_path):
            parts = path.split(".")
            cells.update(".".join(parts[:depth]) for depth in range(len(parts) + 1))
    return frozenset((cell, owner.op) for cell in cells)


def value_key(graph: Graph, node: Node) -> tuple[str, int | None]:
    """Scope of the operator that makes a value, and which output it is: the same in all graphs of a network."""
    is_part = node.op == "TupleGetItem"
    return graph.owner(node).scope, graph.constants.get(node.inputs[1]) if is_part else None
