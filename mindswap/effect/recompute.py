"""What is asked to be recomputed against what backward of the compiled graph runs again, layer by layer. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from mindswap.graph.model import Graph, Node
from mindswap.graph.ops import VIEW_OPS
from mindswap.graph.storage import classify_saved
from mindswap.policy.actions import LayerActions
from mindswap.policy.cell_tree import CellNode
from mindswap.policy.match import Match

__all__ = ["RecomputeEffect", "compare_recompute"]

# The attribute that `select_comm_recompute` sets.
COMM_ATTRIBUTE = "recompute_comm_op"


Key = tuple[str, str]


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
        missing: operators that were asked for and are not marked in the graph.
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


def compare_recompute(
    actions: Iterable[LayerActions], layers: Iterable[CellNode], baseline: Graph, graph: Graph
) -> tuple[RecomputeEffect, ...]:
    """Compare the intent for each layer with the graph.

    Args:
        actions: what is asked of each layer; `layer_index` as in the graphs.
        layers: tree of each layer.
        baseline: the same network without recompute; what it runs again, the model itself asks for.
        graph: the network as it was compiled.
    """
    kept = [_kept_bytes(each) for each in (baseline, graph)]
    return tuple(
        replace(
            _compare(asked, layer, baseline, graph),
            kept_before_bytes=kept[0].get(asked.layer_index, 0),
            kept_bytes=kept[1].get(asked.layer_index, 0),
        )
        for asked, layer in zip(actions, layers, strict=True)
    )


def _kept_bytes(graph: Graph) -> dict[int | None, int]:
    """What each layer keeps from forward to backward."""
    kept: dict[int | None, int] = {}
    for entry in classify_saved(graph):
        kept[entry.storage.layer_index] = kept.get(entry.storage.layer_index, 0) + entry.kept_bytes
    return kept


def _compare(actions: LayerActions, layer: CellNode, baseline: Graph, graph: Graph) -> RecomputeEffect:
    index = actions.layer_index
    forward = [node for node in graph.forward if node.layer_index == index]
    again = [_node_key(node) for node in graph.backward if node.layer_index == index and node.is_duplicate]
    always = {_node_key(node) for node in baseline.backward if node.layer_index == index and node.is_duplicate}
    asked = _Asked(actions, layer)
    asked_comm = {_key(match) for match in actions.comm_recomputes}
    marked_comm = {_node_key(node) for node in forward if node.attributes.get(COMM_ATTRIBUTE) is True}
    # A primitive that is marked by itself loses its scope in forward, so only its name is sure.
    marked_ops = {node.op for node in forward if node.attributes.get("recompute") is True}
    there = {_node_key(node) for node in forward}
    there |= {key for match in actions.recomputes for key in _keys_of(match) if key[1] in marked_ops}
    return RecomputeEffect(
        layer_index=index,
        is_whole=actions.is_fully_recomputed,
        operators=_names(key for key in again if key not in always or asked.covers(key)),
        num_recomputed=len(again),
        missing=_names(_node_key(n) for n in forward if _node_key(n) in asked.certain and not _is_marked(n)),
        unasked=_names(key for key in again if key not in always and not asked.covers(key)),
        idle=tuple(_idle(actions, set(again), there)),
        comm_missing=_names(key for key in asked_comm if key in there and key not in marked_comm),
        comm_unasked=_names(sorted(marked_comm - asked_comm)),
    )


class _Asked:
    """The primitives of a layer that are asked for.

    The graph names a primitive by its cell and its type. Where a cell has several of one type and only
    some are asked for, that type is possible and not certain.
    """

    def __init__(self, actions: LayerActions, layer: CellNode):
        excluded = {match.path for match in actions.recompute_excludes}
        named = {match.path for match in actions.recomputes}
        wanted: dict[Key, set[bool]] = {}
        for key, path in _primitives(layer):
            is_named = actions.is_fully_recomputed or any(path[:end] in named for end in range(1, len(path) + 1))
            wanted.setdefault(key, set()).add(is_named and path not in excluded)
        self.certain = {key for key, asked in wanted.items() if asked == {True}}
        self._possible = {key for key, asked in wanted.items() if True in asked}
        self._own = set(wanted)
        self._is_whole = actions.is_fully_recomputed
        self._cells = [match.name for match in actions.recomputes if not match.node.is_primitive]

    def covers(self, key: Key) -> bool:
        """Asked for, or added by the compiler (a read of a weight, a tuple) to a cell that was asked for."""
        if key in self._own:
            return key in self._possible
        cell = key[0]
        return self._is_whole or any(cell == name or cell.startswith(f"{name}.") for name in self._cells)


def _idle(actions: LayerActions, again: set[Key], there: set[Key]) -> Iterator[str]:
    if actions.is_fully_recomputed and not again:
        yield "the whole layer"
    for match in actions.recomputes:
        # A view holds no memory of its own, and a primitive without a node (Shape) is nothing to recompute.
        keys = {key for key in _keys_of(match) & there if key[1] not in VIEW_OPS}
        if keys and not keys & again:
            yield match.name


def _keys_of(match: Match) -> set[Key]:
    if match.node.is_primitive:
        return {_key(match)}
    below = (entry for entry in match.node.walk() if entry[1].is_primitive)
    return {(".".join((*match.path, *path[:-1])), node.type_name) for path, node in below}


def _key(match: Match) -> Key:
    return ".".join(match.path[:-1]), match.node.type_name


def _primitives(layer: CellNode) -> Iterator[tuple[Key, tuple[str, ...]]]:
    for path, node in layer.walk():
        if node.is_primitive:
            yield (".".join(path[:-1]), node.type_name), path


def _node_key(node: Node) -> Key:
    return node.cell_path, node.op


def _is_marked(node: Node) -> bool:
    return node.is_recomputed or node.attributes.get("recompute") is True


def _names(keys: Iterable[Key]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(f"{cell} {op}".strip() for cell, op in keys))
