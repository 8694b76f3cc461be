"""Who reads whose output in forward. Pure."""

from collections.abc import Callable, Iterable, Iterator

from mindswap.graph.memory import OperatorNames
from mindswap.graph.model import Graph, Node
from mindswap.graph.names import Names
from mindswap.graph.ops import UNNAMED_OPS
from mindswap.policy.cell_tree import CellNode


def depending(nodes: Iterable[Node], roots: Iterable[str]) -> set[str]:
    """The names of some values, and of all operators (in order of execution) that depend on one of them."""
    found = set(roots)
    for node in nodes:
        if not found.isdisjoint(node.inputs):
            found.add(node.name)
    return found


def graph_uses(graph: Graph, tag: str) -> dict[str, list[str]]:
    """Tag of an operator, in this attribute -> sorted tags of the operators that use its output in forward.

    Operators without the tag (the compiler adds `TupleGetItem`, `Depend`, ...) are looked through.
    """
    uses: dict[str, set[str]] = {}

    def has_tag(node: Node) -> bool:
        return node.attributes.get(tag) is not None

    for node in filter(has_tag, graph.forward):
        for producer in _producers(graph, node, has_tag, UNNAMED_OPS):
            for path in Names.of(producer.attributes[tag]):
                uses.setdefault(path, set()).update(Names.of(node.attributes[tag]))
    return {producer: sorted(found) for producer, found in sorted(uses.items())}


def operator_uses(graph: Graph, names: OperatorNames) -> dict[tuple[int, str], frozenset[tuple[int, str]]]:
    """Operator -> the operators of layers that use its output in forward, each as (compiled layer, path).

    What a cell computes without a name goes by its cell and type; it is a user, and so are those behind it.
    """
    uses: dict[tuple[int, str], set[tuple[int, str]]] = {}
    for node in graph.forward:
        if node.layer_index is None or node.op in UNNAMED_OPS:
            continue
        users = {(node.layer_index, path) for path in names(node)}
        for producer in _producers(graph, node, names.can_name, None):
            assert producer.layer_index is not None
            for path in names(producer):
                uses.setdefault((producer.layer_index, path), set()).update(users)
    return {producer: frozenset(users) for producer, users in uses.items()}


def merged_readers(node: Node, paths: Iterable[tuple[str, ...]], layer: CellNode) -> list[str]:
    """The operators that read a reshape and are not in the graph: of two in a row the compiler leaves one.

    It has the name of the first and the cell of the second. Where the settings of the two differ, both stay.

    Args:
        node: an operator of a step without settings, with its own paths.

    Returns:
        Paths of the reshapes of that cell: one of them was the second.
    """
    cell = tuple(node.cell_path.split("."))
    if node.op != "Reshape" or any(path[:-1] == cell for path in paths):
        return []
    return list(map(".".join, layer.primitives_by_place().get(node.place, ())))


def _producers(
    graph: Graph, node: Node, is_named: Callable[[Node], bool], passed: frozenset[str] | None
) -> Iterator[Node]:
    """The named operators whose output a node reads, behind others of some types; None for all types."""
    pending = list(node.inputs)
    seen = set()
    while pending:
        name = pending.pop()
        if name in seen or name not in graph.forward_nodes:
            continue
        seen.add(name)
        producer = graph.forward_nodes[name]
        if is_named(producer):
            yield producer
        elif passed is None or producer.op in passed:
            pending.extend(producer.inputs)
