"""Predict a compiled step under recompute and swap, without compiling again.

A planner asks about thousands of settings; the compiler takes seconds for one. Here the changes that
the compiler makes for a setting are made on the graph of the step without any: recomputed operators run
again in backward, from what they read (`recompute.cc`), and swapped values become pairs of `MoveTo`
(`offload_activation.cc`). Tests hold the result against what the compiler makes of the same setting.
"""

import functools
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from mindswap.graph.analysis.saved_tensors import OperatorNames, merged_readers
from mindswap.graph.layer_paths import has_scope
from mindswap.graph.model import Graph, Node, Saved
from mindswap.graph.ops import BOOKKEEPING_OPS, ORDERING_OPS, REDISTRIBUTION_OPS, WEIGHT_OPS
from mindswap.graph.passes.gather import is_gathering, is_released
from mindswap.graph.storage import StorageKind, resolve_storage
from mindswap.policy.resolve import Decision, LayerDecisions, Path


@dataclass(frozen=True)
class NodeSettings:
    """Settings of forward operators."""

    recomputed: Set[str] = frozenset()  # names of nodes that run again in backward if backward needs them
    # for the nodes whose outputs are swapped, the prefetch distance in operators
    prefetch: Mapping[str, int] = field(default_factory=dict)
    # of these, the ones whose reader is recomputed though the graph does not have it
    swapped_recompute_inputs: Set[str] = frozenset()

    def of(self, node: Node) -> tuple[bool, int | None]:
        return node.name in self.recomputed, self.prefetch.get(node.name)


def settings_of_policy(graph: Graph, names: OperatorNames, layers: Sequence[LayerDecisions]) -> NodeSettings:
    """Decisions for each compiled layer, on the operators of a step without swap and recompute.

    Recompute of a cell covers every operator in its scope but the one whose output leaves it; recompute of a
    primitive covers that operator. Offload covers the primitives that the model holds as attributes. Neither reaches
    what makes a weight whole that the parallel optimizer cut (`graph.passes.gather`).
    """
    roles = classify_nodes(graph, names)
    recomputed = set(roles.released)
    prefetch: dict[str, int] = {}
    swapped_recompute_inputs: set[str] = set()
    decisions: dict[tuple[int, tuple[Path, ...]], Decision] = {}  # layers that are alike share theirs
    for node, owner, paths in roles.model_nodes:
        if owner.layer_index is None:
            raise AssertionError("an operator of the model outside its layers")
        layer = layers[owner.layer_index]
        key = id(layer), paths
        decision = decisions.get(key) or decisions.setdefault(key, layer.decision_for(*paths))
        is_communication_recomputed = node.op in REDISTRIBUTION_OPS and bool(decision.comm_recomputed_by)
        recompute_applies = bool(decision.recomputed_by) and roles.recompute_applies(node, layer, decision)
        merged_paths = merged_readers(node, paths, layer.layer)
        if merged_paths:
            is_reader_recomputed = all(
                layer.decision_for(tuple(path.split("."))).recomputed_by for path in merged_paths
            )
            # What backward asks for is what the second gives; the model itself marks some of the first.
            recompute_applies = is_reader_recomputed and (recompute_applies or node.attributes.get("recompute") is True)
        if is_communication_recomputed or recompute_applies:
            recomputed.add(node.name)
        if node is owner and decision.prefetch is not None and names.can_name(node):
            prefetch[node.name] = decision.prefetch
            if merged_paths and is_reader_recomputed:
                swapped_recompute_inputs.add(node.name)
    for node, users in roles.compiler_nodes:
        if all(reader.name in recomputed for reader in users):
            recomputed.add(node.name)
    return NodeSettings(frozenset(recomputed), prefetch, frozenset(swapped_recompute_inputs))


class NodeRoles:
    """Places of operators in the model, and their readers there.

    Attributes:
        released: what no policy decides: nodes that make a weight whole which is not kept.
        of_model: nodes of layers that policies decide about: each with the operator behind it and the paths of that.
        of_compiler: nodes that go with their readers, last first.
    """

    def __init__(self, graph: Graph, names: OperatorNames):
        self.graph, self.names = graph, names
        gathering = {node.name: node for node in graph.forward if is_gathering(node)}
        others = [(node, graph.owner(node)) for node in graph.forward if node.name not in gathering]
        self.released = tuple(name for name, node in gathering.items() if is_released(node))
        self.model_nodes = tuple(
            (node, owner, tuple(self.paths(node)))
            for node, owner in others
            if owner.layer_index is not None and not self.is_compiler_node(owner)
        )
        compiler_nodes = (
            (node, [reader for reader in self.readers(node.name) if reader.op not in BOOKKEEPING_OPS])
            for node, _ in reversed(others)
            if node.layer_index is not None and node.op != "TupleGetItem" and self.is_compiler_node(node)
        )
        self.compiler_nodes = tuple((node, users) for node, users in compiler_nodes if users)

    def readers(self, name: str) -> Sequence[Node]:
        return self.graph.index.forward_readers.get(name, ())

    def is_compiler_node(self, node: Node) -> bool:
        """The compiler put the operator there, for mixed precision say: it goes with the one that reads it."""
        return not self.names.is_tagged(node) and not has_scope(node)

    def paths(self, node: Node) -> list[Path]:
        """The attribute paths that may name an operator; its cell with the type where no attribute does."""
        return [tuple(path.split(".")) for path in self.names(self.graph.owner(node))]

    def recompute_applies(self, node: Node, layer: LayerDecisions, decision: Decision) -> bool:
        """Recompute is decided for the operator, and it is not the output of a cell for which that is decided.

        MindSpore keeps such an output, also where its primitive is named beside the cell, and does not offload it.
        """
        return all(
            entry_match.match.node.is_primitive
            or (layer.is_output_recomputed and not entry_match.path)
            or (entry_match.match.node.is_called and not self.is_read_outside(node, entry_match.path))
            for entry_match in decision.recomputed_by
        )

    def is_read_outside(self, node: Node, cell: Path) -> bool:
        """A value is read outside a cell; members of a tuple are values of their own."""
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


classify_nodes = functools.lru_cache(maxsize=4)(NodeRoles)  # a planner asks for thousands of policies of one step


def normalize_saved_names(graph: Graph) -> Graph:
    """The step with the names in backward that `rewrite_graph` gives to what stays: then most operators stay, too."""
    first_names = {
        saved.forward_name: saved.backward_name for saved in reversed(graph.saved)
    }  # a value may have several
    names = {backward_name: _saved_name(name) for name, backward_name in first_names.items()}
    return replace(
        graph,
        backward=tuple(node.renamed(names) for node in graph.backward),
        saved=tuple(Saved(s.forward_name, names.get(s.backward_name, s.backward_name)) for s in graph.saved),
    )


def _saved_name(forward_name: str) -> str:
    return f"{forward_name}@saved"


def rewrite_graph(graph: Graph, settings: NodeSettings) -> Graph:
    """The step, compiled without swap and recompute, as the compiler would leave it under these settings.

    Where both are set on an operator, recompute wins. A value that a recomputed operator reads is kept, or swapped if
    its own operator is. Equal operators that a capture kept apart have to be merged before (`merge_equal`).
    """
    return _Rewriter(graph, settings).rewrite()


class _Rewriter:
    """Walks backward once, and puts duplicates and copies before what first reads them."""

    def __init__(self, graph: Graph, settings: NodeSettings):
        self.graph = graph
        self.nodes = graph.index.forward_nodes
        self.prefetch, self.swapped_recompute_inputs = settings.prefetch, settings.swapped_recompute_inputs
        self.recomputed = {
            name
            for name in settings.recomputed
            if name in self.nodes and self.nodes[name].op not in ORDERING_OPS and not self._is_weight(name)
        }
        # Some duplicates the compiler makes unasked (casts of what RmsNorm reads); they run once all the same.
        self.compiler_duplicates = graph.index.duplicates
        self.gradients = {name: node.origin for node in graph.backward if node.origin for name in node.inputs}
        self.backward: list[Node] = []
        self.saved: dict[str, Saved] = {}  # by name in forward
        self.copies_out: dict[str, Node] = {}  # by name of the value
        self.available: dict[tuple[str, bool], str] = {}  # forward value, is copied -> its name in backward

    def rewrite(self) -> Graph:
        forward_names = self.graph.index.forward_names
        for node in self.graph.backward:
            if node.is_duplicate and self.available.get((node.origin, False)) == node.name:
                continue
            if node.is_duplicate and node.origin in self.recomputed:
                self.available[node.origin, False] = node.name
            # Of what only ties values together the gradient of the others counts that read the value.
            fetched = {
                name: self._fetch(forward_names[name], node.origin or self.gradients.get(name, ""))
                for name in node.inputs
                if name in forward_names
            }
            self.backward.append(node.renamed(fetched) if fetched else node)
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
        """The name of a value of forward in backward, for the gradient of an operator; made available if need be."""
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
        """An operator makes a value that has to be made available; weights and states are there."""
        return name in self.nodes and self.nodes[name].op != "UpdateState" and not self._is_weight(name)

    def _missing_input(self, node: Node) -> tuple[str, bool] | None:
        """The first value that an operator reads and that backward does not have yet."""
        required = ((name, self._is_copied(name, "")) for name in node.inputs if self._is_recomputable_input(name))
        return next((value for value in required if value not in self.available), None)

    def _is_swapped(self, name: str, gradient_of: str) -> bool:
        """Offload marks an operator. Members of its tuple are not marked, and only its own gradient reads the tuple."""
        if name in self.prefetch:
            return True
        node = self.nodes.get(name)
        owner = self.graph.owner(node) if node is not None else None
        return owner is not None and owner.name in self.prefetch and owner.name == gradient_of

    def _save_for_backward(self, name: str) -> str:
        """The name in backward of what stays, or of a copy on the host."""
        self.saved[name] = Saved(name, _saved_name(name))
        return self.saved[name].backward_name

    def _is_offloaded_one_way(self, node: Node, needed: Set[str]) -> bool:
        """A value is copied out though it is not among what backward needs; a reshape of a value is the value.

        An operator marked `recompute` (the model itself marks reshapes) is a function that backward calls with all it
        reads, so each of these gets a pair of `MoveTo`. Only then is the function inlined, and what nobody needs of it
        goes with the copy in; the copy out stays, for a `Depend` ties it to the reader in forward
        (offload_activation.cc, GetActivationOffloadInfo and AddDependForMoveOut; seen with 2.9.0).
        """
        if node.name not in self.prefetch or self._is_marked(node):
            return False
        readers = self.graph.index.forward_readers.get(node.name, ())
        is_reader_recomputed = any(self._is_marked(reader) and reader.name not in needed for reader in readers)
        return is_reader_recomputed or node.name in self.swapped_recompute_inputs

    def _is_marked(self, node: Node) -> bool:
        return node.name in self.recomputed or node.attributes.get("recompute") is True

    def _copy_out(self, node: Node) -> Node:
        """The value on the host."""
        attributes = {"backward_prefetch": self.prefetch[self.graph.owner(node).name]}
        copy = replace(
            node, name=f"{node.name}@out", op="MoveTo", inputs=(node.name,), attributes=attributes, is_recomputed=False,
            paths=(),
        )  # fmt: skip
        self.copies_out[node.name] = copy
        return copy

    def _prefetch(self, node: Node) -> str:
        """A pair of `MoveTo` around the value."""
        copy = self._copy_out(node)
        back = replace(copy, name=f"{node.name}@in", inputs=(self._save_for_backward(copy.name),))
        self.backward.append(back)
        return back.name

    def _recompute(self, node: Node) -> str:
        """A copy of a forward operator, behind copies of what it reads."""
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
