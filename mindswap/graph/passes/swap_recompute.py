"""Prediction of the compiled graph under recompute and swap, without compiling.

A planner evaluates thousands of settings, and compiling one takes seconds. This pass applies the changes of the
compiler to the graph without settings: recomputed operators get copies in backward (`recompute.cc`), swapped values get
pairs of `MoveTo` (`offload_activation.cc`). Tests compare the result with the compiled graph.
"""

import functools
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from mindswap.graph.analysis.saved_tensors import OperatorNames, merged_readers
from mindswap.graph.layer_paths import has_scope
from mindswap.graph.model import Graph, Node, Saved
from mindswap.graph.ops import BOOKKEEPING_OPS, ORDERING_OPS, WEIGHT_OPS
from mindswap.graph.passes.communication_recompute import deciding_operators
from mindswap.graph.passes.gather import is_gathering, is_released
from mindswap.graph.storage import StorageKind, resolve_storage
from mindswap.policy.resolve import Decision, LayerDecisions, Path

# Layers that return a tuple (the newer models of MindFormers), and their cell that runs last.
TUPLE_LAYERS, LAST_CELL = ("TransformerLayer",), ("mlp",)


@dataclass(frozen=True)
class NodeSettings:
    """Settings of forward operators."""

    recomputed: Set[str] = frozenset()  # names of nodes that are recomputed if backward needs them
    # prefetch distance in operators of the nodes whose outputs are swapped, by name
    prefetch: Mapping[str, int] = field(default_factory=dict)
    # names of swapped nodes that a recomputed operator reads which the compiler merged away
    swapped_recompute_inputs: Set[str] = frozenset()
    named: Set[str] = frozenset()  # recomputed nodes that the policy names themselves, and no cell around them

    def without_named(self, nodes: Set[str]) -> "NodeSettings":
        """Return the settings in which these nodes are recomputed with a cell only."""
        return replace(self, recomputed=self.recomputed - (self.named & nodes))

    def of(self, node: Node) -> tuple[bool, int | None]:
        """Return whether an operator is recomputed, and its prefetch distance; None if it is not swapped."""
        return node.name in self.recomputed, self.prefetch.get(node.name)


def settings_of_policy(graph: Graph, names: OperatorNames, layers: Sequence[LayerDecisions]) -> NodeSettings:
    """Translate the decisions for each compiled layer into settings of operators.

    Recompute of a cell applies to all operators in its scope except those whose output leaves it; recompute of a
    primitive applies to that operator. Swap applies to primitives that are attributes of a cell. Neither applies to the
    operators that gather a sharded weight (`graph.passes.gather`).

    Args:
        graph: a step without swap and recompute.
        names: operator paths of its nodes.
        layers: decisions for each compiled layer.
    """
    roles = classify_nodes(graph, names)
    recomputed = set(roles.released)
    prefetch: dict[str, int] = {}
    swapped_recompute_inputs: set[str] = set()
    named: set[str] = set()
    decisions: dict[tuple[int, tuple[Path, ...]], Decision] = {}  # equal layers share their decisions
    for node, owner, paths in roles.model_nodes:
        if owner.layer_index is None:
            raise AssertionError("an operator of the model outside its layers")
        layer = layers[owner.layer_index]
        key = id(layer), paths
        decision = decisions.get(key) or decisions.setdefault(key, layer.decision_for(*paths))
        comm_paths = roles.communication_paths.get(node.name, ())
        is_communication_recomputed = any(layer.decision_for(path).comm_recomputed_by for path in comm_paths)
        recompute_applies = bool(decision.recomputed_by) and roles.recompute_applies(node, layer, decision)
        merged_paths = merged_readers(node, paths, layer.layer)
        if merged_paths:
            is_reader_recomputed = all(
                layer.decision_for(tuple(path.split("."))).recomputed_by for path in merged_paths
            )
            # Backward reads the output of the last merged operator; the model itself marks some of the first ones.
            recompute_applies = is_reader_recomputed and (recompute_applies or node.attributes.get("recompute") is True)
        if is_communication_recomputed or recompute_applies:
            recomputed.add(node.name)
        if recompute_applies and all(entry.match.node.is_primitive for entry in decision.recomputed_by):
            named.add(node.name)
        is_held = owner.name in roles.layer_outputs and has_held_output(layer)
        if node is owner and decision.prefetch is not None and names.can_name(node) and not is_held:
            prefetch[node.name] = decision.prefetch
            if merged_paths and is_reader_recomputed:
                swapped_recompute_inputs.add(node.name)
    for node, users in roles.compiler_nodes:
        if all(reader.name in recomputed for reader in users):
            recomputed.add(node.name)
    return NodeSettings(frozenset(recomputed), prefetch, frozenset(swapped_recompute_inputs), frozenset(named))


class NodeRoles:
    """Nodes of a graph by what determines their recompute.

    Attributes:
        released: names of nodes that gather a weight which is not kept; independent of the policy.
        model_nodes: nodes of layers that the policy decides about, each with its operator of the model and its paths.
        communication_paths: redistributions of `model_nodes`: paths of the operators whose attribute decides whether
            backward repeats them.
        compiler_nodes: nodes inserted by the compiler, which follow their readers, last first.
        layer_outputs: names of nodes that another layer, or an operator after the layers, reads.
    """

    def __init__(self, graph: Graph, names: OperatorNames):
        self.graph, self.names = graph, names
        gathering = {node.name: node for node in graph.forward if is_gathering(node)}
        owned = [(node, graph.owner(node)) for node in graph.forward if node.name not in gathering]
        self.released = tuple(name for name, node in gathering.items() if is_released(node))
        self.model_nodes = tuple(
            (node, owner, tuple(self.paths(node)))
            for node, owner in owned
            if owner.layer_index is not None and not self.is_compiler_node(owner)
        )
        self.layer_outputs = frozenset(
            node.name for node, owner, _ in self.model_nodes if node is owner and self.is_read_outside(node, ())
        )
        self.communication_paths = {
            node.name: paths
            for node, _, _ in self.model_nodes
            if (paths := tuple(path for decider in deciding_operators(graph, node) for path in self.paths(decider)))
        }
        compiler_nodes = (
            (node, self.computing_readers(node.name))
            for node, _ in reversed(owned)
            if node.layer_index is not None and node.op != "TupleGetItem" and self.is_compiler_node(node)
        )
        self.compiler_nodes = tuple((node, users) for node, users in compiler_nodes if users)

    def readers(self, name: str) -> Sequence[Node]:
        """Return the readers of a value."""
        return self.graph.index.forward_readers.get(name, ())

    def computing_readers(self, name: str) -> Sequence[Node]:
        """Return the readers of a value that compute with it."""
        return [reader for reader in self.readers(name) if reader.op not in BOOKKEEPING_OPS]

    def is_compiler_node(self, node: Node) -> bool:
        """Return whether the compiler inserted the operator, for example for mixed precision; it follows its reader."""
        return not self.names.is_tagged(node) and not has_scope(node)

    def paths(self, node: Node) -> list[Path]:
        """Return the attribute paths that may name an operator; cell and type if no attribute does."""
        return [tuple(path.split(".")) for path in self.names(self.graph.owner(node))]

    def recompute_applies(self, node: Node, layer: LayerDecisions, decision: Decision) -> bool:
        """Return whether requested recompute applies, which excludes the output of a recomputed cell.

        MindSpore saves such an output, even if its primitive is also named, and does not offload it.
        """
        return all(
            entry_match.match.node.is_primitive
            or (layer.is_output_recomputed and not entry_match.path)
            or (entry_match.match.node.is_called and not self.is_read_outside(node, entry_match.path))
            for entry_match in decision.recomputed_by
        )

    def is_read_outside(self, node: Node, cell: Path) -> bool:
        """Return whether a value is read outside a cell; members of a tuple are separate values."""
        layer_index = self.graph.owner(node).layer_index
        pending = [node.name]
        while pending:
            for reader in self.readers(pending.pop()):
                if reader.op in BOOKKEEPING_OPS or reader.op == "TupleGetItem":
                    continue
                if self.is_compiler_node(reader):
                    pending.append(reader.name)
                elif reader.layer_index != layer_index or all(path[: len(cell)] != cell for path in self.paths(reader)):
                    return True
        return False


def has_held_output(layer: LayerDecisions) -> bool:
    """Return whether the output of a layer stays on the device although its operator is named for swap.

    Layers of the newer models return a tuple. If their feed-forward network, which runs last, is recomputed as a cell,
    the compiler ties the tuple to the state of that cell: later layers read a `Depend` of the output, which has no
    attribute of swap. Compiled and dry run with MindSpore 2.9.0 (tests/adapters/test_rewrites.py).
    """
    return layer.layer.type_name in TUPLE_LAYERS and any(
        entry_match.path == LAST_CELL and not entry_match.match.node.is_primitive for entry_match in layer.recomputes
    )


classify_nodes = functools.lru_cache(maxsize=4)(NodeRoles)  # evaluated for thousands of policies of one step


def normalize_saved_names(graph: Graph) -> Graph:
    """Rename saved values as `rewrite_graph` does, so that most nodes of a rewritten graph stay identical."""
    first_names = {
        saved.forward_name: saved.backward_name for saved in reversed(graph.saved)
    }  # a value may have several
    names = {backward_name: _saved_name(name) for name, backward_name in first_names.items()}
    return replace(
        graph,
        backward=tuple(node.with_renamed_inputs(names) for node in graph.backward),
        saved=tuple(Saved(s.forward_name, names.get(s.backward_name, s.backward_name)) for s in graph.saved),
    )


def _saved_name(forward_name: str) -> str:
    return f"{forward_name}@saved"


def rewrite_graph(graph: Graph, settings: NodeSettings) -> Graph:
    """Return the graph as the compiler would produce it under these settings.

    Recompute has priority over swap of the same operator. A value that a recomputed operator reads is saved, or swapped
    if its own operator is. Equal operators that the capture kept separate must be merged first (`merge_equal`).

    Args:
        graph: a step compiled without swap and recompute.
        settings: of its forward operators.
    """
    return _Rewriter(graph, settings).rewrite()


class _Rewriter:
    """Visits backward once, and inserts recomputed operators and copies before their first reader."""

    def __init__(self, graph: Graph, settings: NodeSettings):
        self.graph = graph
        self.nodes = graph.index.forward_nodes
        self.prefetch, self.swapped_recompute_inputs = settings.prefetch, settings.swapped_recompute_inputs
        self.recomputed = {
            name
            for name in settings.recomputed
            if name in self.nodes and self.nodes[name].op not in ORDERING_OPS and not self._is_weight(name)
        }
        # The compiler duplicates some operators without request (casts of the input of RmsNorm); they still run once.
        self.compiler_duplicates = graph.index.duplicates
        self.gradients = {name: node.origin for node in graph.backward if node.origin for name in node.inputs}
        self.backward: list[Node] = []
        self.saved: dict[str, Saved] = {}  # by name in forward
        self.copies_out: dict[str, Node] = {}  # by name of the value
        # (forward value, whether it is copied from the host) -> its name in backward
        self.available: dict[tuple[str, bool], str] = {}

    def rewrite(self) -> Graph:
        forward_names = self.graph.index.forward_names
        for node in self.graph.backward:
            if node.is_duplicate and self.available.get((node.origin, False)) == node.name:
                continue
            if node.is_duplicate and node.origin in self.recomputed:
                self.available[node.origin, False] = node.name
            # For an operator that only combines values, the gradient among the readers of its output counts.
            fetched = {
                name: self._fetch(forward_names[name], node.origin or self.gradients.get(name, ""))
                for name in node.inputs
                if name in forward_names
            }
            self.backward.append(node.with_renamed_inputs(fetched) if fetched else node)
        forward: list[Node] = []
        needed = {name for name, _ in self.available}
        for node in self.graph.forward:
            is_recomputed_now = (
                node.name in self.recomputed
            )  # most nodes stay as they are, and a planner rewrites often
            forward.append(
                node if node.is_recomputed == is_recomputed_now else replace(node, is_recomputed=is_recomputed_now)
            )
            if node.name not in self.copies_out and self._is_offloaded_one_way(node, needed):
                self._copy_out(node)
            if node.name in self.copies_out:
                forward.append(self.copies_out[node.name])
        saved = tuple(self.saved.values())
        return replace(self.graph, forward=tuple(forward), backward=tuple(self.backward), saved=saved)

    def _fetch(self, name: str, gradient_of: str) -> str:
        """Return the name in backward of a forward value for the gradient of an operator, creating it if necessary."""
        requested = (name, self._is_copied(name, gradient_of))
        pending = [requested]  # a chain of recomputed operators may be as long as the model
        while pending:
            name, is_copied = pending[-1]
            if pending[-1] in self.available:
                pending.pop()
            elif is_copied:
                self.available[name, True] = self._prefetch(self.nodes[name])
            elif name not in self.recomputed:
                self.available[name, False] = self._save_for_backward(name)
            elif missing := self._missing_input(self.nodes[name]):
                pending.append(missing)
            else:
                self.available[name, False] = self._recompute(self.nodes[name])
        return self.available[requested]

    def _is_copied(self, name: str, gradient_of: str) -> bool:
        return name not in self.recomputed and self._is_swapped(name, gradient_of)

    def _is_recomputable_input(self, name: str) -> bool:
        """Return whether an operator computes the value, so that it must be made available; weights and states are."""
        return name in self.nodes and self.nodes[name].op != "UpdateState" and not self._is_weight(name)

    def _missing_input(self, node: Node) -> tuple[str, bool] | None:
        """Return the first input of an operator that is not yet available in backward."""
        required = ((name, self._is_copied(name, "")) for name in node.inputs if self._is_recomputable_input(name))
        return next((value for value in required if value not in self.available), None)

    def _is_swapped(self, name: str, gradient_of: str) -> bool:
        """Return whether a value is swapped for the gradient of an operator.

        Swap marks an operator. If it returns a tuple, the members are not marked, and only its own gradient reads the
        tuple.
        """
        if name in self.prefetch:
            return True
        node = self.nodes.get(name)
        owner = self.graph.owner(node) if node is not None else None
        return owner is not None and owner.name in self.prefetch and owner.name == gradient_of

    def _save_for_backward(self, name: str) -> str:
        """Save a value, or a copy on the host, and return its name in backward."""
        self.saved[name] = Saved(name, _saved_name(name))
        return self.saved[name].backward_name

    def _is_offloaded_one_way(self, node: Node, needed: Set[str]) -> bool:
        """Return whether a value is copied to the host although backward does not need it.

        A reshape counts as its input. An operator marked `recompute` (the model itself marks reshapes) is a function
        that backward calls with all its inputs, so each input gets a pair of `MoveTo`. The function is inlined
        afterwards, and unused inputs are removed together with their copy back. The copy to the host remains, because a
        `Depend` ties it to the reader in forward (offload_activation.cc, GetActivationOffloadInfo and
        AddDependForMoveOut; seen with MindSpore 2.9.0).
        """
        if node.name not in self.prefetch or self._is_marked(node):
            return False
        readers = self.graph.index.forward_readers.get(node.name, ())
        is_reader_recomputed = any(self._is_marked(reader) and reader.name not in needed for reader in readers)
        return is_reader_recomputed or node.name in self.swapped_recompute_inputs

    def _is_marked(self, node: Node) -> bool:
        return node.name in self.recomputed or node.attributes.get("recompute") is True

    def _copy_out(self, node: Node) -> Node:
        """Return the copy of a value to the host."""
        attributes = {"backward_prefetch": self.prefetch[self.graph.owner(node).name]}
        copy = replace(
            node, name=f"{node.name}@out", op="MoveTo", inputs=(node.name,), attributes=attributes, is_recomputed=False,
            paths=(),
        )  # fmt: skip
        self.copies_out[node.name] = copy
        return copy

    def _prefetch(self, node: Node) -> str:
        """Add the copies of a value to the host and back, and return its name in backward."""
        copy = self._copy_out(node)
        back = replace(copy, name=f"{node.name}@in", inputs=(self._save_for_backward(copy.name),))
        self.backward.append(back)
        return back.name

    def _recompute(self, node: Node) -> str:
        """Add a recomputed copy of a forward operator, and return its name."""
        inputs = [
            self.available[name, self._is_copied(name, "")] if self._is_recomputable_input(name) else name
            for name in node.inputs
        ]
        compiler_copy = self.compiler_duplicates.get(node.name)
        name = compiler_copy.name if compiler_copy is not None else f"{node.name}@again"
        copy = replace(node, name=name, inputs=tuple(inputs), is_recomputed=True, is_duplicate=True, origin=node.name)
        self.backward.append(copy)
        return copy.name

    def _is_weight(self, name: str) -> bool:
        node = self.nodes[name]
        return node.op in WEIGHT_OPS and resolve_storage(self.graph, name).kind is StorageKind.WEIGHT
