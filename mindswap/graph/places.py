"""Operators of the model by place, cell and type: all that a compiled graph says of most of them."""

from mindswap.graph.model import Graph, Node
from mindswap.graph.ops import VIEW_OPS
from mindswap.graph.storage import resolve_storage
from mindswap.policy.cell_tree import CellNode
from mindswap.policy.resolve import Decision, LayerDecisions, Path

# (cell path below the layer, primitive name)
Place = tuple[str, str]


def decisions_by_place(decisions: LayerDecisions) -> dict[Place, tuple[Decision, ...]]:
    """What is decided for the primitives at each place of a layer.

    The graph names a primitive by its cell and its type, not by its attribute. Where a cell has several of one type,
    each of their decisions may be that of the operator at hand.
    """
    return {place: tuple(map(decisions.of, paths)) for place, paths in decisions.layer.primitives_by_place().items()}


def places_below(layer: CellNode, prefix: Path) -> set[Place]:
    """The place of every primitive at or below a path of the layer."""
    found = layer.primitives_by_place().items()
    return {place for place, paths in found if any(path[: len(prefix)] == prefix for path in paths)}


def places_of(graph: Graph, node: Node) -> frozenset[Place]:
    """Places of the model's own operators that a node of forward may be.

    Of two views in a row the compiler leaves one, with the settings of the first, at the place of the second. The
    first is in the cell that makes what they show, or around one of the two cells.
    """
    owner = graph.owner(node)
    cells = {owner.cell_path}
    maker = resolve_storage(graph, owner.name).producer
    if owner.op in VIEW_OPS and maker is not None:
        for parts in (maker.cell_path.split("."), owner.cell_path.split(".")):
            cells.update(".".join(parts[:depth]) for depth in range(len(parts) + 1))
    return frozenset((cell, owner.op) for cell in cells)


def value_key(graph: Graph, node: Node) -> tuple[str, int, int | None]:
    """The operator that makes a value, and which output it is: the same in layers that are alike of any two graphs."""
    _, scope, number = graph.index.identities[graph.owner(node).name]
    return scope, number, graph.constants.get(node.inputs[1]) if node.op == "TupleGetItem" else None
