"""Communication between the tensor parallel ranks of a step: what MindSpore inserts for the strategies. Pure.

In forward an AllReduce follows each operator that leaves a part of a sum on every rank (a ReduceScatter where its
`out_strategy` cuts the sum), and a tensor that is read under another cut than it was made is gathered or exchanged.
AllGathers of one tensor become one (frontend/parallel/pass/merge_comm.cc, before autodiff).

In backward there is one for each of forward, on the gradient of the same tensor: MindSpore differentiates the
forward communication (ops/_grad_experimental/grad_comm_ops.py). Of AllReduce it is AllReduce, of AllGather
ReduceScatter, of ReduceScatter AllGather. So the gradients of what wq, wk and wv read are no sums of their own: each
rank adds its three parts, and the sum over the ranks is where the next communication of forward was.

Left out: sums of weight gradients over the ranks that have the same weight, also those of norms (mirror operators,
step_parallel.cc); they go with the gradients of data parallelism. So does the look-up in a vocabulary that newer
models cut by code of their own.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mindswap.graph.model import Graph, Node
from mindswap.graph.ranks.experts import EXCHANGE, RANK_NAMES
from mindswap.graph.ranks.sharding import PartialSum, Redistribution, Sharding, Unresolved, name_communication
from mindswap.graph.ranks.splits import num_parts
from mindswap.graph.storage import VIEW_OPS
from mindswap.graph.work import NO_WORK_OPS

__all__ = ["Collective", "Collectives", "find_collectives"]

GRADIENTS = {
    "AllReduce": "AllReduce",
    "AllGather": "ReduceScatter",
    "ReduceScatter": "AllGather",
    "AllToAll": "AllToAll",
}
# Between a sum and the communication that a model itself has for it.
BETWEEN_OPS = frozenset({*VIEW_OPS, "Cast", "Add", "AddExt", "BiasAdd"})


@dataclass(frozen=True)
class Collective:
    """Communication between ranks within a pass.

    Attributes:
        kind: AllReduce, AllGather, ReduceScatter or AllToAll.
        size_bytes: the whole message: what AllGather gives, ReduceScatter takes, the others have on each rank.
        num_ranks: ranks that take part.
        is_before: the operator that it belongs to waits for it; else it takes what the operator makes, or is it.
        stride: from one of these ranks to the next; 1 for tensor parallel ranks.
    """

    kind: str
    size_bytes: int
    num_ranks: int
    is_before: bool = False
    stride: int = 1


@dataclass(frozen=True)
class Collectives:
    """All tensor parallel communication of a step.

    Attributes:
        by_node: by name of the operator that it belongs to.
        unresolved: operators of layers that communicate in forward and whose gradient was not found.
    """

    by_node: Mapping[str, tuple[Collective, ...]]
    unresolved: tuple[Unresolved, ...]


def find_collectives(sharding: Sharding) -> Collectives:
    """The communication of a step that was compiled without swap and recompute.

    Args:
        sharding: of `shard_graph`.
    """
    finder = _Finder(sharding)
    finder.find()
    by_node = {name: tuple(entries) for name, entries in finder.found.items()}
    return Collectives(by_node, tuple(finder.unresolved))


class _Finder:
    """Goes through forward; puts each communication and its gradient where they are."""

    def __init__(self, sharding: Sharding):
        self.sharding = sharding
        self.graph: Graph = sharding.graph
        self.nodes = self.graph.forward_nodes
        self.gradients: dict[str, list[Node]] = {}  # forward operator -> its gradient, in order
        for node in self.graph.backward:
            if node.origin and not node.is_duplicate:
                self.gradients.setdefault(node.origin, []).append(node)
        self.backward = {node.name: node for node in self.graph.backward}
        self.found: dict[str, list[Collective]] = {}
        self.unresolved: list[Unresolved] = []
        self.gathered: set[tuple[str, str, int]] = set()

    def find(self) -> None:
        own = dict(self._own_communication())
        explicit = set(own.values())
        for name, source in own.items():
            self._add_own(self.nodes[name], self.sharding.sums[source].num_ranks)
        for name, partial in self.sharding.sums.items():
            if name not in explicit:
                self._add_sum(self.nodes[name], partial)
        for moved in self.sharding.redistributions:
            self._add_redistribution(moved)
        for node in (*self.graph.forward, *self.graph.backward):
            if node.op == RANK_NAMES[EXCHANGE]:
                self._add_exchange(node)

    def _own_communication(self) -> Iterator[tuple[str, str]]:
        """Communication that the model itself has, with the operator whose parts of a sum it adds."""
        for node in self.graph.forward:
            if node.op not in ("AllReduce", "ReduceScatter"):
                continue
            source = self.nodes.get(node.inputs[0])
            while source is not None and source.name not in self.sharding.sums and source.op in BETWEEN_OPS:
                source = self.nodes.get(source.inputs[0])
            if source is not None and source.name in self.sharding.sums:
                yield node.name, source.name

    def _add_own(self, node: Node, num_ranks: int) -> None:
        collective = _sum_of(node.op, node.size_bytes, num_ranks)
        self._add(node.name, collective)
        for gradient in self.gradients.get(node.name, ()):
            if gradient.op == GRADIENTS[node.op]:
                self._add(gradient.name, _gradient_of(collective))
                return
        self._note_missing(node)

    def _add_sum(self, node: Node, partial: PartialSum) -> None:
        """After the operator; its gradient begins with that of the sum, which may be an operator (`graph.arrivals`)."""
        kind = "ReduceScatter" if partial.is_scattered else "AllReduce"
        collective = _sum_of(kind, node.size_bytes, partial.num_ranks)
        self._add(node.name, collective)
        first = next((gradient for gradient in self.gradients.get(node.name, ()) if _is_kernel(gradient)), None)
        if first is None:
            self._note_missing(node)
        else:
            self._add(first.name, _gradient_of(collective, is_before=first.op != GRADIENTS[kind]))

    def _add_exchange(self, node: Node) -> None:
        """Tokens to the experts of other ranks and back: backward has operators of its own for it."""
        source = (self.graph.forward_nodes.get(node.inputs[0]) or self.backward.get(node.inputs[0], node)).size_bytes
        num_ranks = node.attributes.get("num_ranks")
        assert isinstance(num_ranks, int)
        self._add(node.name, Collective("AllToAll", max(source, node.size_bytes), num_ranks))

    def _add_redistribution(self, moved: Redistribution) -> None:
        kind = name_communication(moved.before, moved.after)
        if kind == "Slice":  # a rank takes its part of what it has
            return
        is_reshape = self.nodes[moved.consumer.name].op == kind
        part_bytes = self.nodes[moved.producer].outputs[moved.index].size_bytes
        size_bytes = part_bytes * num_parts(moved.before) // num_parts(moved.after)
        num_ranks = num_parts(moved.before) // num_parts(moved.after)
        if kind == "AllToAll":
            num_ranks = _num_exchanging(moved)
        key = (self._maker(moved.producer), kind, num_ranks)
        if key in self.gathered:
            return
        self.gathered.add(key)
        collective = Collective(kind, size_bytes, num_ranks, is_before=not is_reshape)
        self._add(moved.consumer.name, collective)
        reader = self._gradient_reader(moved.consumer)
        if reader is None:
            self._note_missing(moved.consumer)
        else:
            self._add(reader.name, _gradient_of(collective, is_before=True))

    def _maker(self, name: str) -> str:
        while name in self.nodes and self.nodes[name].op == "Reshape":
            name = self.nodes[name].inputs[0]
        return name

    def _gradient_reader(self, consumer: Node) -> Node | None:
        """The first operator that reads the gradient of what `consumer` reads."""
        own = {gradient.name for gradient in self._gradients_of_operand(consumer)}
        names = set(own)
        for node in self.graph.backward if names else ():
            is_same = node.op in (*VIEW_OPS, "TupleGetItem") and node.inputs[0] in names
            is_tuple = node.op == "MakeTuple" and any(name in names for name in node.inputs)
            if is_same or is_tuple:
                names.add(node.name)
            elif node.name not in own and _is_kernel(node) and any(name in names for name in node.inputs):
                return node
        return None

    def _gradients_of_operand(self, consumer: Node) -> list[Node]:
        """Its gradients; of a view without any (`graph.arrivals`) those that its readers give for it, by their size."""
        gradients = self.gradients.get(consumer.name, [])
        if gradients:
            return gradients
        size_bytes = self.nodes[consumer.name].size_bytes
        readers = [node for node in self.graph.forward if consumer.name in node.inputs]
        return [
            gradient
            for reader in readers
            for gradient in self.gradients.get(reader.name, ())
            if gradient.size_bytes == size_bytes
        ]

    def _add(self, name: str, collective: Collective) -> None:
        self.found.setdefault(name, []).append(collective)

    def _note_missing(self, node: Node) -> None:
        if node.layer_index is not None:
            self.unresolved.append(Unresolved(node, "its communication in backward is not found and takes no time"))


def _sum_of(kind: str, result_bytes: int, num_ranks: int) -> Collective:
    """A sum whose result on one rank has so many bytes."""
    return Collective(kind, result_bytes * (num_ranks if kind == "ReduceScatter" else 1), num_ranks)


def _gradient_of(collective: Collective, is_before: bool = False) -> Collective:
    return Collective(GRADIENTS[collective.kind], collective.size_bytes, collective.num_ranks, is_before)


def _num_exchanging(moved: Redistribution) -> int:
    """Ranks that exchange parts: those over which a dimension was cut that no longer is."""
    if len(moved.before) != len(moved.after):
        return num_parts(moved.before)
    return math.prod(before // math.gcd(before, after) for before, after in zip(moved.before, moved.after, strict=True))


def _is_kernel(node: Node) -> bool:
    return node.op not in NO_WORK_OPS
