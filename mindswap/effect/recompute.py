"""What is asked to be recomputed against what backward of the compiled graph runs again, layer by layer. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from mindswap.graph.model import Graph, Node
from mindswap.graph.ops import VIEW_OPS
from mindswap.graph.places import Place, decisions_by_place, places_below
from mindswap.graph.storage import classify_saved
from mindswap.policy.match import Match
from mindswap.policy.resolve import Claim, Decision, LayerDecisions, Treatment, matches_of

__all__ = ["RecomputeEffect", "compare_recompute", "idle_recompute"]

# The attribute that `select_comm_recompute` sets.
COMM_ATTRIBUTE = "recompute_comm_op"


@dataclass(frozen=True)
class RecomputeEffect:
    """One layer: what was asked, and what the compiled graph does.

    Attributes:
        layer_index: index of the layer.
        is_whole: the whole layer was asked for.
        operators: what backward runs again, `cell path primitive`, each once; without what it runs again
            in any case.
        num_recomputed: how many operators backward runs again, all of them.
        kept_before_bytes: what the layer keeps from forward to backward without recompute.
        kept_bytes: the same with recompute.
        missing: operators that were asked for, are not marked in the graph, and do not run again in backward.
        unasked: operators that backward runs again though nobody asked.
        idle: parts that were asked for and of which backward runs nothing again.
        comm_missing, comm_unasked: the same for communication that is to be repeated.
    """

    layer_index: int
    is_whole: bool
    operators: tuple[str, ...]
    num_recomputed: int
    kept_before_bytes: int = 0
    kept_bytes: int = 0
    missing: tuple[str, ...] = ()
    unasked: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()
    comm_missing: tuple[str, ...] = ()
    comm_unasked: tuple[str, ...] = ()

    @property
    def is_as_asked(self) -> bool:
        """The graph does what was asked, no more and no less."""
        return not (self.missing or self.unasked or self.idle or self.comm_missing or self.comm_unasked)


def compare_recompute(layers: Iterable[LayerDecisions], baseline: Graph, graph: Graph) -> tuple[RecomputeEffect, ...]:
    """Compare the intent for each layer with the graph.

    Args:
        layers: what is decided for each layer; `layer_index` as in the graphs.
        baseline: the same network without recompute; what it runs again, the model itself asks for.
        graph: the network as it was compiled.
    """
    kept = [_kept_bytes(each) for each in (baseline, graph)]
    return tuple(
        replace(
            _compare(asked, baseline, graph),
            kept_before_bytes=kept[0].get(asked.layer_index, 0),
            kept_bytes=kept[1].get(asked.layer_index, 0),
        )
        for asked in layers
    )


def _kept_bytes(graph: Graph) -> dict[int | None, int]:
    """What each layer keeps from forward to backward."""
    kept: dict[int | None, int] = {}
    for entry in classify_saved(graph):
        kept[entry.storage.layer_index] = kept.get(entry.storage.layer_index, 0) + entry.kept_bytes
    return kept


def _compare(layer: LayerDecisions, baseline: Graph, graph: Graph) -> RecomputeEffect:
    index = layer.layer_index
    forward = [node for node in graph.forward if node.layer_index == index]
    again = [_node_key(node) for node in graph.backward if node.layer_index == index and node.is_duplicate]
    always = {_node_key(node) for node in baseline.backward if node.layer_index == index and node.is_duplicate}
    asked = _Asked(layer)
    asked_comm = _places(layer, layer.comm_recomputes)
    marked_comm = {_node_key(node) for node in forward if node.attributes.get(COMM_ATTRIBUTE) is True}
    there = _places_there(layer, graph)
    return RecomputeEffect(
        layer_index=index,
        is_whole=layer.is_fully_recomputed,
        operators=_names(key for key in again if key not in always or asked.covers(key)),
        num_recomputed=len(again),
        missing=_names(_not_again(filter(lambda node: asked.is_certain(_node_key(node)), forward), again)),
        unasked=_names(key for key in again if key not in always and not asked.covers(key)),
        idle=tuple(match.name if match is not None else "the whole layer" for match in idle_recompute(layer, graph)),
        comm_missing=_names(key for key in asked_comm if key in there and key not in marked_comm),
        comm_unasked=_names(sorted(key for key in marked_comm - asked_comm if not _is_merged(key, asked_comm))),
    )


class _Asked:
    """The primitives of a layer that are asked for.

    The graph names a primitive by its cell and its type. Where a cell has several of one type and only
    some are asked for, that type is possible and not certain.
    """

    def __init__(self, layer: LayerDecisions):
        self._layer = layer
        decided = decisions_by_place(layer)
        self._asked = {place: {_is_recomputed(decision) for decision in found} for place, found in decided.items()}

    def is_certain(self, place: Place) -> bool:
        """Every primitive at the place is asked for."""
        return self._asked.get(place) == {True}

    def covers(self, place: Place) -> bool:
        """Asked for, or added by the compiler (a read of a weight, a tuple) to a cell that was asked for."""
        if place in self._asked:
            return True in self._asked[place]
        cell, op = place
        return _is_recomputed(self._layer.of((*filter(None, cell.split(".")), op)))


def _is_recomputed(decision: Decision) -> bool:
    return decision.treatment is Treatment.RECOMPUTE


def idle_recompute(layer: LayerDecisions, graph: Graph) -> Iterator[Match | None]:
    """What is to be recomputed and of which backward runs nothing again; None stands for the whole layer.

    Args:
        layer: what is decided for it; `layer_index` as in the graph.
        graph: the network as it was compiled.
    """
    again = {_node_key(n) for n in graph.backward if n.layer_index == layer.layer_index and n.is_duplicate}
    there = _places_there(layer, graph)
    if layer.is_fully_recomputed and not again:
        yield None
    for match in matches_of(layer.recomputes):
        # A view holds no memory of its own, and a primitive without a node (Shape) is nothing to recompute.
        places = {place for place in places_below(layer.layer, match.path) & there if place[1] not in VIEW_OPS}
        if places and not places & again:
            yield match


def _places_there(layer: LayerDecisions, graph: Graph) -> set[Place]:
    """Places that forward of the layer has, as far as they can be told.

    A primitive that is marked by itself loses its scope in forward, so only its name is sure.
    """
    forward = [node for node in graph.forward if node.layer_index == layer.layer_index]
    marked_ops = {node.op for node in forward if node.attributes.get("recompute") is True}
    selected = (claim for claim in layer.recomputes if claim.path)
    return {_node_key(node) for node in forward} | {p for p in _places(layer, selected) if p[1] in marked_ops}


def _places(layer: LayerDecisions, claims: Iterable[Claim]) -> set[Place]:
    return {place for claim in claims for place in places_below(layer.layer, claim.path)}


def _node_key(node: Node) -> Place:
    return node.cell_path, node.op


def _is_merged(place: Place, asked: Iterable[Place]) -> bool:
    """Whether a reshape has the mark of the one before it, in a cell of this cell: of two in a row one is left."""
    cell, op = place
    return op == "Reshape" and any(other == op and inner.rpartition(".")[0] == cell for inner, other in asked)


def _not_again(nodes: Iterable[Node], again: Iterable[Place]) -> Iterator[Place]:
    """Places of operators without a mark, but those of which backward runs as many again as there are.

    An operator that a cell holds twice under one setting, split say, may have lost its scope, and its mark with it.
    """
    nodes = tuple(nodes)
    left = Counter(map(_node_key, nodes))
    left.subtract(again)
    return (_node_key(node) for node in nodes if not _is_marked(node) and left[_node_key(node)] > 0)


def _is_marked(node: Node) -> bool:
    return node.is_recomputed or node.attributes.get("recompute") is True


def _names(keys: Iterable[Place]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(f"{cell} {op}".strip() for cell, op in keys))
