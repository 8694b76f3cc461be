"""Communication between tensor parallel ranks that MindSpore inserts for the parallel strategies.

Forward: an AllReduce follows each operator whose output is a partial sum on every rank (a ReduceScatter if its
`out_strategy` shards the sum). A tensor read under another split than it was created with is redistributed. AllGathers
of one tensor are merged (frontend/parallel/pass/merge_comm.cc, before autodiff).

Backward: MindSpore differentiates each communication of forward (ops/_grad_experimental/grad_comm_ops.py): AllReduce
becomes AllReduce, AllGather becomes ReduceScatter, ReduceScatter becomes AllGather, each on the gradient of the same
tensor. The gradients of the common input of wq, wk and wv are therefore not reduced separately: each rank adds its
three contributions, and the reduction is the gradient of the preceding communication of forward.

Not included: reductions of weight gradients over ranks with the same weight, such as those of norms (mirror operators,
step_parallel.cc), which belong to data parallelism, and the vocabulary look-up that newer models shard in their own
code.
"""

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mindswap.graph.model import Node, first_source
from mindswap.graph.ops import SUM_PASSING_OPS, VALUE_PASSING_OPS, OpClass, classify, is_kernel, operator_info
from mindswap.graph.ring_attention import RING, ring_axes
from mindswap.graph.sharding.experts import NUM_RANKS, STRIDE, is_exchange
from mindswap.graph.sharding.rank_sizes import Sharding
from mindswap.graph.sharding.split_table import PartialSum, Redistribution, Unresolved, name_communication
from mindswap.graph.sharding.splits import equal_blocks, num_shards


@dataclass(frozen=True)
class Collective:
    """Communication between ranks within a pass."""

    kind: str  # AllReduce, AllGather, ReduceScatter, AllToAll, or `RING` (one exchange with the neighbours)
    size_bytes: int  # full message: output of AllGather, input of ReduceScatter, else the tensor of one rank
    num_ranks: int  # ranks in the group
    # whether its operator waits for it; otherwise it sends the output of the operator, or is the operator itself
    is_before: bool = False
    stride: int = 1  # difference between consecutive ranks of the group; 1 for tensor parallel ranks


def find_collectives(sharding: Sharding) -> tuple[dict[str, tuple[Collective, ...]], tuple[Unresolved, ...]]:
    """Find the communication of a step that was compiled without swap and recompute.

    Args:
        sharding: from `shard_graph`.

    Returns:
        The collectives by name of their operator; the operators of layers whose communication in backward was not
            found.
    """
    finder = _Finder(sharding)
    finder.find()
    return {name: tuple(entries) for name, entries in finder.collectives.items()}, tuple(finder.unresolved)


class _Finder:
    """Finds the communication of forward and, through its gradient, that of backward."""

    def __init__(self, sharding: Sharding):
        self.sharding = sharding
        self.graph = sharding.graph
        self.nodes = self.graph.index.forward_nodes
        self.gradients: dict[str, list[Node]] = {}  # gradients of each forward operator, in order
        for node in self.graph.backward:
            if node.origin and not node.is_duplicate:
                self.gradients.setdefault(node.origin, []).append(node)
        self.collectives: dict[str, list[Collective]] = {}
        self.unresolved: list[Unresolved] = []
        self.gathered: set[tuple[str, str, int]] = set()

    def find(self) -> None:
        explicit_sums = dict(self._explicit_sums())
        explicit = set(explicit_sums.values())
        for name, source in explicit_sums.items():
            node = self.nodes[name]
            gradients = (g for g in self.gradients.get(name, ()) if g.op == operator_info(node.op).gradient)
            collective = _sum_of(node.op, node.size_bytes, self.sharding.sums[source].num_ranks)
            self._add_pair(node, collective, next(gradients, None))
        for name, partial in self.sharding.sums.items():
            if name not in explicit:
                self._add_sum(self.nodes[name], partial)
        for redistribution in self.sharding.redistributions:
            self._add_redistribution(redistribution)
        for node in (*self.graph.forward, *self.graph.backward):
            if is_exchange(node):
                self._add_exchange(node)
            elif classify(node.op) is OpClass.ATTENTION and not node.is_duplicate:
                self._add_ring(node)

    def _explicit_sums(self) -> Iterator[tuple[str, str]]:
        """Yield each explicit communication of the model, with the operator whose partial sums it reduces."""
        for node in self.graph.forward:
            if node.op not in ("AllReduce", "ReduceScatter"):
                continue
            source = self.nodes.get(node.inputs[0])
            while source is not None and source.name not in self.sharding.sums and source.op in SUM_PASSING_OPS:
                source = self.nodes.get(source.inputs[0])
            if source is not None and source.name in self.sharding.sums:
                yield node.name, source.name

    def _add_sum(self, node: Node, partial: PartialSum) -> None:
        """Add the reduction of a partial sum; its gradient precedes, or is, the first gradient of the operator."""
        kind = "ReduceScatter" if partial.scattered is not None else "AllReduce"
        first = next((gradient for gradient in self.gradients.get(node.name, ()) if is_kernel(gradient.op)), None)
        is_before = first is not None and first.op != operator_info(kind).gradient
        self._add_pair(node, _sum_of(kind, node.size_bytes, partial.num_ranks), first, is_before)

    def _add_exchange(self, node: Node) -> None:
        """Add an exchange of tokens with the experts of other ranks; backward has explicit operators for its own."""
        source = self.graph.index.nodes.get(node.inputs[0], node).size_bytes
        num_ranks, stride = node.attributes[NUM_RANKS], node.attributes[STRIDE]
        if not (isinstance(num_ranks, int) and isinstance(stride, int)):
            raise AssertionError("an exchange without its ranks and their stride")
        if num_ranks > 1:  # the larger side: output of AllGather, input of ReduceScatter
            kind = node.op if operator_info(node.op).gradient else "AllToAll"
            self._add(node.name, Collective(kind, max(source, node.size_bytes), num_ranks, stride=stride))

    def _add_ring(self, node: Node) -> None:
        """Add one exchange of ring attention: keys and values of a rank, or their gradients."""
        num_ranks, stride = ring_axes(self.graph, node)
        if num_ranks > 1:
            attention = self.nodes.get(node.origin, node)
            pair_bytes = sum(self.nodes[name].size_bytes for name in attention.inputs[1:3])
            self._add(node.name, Collective(RING, pair_bytes, num_ranks, stride=stride))

    def _add_redistribution(self, redistribution: Redistribution) -> None:
        kind = name_communication(redistribution.before, redistribution.after)
        if kind == "Slice":  # each rank keeps a slice of its tensor
            return
        is_reshape = self.nodes[redistribution.consumer.name].op == kind
        producer_type, read = (
            self.nodes[redistribution.producer].outputs[redistribution.index],
            self.nodes[redistribution.consumer.name].outputs,
        )
        size_bytes = producer_type.size_bytes * num_shards(redistribution.before) // num_shards(redistribution.after)
        num_ranks = num_shards(redistribution.before) // num_shards(redistribution.after)
        if kind == "AllToAll":
            num_ranks = _num_exchanging(redistribution, producer_type.shape, read[0].shape if read else ())
        key = (first_source(redistribution.producer, {"Reshape"}, self.nodes), kind, num_ranks)
        if key in self.gathered:
            return
        self.gathered.add(key)
        collective = Collective(kind, size_bytes, num_ranks, is_before=not is_reshape)
        self._add_pair(
            redistribution.consumer, collective, self._gradient_reader(redistribution.consumer), is_before=True
        )

    def _gradient_reader(self, consumer: Node) -> Node | None:
        """Return the first operator that reads the gradient of the input of `consumer`."""
        gradient_names = {gradient.name for gradient in self._gradients_of_operand(consumer)}
        names = set(gradient_names)
        for node in self.graph.backward:
            read = names.intersection(node.inputs if node.op == "MakeTuple" else node.inputs[:1])
            if read and node.op in VALUE_PASSING_OPS:
                names.add(node.name)
            elif node.name not in gradient_names and is_kernel(node.op) and not names.isdisjoint(node.inputs):
                return node
        return None

    def _gradients_of_operand(self, consumer: Node) -> list[Node]:
        """Return the gradients of an operator; for a view without any, those of its readers with the same size."""
        gradients = self.gradients.get(consumer.name, [])
        if gradients:
            return gradients
        size_bytes = self.nodes[consumer.name].size_bytes
        readers = self.graph.index.forward_readers.get(consumer.name, ())
        reader_names = dict.fromkeys([reader.name for reader in readers])
        return [
            gradient
            for name in reader_names
            for gradient in self.gradients.get(name, ())
            if gradient.size_bytes == size_bytes
        ]

    def _add(self, name: str, collective: Collective) -> None:
        self.collectives.setdefault(name, []).append(collective)

    def _add_pair(self, node: Node, collective: Collective, gradient: Node | None, is_before: bool = False) -> None:
        """Add communication of forward, and of backward at the operator that computes its gradient or waits for it."""
        self._add(node.name, collective)
        if gradient is not None:
            kind = operator_info(collective.kind).gradient
            self._add(gradient.name, Collective(kind, collective.size_bytes, collective.num_ranks, is_before))
        elif node.layer_index is not None:
            self.unresolved.append(Unresolved(node, "its communication in backward is not found and takes no time"))


def _sum_of(kind: str, result_bytes: int, num_ranks: int) -> Collective:
    """Return the reduction whose output on one rank has so many bytes."""
    return Collective(kind, result_bytes * (num_ranks if kind == "ReduceScatter" else 1), num_ranks)


def _num_exchanging(redistribution: Redistribution, producer_shape: Sequence[int], read: Sequence[int]) -> int:
    """Return the number of ranks in an AllToAll: the product of the splits that are removed from each dimension.

    Args:
        redistribution: with the splits before and after.
        producer_shape: shape of the producer's output on one rank.
        read: shape of the reader's output on one rank.
    """
    if len(redistribution.before) == len(redistribution.after):
        block_splits = [
            (before, after) for before, after in zip(redistribution.before, redistribution.after, strict=True)
        ]
    else:
        block_splits = _block_splits(producer_shape, redistribution.before, read, redistribution.after)
    return math.prod(before // math.gcd(before, after) for before, after in block_splits)


def _block_splits(
    producer_shape: Sequence[int], before: Sequence[int], read: Sequence[int], after: Sequence[int]
) -> list[tuple[int, int]]:
    """Return the splits (before, after) of each group of dimensions that a reshape keeps, joins or separates.

    Example of Ulysses: a sequence of 4096 split over 4 ranks, in shape 4 x 1 x 4 x 128 with the third dimension split
    by 2, is read as an unsharded 4096 and a second dimension of 4096 split by 8. The groups are the sequence (4, 1) and
    the rest (2, 8).
    """
    has_equal_ranks = len(producer_shape) == len(before) and len(read) == len(after)
    full_shapes = [tuple(map(operator.mul, *side)) for side in ((producer_shape, before), (read, after))]
    blocks = equal_blocks(*full_shapes) if has_equal_ranks else None
    if blocks is None:
        return [(math.prod(before), 1)]
    return [(math.prod(before[source_dims]), math.prod(after[target_dims])) for source_dims, target_dims in blocks]
