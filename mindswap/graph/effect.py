"""What a policy asked for against what the compiler did, layer by layer. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from mindswap.applier.actions import LayerActions
from mindswap.graph.model import Graph, Node, SwapPair
from mindswap.policy.cell_tree import CellNode

__all__ = ["LayerEffect", "compare_effect"]


@dataclass(frozen=True)
class LayerEffect:
    """One layer: what was asked, and what the compiled graph does.

    Attributes:
        layer_index: index of the layer.
        pairs: copies out with their copies back in, all that the graph has in this layer.
        missing: operators asked to be swapped whose output stays on the device until backward all the
            same, though they are not recomputed.
        unasked: copies of operators that the policy does not name.
        wrong_prefetch: copies with another prefetch distance than the policy's.
        one_way: copies to the host that never come back.
        num_recomputed: operators that backward runs again.
        kept_before_bytes: what the layer keeps on the device from forward to backward without swap.
        kept_bytes: the same with swap.
    """

    layer_index: int
    pairs: tuple[SwapPair, ...]
    missing: tuple[Node, ...]
    unasked: tuple[SwapPair, ...]
    wrong_prefetch: tuple[SwapPair, ...]
    one_way: tuple[Node, ...]
    num_recomputed: int
    kept_before_bytes: int
    kept_bytes: int

    @property
    def is_as_asked(self) -> bool:
        """The graph does what the policy says, no more and no less."""
        return not (self.missing or self.unasked or self.wrong_prefetch or self.one_way)

    @property
    def swapped_bytes(self) -> int:
        """Bytes that leave the device in forward and come back in backward."""
        return sum(pair.size_bytes for pair in self.pairs)


def compare_effect(
    actions: Iterable[LayerActions], layers: Iterable[CellNode], baseline: Graph, graph: Graph
) -> tuple[LayerEffect, ...]:
    """Compare the intent for each layer with the graph.

    Args:
        actions: what the policy asks of each layer.
        layers: tree of each layer.
        baseline: the same network with the same recompute and without swap: what it keeps is what
            could be swapped.
        graph: the network under the policy.
    """
    return tuple(
        _compare_layer(layer_actions, _asked_prefetch(layer_actions, layer), baseline, graph)
        for layer_actions, layer in zip(actions, layers, strict=True)
    )


def _asked_prefetch(actions: LayerActions, layer: CellNode) -> dict[tuple[str, str], frozenset[int | None]]:
    """(cell path, primitive name) -> prefetch distances asked for; None stands for "not asked".

    The graph names a primitive by its cell and its type, not by its attribute. Where a cell has
    several of one type and they differ, each of their distances is allowed.
    """
    prefetch: dict[tuple[str, ...], int | None] = {
        path: actions.layer_prefetch for path, node in layer.walk() if node.is_primitive
    }
    for swap in actions.op_swaps:
        for path in prefetch:
            if path[: len(swap.match.path)] == swap.match.path:
                prefetch[path] = swap.num_prefetch_ops
    asked: dict[tuple[str, str], set[int | None]] = {}
    for path, node in layer.walk():
        if node.is_primitive:
            asked.setdefault((".".join(path[:-1]), node.type_name), set()).add(prefetch[path])
    return {key: frozenset(values) for key, values in asked.items()}


def _compare_layer(actions, asked, baseline, graph):
    index = actions.layer_index

    def prefetch_asked(node: Node) -> frozenset[int | None]:
        return asked.get((node.cell_path, node.op), frozenset((None,)))

    pairs = tuple(pair for pair in graph.swap_pairs if pair.producer.layer_index == index)
    owners = {id(pair): _primitive_of(graph, pair.producer) for pair in pairs}
    moved = {pair.producer.scope for pair in pairs}
    missing = tuple(
        node
        for node in _kept_in(baseline, index)
        if node.scope not in moved
        and None not in prefetch_asked(_primitive_of(baseline, node))
        and _is_still_kept(graph, node)
    )
    paired_copies = {pair.copy_out.name for pair in pairs}
    return LayerEffect(
        layer_index=index,
        pairs=pairs,
        missing=missing,
        unasked=tuple(pair for pair in pairs if prefetch_asked(owners[id(pair)]) == {None}),
        wrong_prefetch=tuple(
            pair for pair in pairs if pair.num_prefetch_ops not in prefetch_asked(owners[id(pair)]) | {None}
        ),
        one_way=tuple(
            node
            for node in graph.forward
            if node.op == "MoveTo" and node.layer_index == index and node.name not in paired_copies
        ),
        num_recomputed=sum(node.is_duplicate for node in graph.backward if node.layer_index == index),
        kept_before_bytes=_kept_bytes(baseline, index),
        kept_bytes=_kept_bytes(graph, index),
    )


def _primitive_of(graph: Graph, node: Node) -> Node:
    """The operator of the model behind a node: the compiler itself adds `TupleGetItem`."""
    while node.op == "TupleGetItem" and node.inputs[0] in graph.forward_nodes:
        node = graph.forward_nodes[node.inputs[0]]
    return node


def _kept_in(graph: Graph, layer_index: int | None) -> list[Node]:
    return [node for node in graph.kept_nodes if node.layer_index == layer_index]


def _is_still_kept(graph: Graph, node: Node) -> bool:
    return any(kept.scope == node.scope for kept in _kept_in(graph, node.layer_index))


def _kept_bytes(graph: Graph, layer_index: int) -> int:
    """Each storage once, in the layer that made it."""
    storages = {storage.name: storage for storage in map(graph.storage, graph.kept_nodes)}
    return sum(storage.size_bytes for storage in storages.values() if storage.layer_index == layer_index)
