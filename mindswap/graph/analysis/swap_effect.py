"""Comparison of the requested policy with the compiled graph, layer by layer."""

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from enum import Enum

from mindswap.graph.analysis.recompute_effect import (
    OperatorKey,
    decisions_by_operator,
    idle_recompute,
    is_marked,
    operators_below,
    possible_operator_keys,
    recomputed_nodes,
    to_names,
    value_key,
)
from mindswap.graph.layer_paths import has_scope
from mindswap.graph.model import SAME_LAYERS, Graph, Node, SwapPair, first_source
from mindswap.graph.ops import COMPILER_OPS, VIEW_OPS
from mindswap.graph.passes.fusion import parallel_gathers
from mindswap.graph.passes.gather import is_gathering
from mindswap.graph.storage import Placement, SavedStorage, classify_saved, kept_bytes_by_layer, resolve_storage
from mindswap.policy.cell_tree import is_within
from mindswap.policy.resolve import LayerDecisions, Setting, unique_matches


class IdleReason(Enum):
    """Reason why an entry of the policy has no effect in a layer."""

    RECOMPUTED = "recompute wins: the operators are recomputed"
    NOT_NEEDED = "backward needs none of these outputs"
    NO_LAZY_INLINE = "lazy_inline is off: nothing is offloaded outside a lazy_inline cell"
    MERGED_AWAY = "the compiler merges these views into the one before, whose name must be swapped"
    GATHERED = "the parallel optimizer gathers these weights; the gathered weight, the output of the AllGather, is kept"
    NOT_RECOMPUTED = "recompute has no effect: backward recomputes none of these operators"
    NOT_CALLED = "recompute of a cell is of what the cell runs, and the model calls only its methods: name cells in it"


@dataclass(frozen=True)
class Idle:
    """An entry of the policy without effect in a layer."""

    entry: str  # pattern of the entry, or "layer_swap"
    reason: IdleReason
    keeps_instead: tuple[str, ...] = ()  # operators that read the named ones and whose outputs backward holds


@dataclass(frozen=True)
class LayerEffect:
    """Requested and compiled policy of one layer."""

    layer_index: int
    pairs: tuple[SwapPair, ...]  # all copies to the host and back in this layer
    # operators to be swapped that are neither swapped nor recomputed: their output stays on the device
    missing: tuple[Node, ...]
    unasked: tuple[SwapPair, ...]  # copies of operators that the policy does not name
    wrong_prefetch: tuple[SwapPair, ...]  # requested copies with another prefetch distance
    one_way: tuple[Node, ...]  # copies to the host without a copy back
    idle: tuple[Idle, ...]  # entries of the policy without effect in this layer
    wasted: tuple[SavedStorage, ...]  # storages that are copied although another name keeps them on the device
    # copies of tensors that a recomputed operator reads. By the specification such a swap has no effect; MindSpore 2.9
    # copies the tensor, and the recomputed operator reads the prefetched copy
    beyond_specification: tuple[SwapPair, ...]
    num_recomputed: int  # number of recomputed operators
    kept_before_bytes: int | None  # bytes saved for backward without swap; None if that was not compiled
    kept_bytes: int  # and with it

    @property
    def matches_policy(self) -> bool:
        """Return whether the graph does exactly what the policy requests.

        Wasted copies were requested; they are reported and do not count here.
        """
        return not (self.missing or self.unasked or self.wrong_prefetch or self.one_way or self.idle)

    @property
    def swapped_bytes(self) -> int:
        """Bytes copied to the host in forward and back in backward."""
        return sum(pair.size_bytes for pair in self.pairs)

    @property
    def one_way_bytes(self) -> int:
        """Bytes copied to the host and never back."""
        return sum(copy.size_bytes for copy in self.one_way)


def compare_effect(
    layers: Iterable[LayerDecisions], baseline: Graph, graph: Graph, baseline_layers: Mapping[int, int] = SAME_LAYERS
) -> tuple[LayerEffect, ...]:
    """Compare the requested policy of each layer with the graph compiled under it.

    Args:
        layers: decisions; `layer_index` counts layers of `graph`.
        baseline: the same network and recompute without swap; its saved tensors are those that could be swapped. If
            `graph` itself is passed, missing swaps may be overreported, and none is overlooked.
        graph: the network under the policy.
        baseline_layers: layer of `graph` -> equal layer of `baseline`, where the numbers differ.
    """
    saved = classify_saved(graph)
    before, after = kept_bytes_by_layer(classify_saved(baseline)), kept_bytes_by_layer(saved)
    effects = []
    for layer in layers:
        index = layer.layer_index
        plain_index = baseline_layers.get(index, index)
        comparison = _LayerComparison(layer, baseline, plain_index, graph)
        effects.append(comparison.effect(saved, before[plain_index], after[index]))
    return tuple(effects)


def is_replaced_by_gather(graph: Graph, entry: SavedStorage) -> bool:
    """Return whether the copied storage is a Reshape that sequence parallelism replaces with an AllGather.

    One AllGather, with the settings of the last, replaces all equal Reshapes of a tensor
    (`graph.passes.fusion.merge_gathers`), so the outputs of the others do not exist on a rank.
    """
    groups = (group for group in parallel_gathers(graph, "Reshape") if len(group) > 1)
    return [pair.producer.name for pair in entry.pairs] in [[group[-1].name] for group in groups]


class _LayerComparison:
    """One layer in both graphs, with the decisions for its primitives."""

    def __init__(self, decisions: LayerDecisions, baseline: Graph, plain_index: int, graph: Graph):
        self.decisions = decisions
        self.index = decisions.layer_index
        self.baseline, self.plain_index = baseline, plain_index
        self.graph = graph
        self.decided = decisions_by_operator(decisions)
        self.pairs = tuple(pair for pair in graph.swap_pairs if self._is_in_layer(pair.producer))

    def effect(self, saved: tuple[SavedStorage, ...], kept_before_bytes: int, kept_bytes: int) -> LayerEffect:
        layer_storages = (entry for entry in saved if entry.storage.layer_index == self.index)
        return LayerEffect(
            layer_index=self.index,
            pairs=self.pairs,
            missing=tuple(self._missing()),
            unasked=tuple(pair for pair in self.pairs if self._prefetch_named(pair.producer) == {None}),
            wrong_prefetch=tuple(
                pair
                for pair in self.pairs
                if (named := self._prefetch_named(pair.producer)) != {None} and pair.num_prefetch_ops not in named
            ),
            one_way=tuple(node for node in self.graph.index.one_way_copies if node.layer_index == self.index),
            idle=(*self._idle(), *self._idle_recompute()),
            wasted=tuple(entry for entry in layer_storages if entry.placement is Placement.WASTED),
            beyond_specification=tuple(self._beyond_specification()),
            num_recomputed=len(recomputed_nodes(self.graph, self.index)),
            kept_before_bytes=kept_before_bytes,
            kept_bytes=kept_bytes,
        )

    def _is_requested(self, owner: Node) -> bool:
        """Return whether every primitive that the operator may be is to be offloaded."""
        decided = self.decided.get(owner.operator_key)
        if decided is None:
            return self._attribute_prefetch(owner) is not None
        return all(decision.prefetch is not None for decision in decided)

    def _prefetch_named(self, producer: Node) -> frozenset[int | None]:
        """Return the requested distances of the primitives that a copied operator may be; None means "not named"."""
        owner = self.graph.owner(producer)
        operator_keys = possible_operator_keys(self.graph, producer)
        named = {
            decision.requested_prefetch
            for operator_key in operator_keys
            for decision in self.decided.get(operator_key, ())
        }
        if owner.operator_key not in self.decided:
            named.add(self._attribute_prefetch(owner))
        return frozenset(named)

    @staticmethod
    def _attribute_prefetch(owner: Node) -> int | None:
        """Return the distance set on an operator that the cell tree has in another cell."""
        return owner.num_prefetch_ops if owner.attributes.get("offload") is True else None

    def _is_in_layer(self, node: Node) -> bool:
        """Return whether this layer produces the value; the compiler's `TupleGetItem` may lack a layer."""
        return self.graph.owner(node).layer_index == self.index

    def _missing(self) -> Iterator[Node]:
        swapped = {value_key(self.graph, pair.producer) for pair in self.pairs}
        still_saved = {
            value_key(self.graph, node): node for node in self.graph.index.kept_nodes if self._is_in_layer(node)
        }
        for node in self.baseline.index.kept_nodes:
            key = value_key(self.baseline, node)
            is_in_layer = self.baseline.owner(node).layer_index == self.plain_index
            if not is_in_layer or key in swapped or key not in still_saved:
                continue
            owner = self.graph.owner(still_saved[key])
            # Without a scope, the key of an operator is a guess. It may be a function (`ops.reshape`) that no entry can
            # name, so the attribute set on it is the request.
            is_nameable = has_scope(owner) or self._attribute_prefetch(owner) is not None
            if is_nameable and self._is_requested(self.baseline.owner(node)):
                yield node

    def _idle(self) -> Iterator[Idle]:
        """Yield the entries of the policy that swap none of their operators."""
        swapped = self._swapped_operators()
        for entry, operator_keys in self._entries().items():
            nodes = self._nodes(operator_keys)
            if operator_keys & swapped or (not nodes and operator_keys & self._merged_operators()):
                continue
            if not self.graph.has_lazy_inline:
                yield Idle(entry, IdleReason.NO_LAZY_INLINE)
            elif nodes and all(map(is_gathering, nodes)):
                yield Idle(entry, IdleReason.GATHERED)
            elif nodes and all(map(is_marked, nodes)):
                yield Idle(entry, IdleReason.RECOMPUTED)
            elif any(self._is_merged(node) for node in nodes):
                yield Idle(entry, IdleReason.MERGED_AWAY)
            else:
                yield Idle(entry, IdleReason.NOT_NEEDED, self._holding_readers(nodes))

    def _swapped_operators(self) -> set[OperatorKey]:
        """Return the keys of swapped operators; communication that replaces one is found through its path."""
        swapped: set[OperatorKey] = set()
        for pair in self.pairs:
            paths = [tuple(path.split(".")) for path in self.graph.owner(pair.producer).paths]
            swapped |= possible_operator_keys(self.graph, pair.producer)
            swapped.update(*(operators_below(self.decisions.layer, path) for path in paths))
        return swapped

    def _merged_operators(self) -> set[OperatorKey]:
        """Return the keys of operators that the compiler may have merged with a swapped one.

        Of equal operators the compiler keeps one. Readers of the others read it instead, and the others were in their
        cells.
        """
        types = {pair.producer.name: self.graph.owner(pair.producer).op for pair in self.pairs}
        nodes = self.graph.index.forward_nodes
        read = (
            (node.cell_path, first_source(name, COMPILER_OPS, nodes)) for node in nodes.values() for name in node.inputs
        )
        return {(cell, types[name]) for cell, name in read if name in types}

    def _idle_recompute(self) -> Iterator[Idle]:
        """Yield the requested recompute without effect; gathered weights follow rules of their own."""
        idle = {match.name if match is not None else "" for match in idle_recompute(self.decisions, self.graph)}
        if "" in idle:
            yield Idle("recompute", IdleReason.NOT_RECOMPUTED)
        recomputed_cells = {node.cell_path for node in recomputed_nodes(self.graph, self.index)}
        for match in unique_matches(self.decisions.recomputes):
            if match.name not in idle:
                continue
            nodes = self._nodes(operators_below(self.decisions.layer, match.path))
            # Of equal operators in a cell the compiler keeps one, possibly under the name of another.
            cell = match.name if not match.node.is_primitive else match.name.rpartition(".")[0]
            is_partly_recomputed = any(is_within(path, cell) for path in recomputed_cells)
            if nodes and all(map(is_gathering, nodes)):
                yield Idle(match.name, IdleReason.GATHERED)
            elif not is_partly_recomputed:
                yield Idle(match.name, IdleReason.NOT_RECOMPUTED if match.node.is_called else IdleReason.NOT_CALLED)

    def _nodes(self, operator_keys: Set[OperatorKey]) -> list[Node]:
        return [
            node for node in self.graph.forward if node.layer_index == self.index and node.operator_key in operator_keys
        ]

    def _is_merged(self, node: Node) -> bool:
        """Return whether a saved view has the key of a named one, but not its settings."""
        is_saved_view = node.op in VIEW_OPS and node in self.graph.index.kept_nodes
        return is_saved_view and node.attributes.get("offload") is not True

    def _beyond_specification(self) -> Iterator[SwapPair]:
        """Yield the pairs whose tensor a recomputed operator of forward reads, directly or through views."""
        recomputed = (node for node in self.graph.forward if node.is_recomputed and node.op not in VIEW_OPS)
        inputs = {resolve_storage(self.graph, name).name for node in recomputed for name in node.inputs}
        for pair in self.pairs:
            if resolve_storage(self.graph, pair.producer.name).name in inputs:
                yield pair

    def _entries(self) -> dict[str, set[OperatorKey]]:
        """Return the primitives named by each entry of the policy that acts in this layer."""
        by_entry: dict[str, set[OperatorKey]] = {}
        for entry_match in self.decisions.offloads:
            entry = (
                entry_match.entry.pattern
                if entry_match.entry.setting is Setting.OP_SWAP
                else entry_match.entry.setting.value
            )
            by_entry.setdefault(entry, set()).update(operators_below(self.decisions.layer, entry_match.path))
        return by_entry

    def _holding_readers(self, nodes: list[Node]) -> tuple[str, ...]:
        """Return the operators under whose name backward holds the outputs of `nodes`."""
        names = {node.name for node in nodes}
        return to_names(
            node.operator_key for node in self.graph.index.kept_nodes if not names.isdisjoint(node.inputs[:1])
        )
