"""Requested recompute against what backward of the compiled graph runs again, layer by layer."""

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from mindswap.graph.layer_paths import has_scope
from mindswap.graph.model import RECOMPUTE_SCOPE, SAME_LAYERS, Graph, Node
from mindswap.graph.ops import VIEW_OPS
from mindswap.graph.passes.gather import is_gathering
from mindswap.graph.storage import classify_saved, kept_bytes_by_layer, resolve_storage
from mindswap.policy.cell_tree import CellNode, Match
from mindswap.policy.resolve import Decision, EntryMatch, LayerDecisions, Path, Treatment, unique_matches

# Operators of the model by place, cell and type: all that a compiled graph says of most of them.

# (cell path below the layer, primitive name)
OperatorKey = tuple[str, str]


def decisions_by_operator(decisions: LayerDecisions) -> dict[OperatorKey, tuple[Decision, ...]]:
    """Decisions for the primitives at each place of a layer.

    The graph names a primitive by its cell and its type, not by its attribute. Where a cell has several of one type,
    each of their decisions may be that of the operator at hand.
    """
    return {
        operator_key: tuple(map(decisions.decision_for, paths))
        for operator_key, paths in decisions.layer.primitives_by_cell_and_type().items()
    }


@functools.lru_cache(maxsize=4096)  # a planner asks it of each name that it swaps
def operators_below(layer: CellNode, prefix: Path) -> frozenset[OperatorKey]:
    """The place of every primitive at or below a path of the layer."""
    found = layer.primitives_by_cell_and_type().items()
    return frozenset(
        operator_key for operator_key, paths in found if any(path[: len(prefix)] == prefix for path in paths)
    )


def possible_operator_keys(graph: Graph, node: Node) -> frozenset[OperatorKey]:
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


# The attribute that `select_comm_recompute` sets.
COMM_ATTRIBUTE = "recompute_comm_op"


@dataclass(frozen=True)
class RecomputeEffect:
    """One layer: what was asked, and what the compiled graph does."""

    layer_index: int
    is_whole: bool  # the whole layer was asked for
    # what backward runs again, `cell path primitive`, each once; without what it runs again in any case
    operators: tuple[str, ...]
    num_recomputed: int  # how many operators backward runs again, all of them
    kept_before_bytes: int = 0  # kept from forward to backward without recompute
    kept_bytes: int = 0  # and with it
    # operators that were asked for, are not marked in the graph, and do not run again in backward
    missing: tuple[str, ...] = ()
    unasked: tuple[str, ...] = ()  # operators that backward runs again though nobody asked
    idle: tuple[str, ...] = ()  # parts that were asked for and of which backward runs nothing again
    comm_missing: tuple[str, ...] = ()  # the same for communication that is to be repeated
    comm_unasked: tuple[str, ...] = ()  # likewise

    @property
    def is_as_asked(self) -> bool:
        """The graph does what was asked, no more and no less."""
        return not (self.missing or self.unasked or self.idle or self.comm_missing or self.comm_unasked)


def compare_recompute(
    layers: Iterable[LayerDecisions], baseline: Graph, graph: Graph, baseline_layers: Mapping[int, int] = SAME_LAYERS
) -> tuple[RecomputeEffect, ...]:
    """Compare the intent for each layer, `layer_index` as in `graph`, with the graph as it was compiled.

    `baseline` is the same network without recompute; what it runs again, the model itself asks for.
    `baseline_layers` gives its layer that is like one of `graph`, where that has another number.
    """
    before, after = (kept_bytes_by_layer(classify_saved(each)) for each in (baseline, graph))
    effects = []
    for asked in layers:
        plain_index = baseline_layers.get(asked.layer_index, asked.layer_index)
        always = {node.operator_key for node in recomputed_nodes(baseline, plain_index)}
        effects.append(_compare(asked, always, graph, before[plain_index], after[asked.layer_index]))
    return tuple(effects)


def _compare(
    layer: LayerDecisions, always: set[OperatorKey], graph: Graph, kept_before_bytes: int, kept_bytes: int
) -> RecomputeEffect:
    forward = [node for node in graph.forward if node.layer_index == layer.layer_index]
    recomputed = [node.operator_key for node in recomputed_nodes(graph, layer.layer_index)]
    # The graph names a primitive by its cell and its type. Where a cell has several of one type and only some are asked
    # for, that type is possible and not certain.
    asked = {
        operator_key: {*map(_is_recomputed, found)} for operator_key, found in decisions_by_operator(layer).items()
    }

    def covers(operator_key: OperatorKey) -> bool:
        """Asked for, or added by the compiler (a read of a weight, a tuple) to a cell that was asked for."""
        path = (*filter(None, operator_key[0].split(".")), operator_key[1])
        return True in asked[operator_key] if operator_key in asked else _is_recomputed(layer.decision_for(path))

    certain = [node for node in forward if asked.get(node.operator_key) == {True}]
    requested_comm = _claimed_operators(layer, layer.comm_recomputes)
    marked_comm = {node.operator_key: node for node in forward if node.attributes.get(COMM_ATTRIBUTE) is True}
    unasked_comm = (
        operator_key
        for operator_key, node in marked_comm.items()
        if requested_comm.isdisjoint(possible_operator_keys(graph, node))
    )
    return RecomputeEffect(
        layer_index=layer.layer_index,
        is_whole=layer.is_fully_recomputed,
        operators=to_names(
            operator_key for operator_key in recomputed if operator_key not in always or covers(operator_key)
        ),
        num_recomputed=len(recomputed),
        kept_before_bytes=kept_before_bytes,
        kept_bytes=kept_bytes,
        missing=to_names(_not_recomputed(certain, recomputed)),
        unasked=to_names(
            operator_key for operator_key in recomputed if operator_key not in always and not covers(operator_key)
        ),
        idle=tuple(match.name if match is not None else "the whole layer" for match in idle_recompute(layer, graph)),
        comm_missing=to_names(sorted(requested_comm & _forward_operators(layer, graph) - marked_comm.keys())),
        comm_unasked=to_names(sorted(unasked_comm)),
    )


def _is_recomputed(decision: Decision) -> bool:
    return decision.treatment is Treatment.RECOMPUTE


def idle_recompute(layer: LayerDecisions, graph: Graph) -> Iterator[Match | None]:
    """Requested recompute of which backward runs nothing again; None stands for the whole layer."""
    recomputed = {node.operator_key for node in recomputed_nodes(graph, layer.layer_index)}
    there = _forward_operators(layer, graph)
    unplaced = _types_without_scope(graph, layer.layer_index)
    nodes = graph.index.forward_nodes
    tagged = {
        path
        for node in graph.backward
        if node.is_duplicate and node.origin in nodes
        for path in nodes[node.origin].paths
    }
    if layer.is_fully_recomputed and not recomputed:
        yield None
    for match in unique_matches(layer.recomputes):
        # A view holds no memory of its own, and a primitive without a node (Shape) is nothing to recompute.
        operator_keys = {
            operator_key
            for operator_key in operators_below(layer.layer, match.path) & there
            if operator_key[1] not in VIEW_OPS
        }
        is_unplaced = match.node.is_primitive and match.node.type_name in unplaced
        if operator_keys and not operator_keys & recomputed and not is_unplaced and match.name not in tagged:
            yield match


def _types_without_scope(graph: Graph, layer_index: int) -> set[str]:
    """Types of operators that are marked by themselves, have lost their scope, and run again as far as they are needed.

    Their copies have no scope either, so no place says that what was asked for runs again; none of it can be idle.
    What makes a gathered weight goes by rules of its own. The layer of what has no scope is that of its input, so its
    copy may be in another one.
    """
    recomputed = graph.index.duplicates
    kept = {node.name for node in graph.index.kept_nodes}
    found, held = set(), set()
    for node in graph.forward:
        is_marked_alone = is_marked(node) and not has_scope(node) and not is_gathering(node)
        if node.layer_index == layer_index and is_marked_alone:
            if node.name in recomputed:
                found.add(node.op)
            elif node.name in kept:
                held.add(node.op)
    return found - held


def recomputed_nodes(graph: Graph, layer_index: int) -> list[Node]:
    """Operators that backward of a layer runs again.

    One that is marked by itself inside a cell that runs again is no duplicate by its marks, but by its scope.
    """
    return [
        node
        for node in graph.backward
        if node.layer_index == layer_index and (node.is_duplicate or node.scope.startswith(RECOMPUTE_SCOPE))
    ]


def is_marked(node: Node) -> bool:
    """An operator of forward is to run again: its scope says so, or its own mark."""
    return node.is_recomputed or node.attributes.get("recompute") is True


def to_names(operator_keys: Iterable[OperatorKey]) -> tuple[str, ...]:
    """`cell path primitive` of each place, once."""
    return tuple(dict.fromkeys(f"{cell} {op}".strip() for cell, op in operator_keys))


def _forward_operators(layer: LayerDecisions, graph: Graph) -> set[OperatorKey]:
    """Places that forward of the layer has, as far as they can be told.

    A primitive that is marked by itself loses its scope in forward, so only its name is sure.
    """
    forward = [node for node in graph.forward if node.layer_index == layer.layer_index]
    marked_ops = {node.op for node in forward if node.attributes.get("recompute") is True}
    selected = _claimed_operators(layer, (entry_match for entry_match in layer.recomputes if entry_match.path))
    return {node.operator_key for node in forward} | {
        operator_key for operator_key in selected if operator_key[1] in marked_ops
    }


def _claimed_operators(layer: LayerDecisions, entry_matches: Iterable[EntryMatch]) -> set[OperatorKey]:
    return {
        operator_key for entry_match in entry_matches for operator_key in operators_below(layer.layer, entry_match.path)
    }


def _not_recomputed(nodes: list[Node], recomputed: list[OperatorKey]) -> Iterator[OperatorKey]:
    """Places of operators without a mark, but those of which backward runs as many again as there are.

    An operator that a cell holds twice under one setting, split say, may have lost its scope, and its mark with it.
    """
    left = Counter(node.operator_key for node in nodes)
    left.subtract(recomputed)
    return (node.operator_key for node in nodes if not is_marked(node) and left[node.operator_key] > 0)
