"""Readers of each operator's output in forward."""

from collections.abc import Callable, Iterable, Iterator

from mindswap.graph.memory import OperatorNames
from mindswap.graph.model import Graph, Node
from mindswap.graph.ops import LAYER_PASSING_OPS, NO_WORK_OPS, UNNAMED_OPS
from mindswap.policy.cell_tree import CellNode


def depending(nodes: Iterable[Node], roots: Iterable[str]) -> set[str]:
    """The names of some values, and of all operators (in order of execution) that depend on one of them."""
    found = set(roots)
    for node in nodes:
        if not found.isdisjoint(node.inputs):
            found.add(node.name)
    return found


def operator_uses(graph: Graph, names: OperatorNames) -> dict[tuple[int, str], frozenset[tuple[int, str]]]:
    """Operator -> the operators of layers that use its output in forward, each as (compiled layer, path).

    What a cell computes without a name goes by its cell and type; it is a user, and so are those behind it.
    """
    uses: dict[tuple[int, str], set[tuple[int, str]]] = {}
    for node in graph.forward:
        if node.layer_index is None or node.op in UNNAMED_OPS:
            continue
        users = {(node.layer_index, path) for path in names(node)}
        for producer in _producers(graph, node, names.can_name):
            assert producer.layer_index is not None
            for path in names(producer):
                uses.setdefault((producer.layer_index, path), set()).update(users)
    return {producer: frozenset(users) for producer, users in uses.items()}


def merged_readers(node: Node, paths: Iterable[tuple[str, ...]], layer: CellNode) -> list[str]:
    """The operators that read a reshape and are not in the graph: of two in a row the compiler leaves one.

    It has the name of the first and the cell of the second. Where the settings of the two differ, both stay.
    Given are an operator of a step without settings and its own paths; paths of the reshapes of its cell come back: one
    of them was the second.
    """
    cell = tuple(node.cell_path.split("."))
    if node.op != "Reshape" or any(path[:-1] == cell for path in paths):
        return []
    return list(map(".".join, layer.primitives_by_place().get(node.place, ())))


def _producers(graph: Graph, node: Node, is_named: Callable[[Node], bool]) -> Iterator[Node]:
    """The named operators whose output a node reads, directly or behind others."""
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
        else:
            pending.extend(producer.inputs)


def find_handed_on(graph: Graph) -> frozenset[str]:
    """Names of the operators of layers with which operators of another layer, or of none, compute.

    To make one again in backward takes what the layer before hands on, and so on down to the first layer.
    """
    nodes = graph.forward_nodes
    found: set[str] = set()
    for reader in graph.forward:
        if reader.op in NO_WORK_OPS:  # the compiler ties what backward needs in tuples of no layer
            continue
        stack = list(reader.inputs)
        while stack:
            source = nodes.get(stack.pop())
            if source is None or source.name in found:
                continue
            if source.op in LAYER_PASSING_OPS:
                stack += source.inputs
            if source.layer_index not in (None, reader.layer_index):
                found.add(source.name)
    return frozenset(found)
