"""Comparison of requested recompute with the recompute in the compiled graph, layer by layer."""

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mindswap.graph.layer_paths import has_scope
from mindswap.graph.model import RECOMPUTE_SCOPE, SAME_LAYERS, Graph, Node
from mindswap.graph.ops import VIEW_OPS
from mindswap.graph.passes.gather import is_gathering
from mindswap.graph.storage import classify_saved, kept_bytes_by_layer, resolve_storage
from mindswap.policy.cell_tree import CellNode, Match
from mindswap.policy.resolve import Decision, EntryMatch, LayerDecisions, Path, Treatment, unique_matches

# A compiled graph identifies most operators by cell path and type only.

# (cell path below the layer, primitive name)
OperatorKey = tuple[str, str]


def decisions_by_operator(decisions: LayerDecisions) -> dict[OperatorKey, tuple[Decision, ...]]:
    """Return the decisions for the primitives of a layer by operator key.

    The graph names a primitive by cell and type, not by its attribute. If a cell has several primitives of one type,
    any of their decisions may apply to an operator.
    """
    return {
        operator_key: tuple(map(decisions.decision_for, paths))
        for operator_key, paths in decisions.layer.primitives_by_cell_and_type().items()
    }


@functools.lru_cache(maxsize=4096)  # a planner calls it for every name that it swaps
def operators_below(layer: CellNode, prefix: Path) -> frozenset[OperatorKey]:
    """Return the keys of all primitives at or below a path of the layer."""

    def is_below(path: Path) -> bool:
        return path[: len(prefix)] == prefix

    primitives = layer.primitives_by_cell_and_type().items()
    return frozenset(operator_key for operator_key, paths in primitives if any(map(is_below, paths)))


def possible_operator_keys(graph: Graph, node: Node) -> frozenset[OperatorKey]:
    """Return the keys of the model's operators that a forward node may correspond to.

    Of two consecutive views the compiler keeps one, with the settings of the first and the cell of the second. The
    first is in the cell that produces the viewed tensor, or in a cell that contains one of the two.
    """
    owner = graph.owner(node)
    cells = {owner.cell_path}
    view_producer = resolve_storage(graph, owner.name).producer
    if owner.op in VIEW_OPS and view_producer is not None:
        for parts in (view_producer.cell_path.split("."), owner.cell_path.split(".")):
            cells.update(".".join(parts[:depth]) for depth in range(len(parts) + 1))
    return frozenset((cell, owner.op) for cell in cells)


class ValueKey(NamedTuple):
    """Identity of a value within a layer, equal for equal layers of any two graphs."""

    scope: str  # of its producer, without the number of the layer
    number: int  # of the producer among the operators of that scope
    output_index: int | None  # None for the only output


def value_key(graph: Graph, node: Node) -> ValueKey:
    """Return the identity of a node's output within its layer."""
    identity = graph.index.identities[graph.owner(node).name]
    output_index = graph.constants.get(node.inputs[1]) if node.op == "TupleGetItem" else None
    return ValueKey(identity.scope, identity.number, output_index)


# Attribute set by `select_comm_recompute`.
COMM_ATTRIBUTE = "recompute_comm_op"


@dataclass(frozen=True)
class RecomputeEffect:
    """Requested and compiled recompute of one layer."""

    layer_index: int
    is_whole: bool  # recompute of the full layer is requested
    # recomputed operators as `cell path primitive`, each once, without those that are recomputed in any case
    operators: tuple[str, ...]
    num_recomputed: int  # number of recomputed operators, including those recomputed in any case
    kept_before_bytes: int = 0  # bytes saved for backward without recompute
    kept_bytes: int = 0  # and with it
    # requested operators that are not marked in the graph and not recomputed
    missing: tuple[str, ...] = ()
    unasked: tuple[str, ...] = ()  # recomputed operators that were not requested
    idle: tuple[str, ...] = ()  # requested cells and operators of which nothing is recomputed
    comm_missing: tuple[str, ...] = ()  # the same for communication
    comm_unasked: tuple[str, ...] = ()  # the same for communication

    @property
    def matches_policy(self) -> bool:
        """Return whether the graph recomputes exactly what is requested."""
        return not (self.missing or self.unasked or self.idle or self.comm_missing or self.comm_unasked)


def compare_recompute(
    layers: Iterable[LayerDecisions], baseline: Graph, graph: Graph, baseline_layers: Mapping[int, int] = SAME_LAYERS
) -> tuple[RecomputeEffect, ...]:
    """Compare the requested recompute of each layer with the compiled graph.

    Args:
        layers: decisions; `layer_index` counts layers of `graph`.
        baseline: the same network without recompute; the model itself requests the recompute in it.
        graph: the network under the policy.
        baseline_layers: layer of `graph` -> equal layer of `baseline`, where the numbers differ.
    """
    before, after = (kept_bytes_by_layer(classify_saved(one_graph)) for one_graph in (baseline, graph))
    effects = []
    for layer in layers:
        plain_index = baseline_layers.get(layer.layer_index, layer.layer_index)
        always = {node.operator_key for node in recomputed_nodes(baseline, plain_index)}
        effects.append(_compare(layer, always, graph, before[plain_index], after[layer.layer_index]))
    return tuple(effects)


def _compare(
    layer: LayerDecisions, always: set[OperatorKey], graph: Graph, kept_before_bytes: int, kept_bytes: int
) -> RecomputeEffect:
    forward = [node for node in graph.forward if node.layer_index == layer.layer_index]
    recomputed = [node.operator_key for node in recomputed_nodes(graph, layer.layer_index)]
    # If a cell has several primitives of one type and recompute is requested for only some, recompute of that type is
    # possible, not certain.
    requested = {
        operator_key: {*map(_is_recomputed, decisions)}
        for operator_key, decisions in decisions_by_operator(layer).items()
    }

    def covers(operator_key: OperatorKey) -> bool:
        """Return whether an operator is requested, or was inserted by the compiler in a requested cell."""
        path = (*filter(None, operator_key[0].split(".")), operator_key[1])
        return (
            True in requested[operator_key] if operator_key in requested else _is_recomputed(layer.decision_for(path))
        )

    certain = [node for node in forward if requested.get(node.operator_key) == {True}]
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
        idle=tuple(match.name if match is not None else "the full layer" for match in idle_recompute(layer, graph)),
        comm_missing=to_names(sorted(requested_comm & _forward_operators(layer, graph) - marked_comm.keys())),
        comm_unasked=to_names(sorted(unasked_comm)),
    )


def _is_recomputed(decision: Decision) -> bool:
    return decision.treatment is Treatment.RECOMPUTE


def idle_recompute(layer: LayerDecisions, graph: Graph) -> Iterator[Match | None]:
    """Yield the requested recompute of which backward recomputes nothing; None represents the full layer."""
    recomputed = {node.operator_key for node in recomputed_nodes(graph, layer.layer_index)}
    forward_keys = _forward_operators(layer, graph)
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
        # A view holds no memory, and a primitive without a node (Shape) has nothing to recompute.
        operator_keys = {
            operator_key
            for operator_key in operators_below(layer.layer, match.path) & forward_keys
            if operator_key[1] not in VIEW_OPS
        }
        is_unplaced = match.node.is_primitive and match.node.type_name in unplaced
        if operator_keys and not operator_keys & recomputed and not is_unplaced and match.name not in tagged:
            yield match


def _types_without_scope(graph: Graph, layer_index: int) -> set[str]:
    """Return the types of marked operators without a scope that are recomputed wherever backward needs them.

    Their copies have no scope either, so the graph cannot show which cell they belong to; recompute of these types is
    never reported as idle. Gathered weights are excluded, because other rules apply to them. The layer of an operator
    without a scope is that of its input, so its copy may be in another layer.
    """
    recomputed = graph.index.duplicates
    kept_names = {node.name for node in graph.index.kept_nodes}
    recomputed_types, kept_types = set(), set()
    for node in graph.forward:
        is_marked_alone = is_marked(node) and not has_scope(node) and not is_gathering(node)
        if node.layer_index == layer_index and is_marked_alone:
            if node.name in recomputed:
                recomputed_types.add(node.op)
            elif node.name in kept_names:
                kept_types.add(node.op)
    return recomputed_types - kept_types


def recomputed_nodes(graph: Graph, layer_index: int) -> list[Node]:
    """Return the operators that backward of a layer recomputes.

    A marked operator inside a recomputed cell is not flagged as a duplicate; its scope shows that it is recomputed.
    """
    return [
        node
        for node in graph.backward
        if node.layer_index == layer_index and (node.is_duplicate or node.scope.startswith(RECOMPUTE_SCOPE))
    ]


def is_marked(node: Node) -> bool:
    """Return whether a forward operator is marked for recompute, by its scope or by its attribute."""
    return node.is_recomputed or node.attributes.get("recompute") is True


def to_names(operator_keys: Iterable[OperatorKey]) -> tuple[str, ...]:
    """Return `cell path primitive` of each key, without duplicates."""
    return tuple(dict.fromkeys(f"{cell} {op}".strip() for cell, op in operator_keys))


def _forward_operators(layer: LayerDecisions, graph: Graph) -> set[OperatorKey]:
    """Return the operator keys in forward of the layer, including those that marked primitives may have.

    A marked primitive has no scope in forward, so only its type is known.
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
    """Yield the keys of unmarked operators that backward recomputes less often than forward contains them.

    If a cell uses a primitive twice under one setting (split, for example), a use may have lost its scope and its mark.
    """
    counts = Counter(node.operator_key for node in nodes)
    counts.subtract(recomputed)
    return (node.operator_key for node in nodes if not is_marked(node) and counts[node.operator_key] > 0)
