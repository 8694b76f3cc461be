"""From logical sizes to sizes per rank, by the strategies that the model records on its operators. Pure.

The compiled graph has logical shapes; `in_strategy`, `out_strategy` or `in_layout` of a primitive say
into how many parts each dimension of its operands is cut. Splits are followed forward through operators
without a strategy of their own, as MindSpore's step_parallel.cc does, and backward along gradients. What
cannot be followed counts as whole on every rank and is listed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from mindswap.graph.model import Graph, Node, TensorType
from mindswap.graph.ops import (
    KEEPING_OPS,
    PRODUCT_OPS,
    RESHAPING_OPS,
    SPLIT_PASSING_OPS,
    TUPLE_OPS,
    TYING_OPS,
    Cut,
    cut_of,
)
from mindswap.graph.ranks.arrivals import GatheredGradient, with_arrivals, with_gathered_gradients
from mindswap.graph.ranks.experts import FROM_LOCAL, RANK_NAMES, TO_LOCAL, LocalNames
from mindswap.graph.ranks.splits import Call, Split, num_parts, output_splits, reshape_split, summed_parts
from mindswap.graph.ranks.strategies import LOCAL_MARK, read_out_strategy, read_strategy

__all__ = [
    "PartialSum",
    "Redistribution",
    "Sharding",
    "Unresolved",
    "name_communication",
    "shard_graph",
]


@dataclass(frozen=True)
class Unresolved:
    """An operator whose sizes per rank are not certain."""

    node: Node
    reason: str


@dataclass(frozen=True)
class Redistribution:
    """A tensor that is cut in one way where it is made and in another where it is read: communication.

    Attributes:
        producer: name of the value.
        consumer: operator that reads it; a `Reshape` communicates itself.
        before, after: parts per dimension; of the producer's shape and, for a `Reshape`, of its own.
        index: which output of the producer.
    """

    producer: str
    consumer: Node
    before: Split
    after: Split
    index: int = 0


@dataclass(frozen=True)
class PartialSum:
    """What an operator makes is a part of a sum on each rank.

    Attributes:
        num_ranks: ranks that have the parts.
        is_scattered: `out_strategy` has each rank keep a part of the result.
    """

    num_ranks: int
    is_scattered: bool = False


@dataclass(frozen=True)
class Sharding:
    """A graph with the sizes of one rank.

    Attributes:
        graph: every node of forward and backward has the output types of one rank; parameters of the
            functions and constants (`types`) stay logical.
        unresolved: operators whose split is not known; they count as whole on every rank unless the reason
            says otherwise.
        redistributions: where tensors change their cut in forward. A `Reshape` that does so is memory of
            its own: in `graph` its operator is `AllGather`, `AllToAll` or `Slice`, unless the model has this
            communication run again in backward (`recompute_comm_op`).
        sums: operators of forward that leave each rank a part of a sum, by name.
    """

    graph: Graph
    unresolved: tuple[Unresolved, ...]
    redistributions: tuple[Redistribution, ...]
    sums: Mapping[str, PartialSum] = field(default_factory=dict)


def shard_graph(graph: Graph) -> Sharding:
    """Sizes per rank of every tensor.

    Args:
        graph: a compiled step with logical shapes. Without any strategy that cuts, it comes back unchanged.
    """
    if not any(_is_cut(node) for node in graph.forward):
        return Sharding(graph, (), ())
    tracer = _Tracer(graph)
    sharded = tracer.trace()
    arrivals = [(moved.producer, moved.consumer) for moved in tracer.kept_copies() if moved.consumer.op in PRODUCT_OPS]
    if arrivals:
        tracer = _Tracer(with_arrivals(graph, arrivals))
        sharded = tracer.trace()
    tracer.note_kept_copies()
    sharded = with_gathered_gradients(sharded, dict(tracer.gathered_gradients()))
    return Sharding(sharded, tuple(tracer.unresolved), tuple(tracer.redistributions), tracer.sums)


@dataclass(frozen=True)
class _Operand:
    """A tensor that an operator reads: where it comes from, its logical type, its cut (None: not known)."""

    name: str
    index: int
    type: TensorType
    split: Split | None


class _Tracer:
    """Follows splits through forward, then through backward."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.types: dict[str, tuple[TensorType, ...]] = {name: (known,) for name, known in graph.types.items()}
        self.splits: dict[str, tuple[Split | None, ...]] = {}
        self.unresolved: list[Unresolved] = []
        self.redistributions: list[Redistribution] = []
        self.sums: dict[str, PartialSum] = {}
        self.scattered: dict[str, Split] = {}  # operators whose sum is scattered: its cut before
        self.users, self.nodes = graph.index.readers, graph.index.nodes
        # Backward reads what forward saved under the name of a parameter of its own.
        self.forward_names = {saved.backward_name: saved.forward_name for saved in graph.saved}
        for node in (*graph.forward, *graph.backward):
            self.types[node.name] = node.outputs
        self.communications: dict[str, str] = {}  # of a Reshape that redistributes: what it is
        self.local = LocalNames()

    def trace(self) -> Graph:
        for node in self.graph.forward:
            self.splits[node.name] = self._checked(node, self._forward_splits(node))
        for backward_name, forward_name in self.forward_names.items():
            if forward_name in self.splits:
                self.splits[backward_name] = self.splits[forward_name]
                self.types[backward_name] = self.types[forward_name]
        for node in self.graph.backward:
            self.splits[node.name] = self._checked(node, self._backward_splits(node))
        return replace(
            self.graph,
            forward=tuple(self._per_rank(node) for node in self.graph.forward),
            backward=tuple(self._per_rank(node) for node in self.graph.backward),
        )

    def _per_rank(self, node: Node) -> Node:
        outputs = tuple(_cut(known, split) for known, split in zip(node.outputs, self.splits[node.name], strict=True))
        op = self.communications.get(node.name, RANK_NAMES.get(node.op, node.op))
        return node if (op, outputs) == (node.op, node.outputs) else replace(node, op=op, outputs=outputs)

    def _checked(self, node: Node, splits: "list[Split | None] | None") -> tuple[Split | None, ...]:
        """The splits if they fit the outputs, else none, with a note."""
        if node.op in TYING_OPS:
            return (None,) * len(node.outputs)
        if splits is None or len(splits) != len(node.outputs):
            if any(_num_elements(known) > 1 for known in node.outputs) and node.op != "MakeTuple":
                self.unresolved.append(Unresolved(node, f"no rule for {node.op} with these operands"))
            return (None,) * len(node.outputs)
        checked: list[Split | None] = []
        for known, split in zip(node.outputs, splits, strict=True):
            fits = split is None or (
                len(split) == len(known.shape) and all(n % p == 0 for n, p in zip(known.shape, split, strict=True))
            )
            if not fits:
                self.unresolved.append(Unresolved(node, f"{known.shape} cannot be cut into {split}"))
            checked.append(split if fits else None)
        return tuple(checked)

    # -- operands ---------------------------------------------------------------------------------

    def _operands(self, node: Node) -> list[_Operand]:
        """The tensors among the inputs, members of tuples one by one."""
        found = []
        for name in node.inputs:
            types = self.types.get(name, ())
            splits = self.splits.get(name, (None,) * len(types))
            for index, (known, split) in enumerate(zip(types, splits, strict=False)):
                found.append(_Operand(name, index, known, split))
        return found

    def _call(self, node: Node, operands: list[_Operand], splits: list[Split]) -> Call:
        graph = self.graph
        return Call(
            op=node.op,
            shapes=[operand.type.shape for operand in operands],
            splits=splits,
            outputs=[known.shape for known in node.outputs],
            integers=[graph.constants[name] for name in node.inputs if name in graph.constants],
            tuples=[graph.tuples[name] for name in node.inputs if name in graph.tuples],
            attributes=node.attributes,
        )

    def _tuple_splits(self, node: Node) -> "list[Split | None] | None":
        """Splits of the operators that only tie and untie tuples; None for all others."""
        if node.op == "MakeTuple":
            splits = [operand.split for operand in self._operands(node)]
            return splits if len(splits) == len(node.outputs) else [None] * len(node.outputs)
        if node.op == "TupleGetItem":
            members = self.splits.get(node.inputs[0], ())
            index = self.graph.constants.get(node.inputs[1], 0)
            return [members[index]] if index < len(members) and len(node.outputs) == 1 else None
        return None

    # -- forward ----------------------------------------------------------------------------------

    def _forward_splits(self, node: Node) -> "list[Split | None] | None":
        if node.op in TYING_OPS:
            return [None] * len(node.outputs)
        if self.local.add(node, self.forward_names):
            return [(1,) * len(known.shape) for known in node.outputs]
        if node.op in TUPLE_OPS:
            return self._tuple_splits(node)
        operands = self._operands(node)
        if node.op == FROM_LOCAL:
            return [self._asked_split(node)]
        strategy = read_strategy(node.attributes)
        if strategy:
            return self._split_by_strategy(node, operands, strategy)
        if node.op in RESHAPING_OPS:
            return self._split_reshape(node, operands)
        if node.op in SPLIT_PASSING_OPS:
            if operands and operands[0].split is not None:
                return [operands[0].split]
            # A weight is cut as the operator asks that reads it.
            return [self._asked_split(node)] * len(node.outputs)
        return self._split_by_operands(node, operands, has_note=True)

    def _split_by_strategy(
        self, node: Node, operands: list[_Operand], strategy: tuple[Split, ...]
    ) -> "list[Split | None] | None":
        if len(operands) < len(strategy):
            self.unresolved.append(Unresolved(node, f"{len(strategy)} strategies for {len(operands)} operands"))
            return [None] * len(node.outputs)
        used = operands[: len(strategy)]
        for operand, asked in zip(used, strategy, strict=True):
            is_made = operand.split is not None and len(operand.split) == len(asked) and operand.name in self.nodes
            if is_made and operand.split != asked and cut_of(node.op) is not Cut.ONE_HOT:
                assert operand.split is not None
                self.redistributions.append(Redistribution(operand.name, node, operand.split, asked, operand.index))
        call = self._call(node, used, list(strategy))
        splits = output_splits(call)
        asked_outputs = read_out_strategy(node.attributes)
        is_scattered = bool(splits is not None and asked_outputs and num_parts(asked_outputs[0]) > num_parts(splits[0]))
        self._note_sum(node, call, is_scattered)
        if splits is not None and is_scattered and node.name in self.sums:
            self.scattered[node.name] = splits[0]
        if asked_outputs and len(asked_outputs) <= len(node.outputs):
            rest = splits[len(asked_outputs) :] if splits else [(1,) * len(t.shape) for t in node.outputs][1:]
            return [*asked_outputs, *rest]
        return list(splits) if splits is not None else None

    def _split_reshape(self, node: Node, operands: list[_Operand]) -> "list[Split | None] | None":
        """As the next operator with a strategy asks; else the cut of the input under the new shape."""
        if not operands or len(node.outputs) != 1:
            return None
        source, target = operands[0], node.outputs[0].shape
        own = source.split
        carried = reshape_split(source.type.shape, own, target) if own is not None else None
        asked = self._asked_split(node)
        if asked is None:
            if carried is None and own is not None and num_parts(own) > 1:
                self.unresolved.append(Unresolved(node, f"{own} of {source.type.shape} is no regular cut of {target}"))
            return [carried]
        # The compiler may make one of two reshapes, of which it keeps the attributes of the first only.
        has_mark = any(LOCAL_MARK in other.attributes for other in (node, *self.users.get(node.name, ())))
        is_local = has_mark and own is not None and num_parts(own) == num_parts(asked)
        if own is not None and carried != asked and source.name in self.nodes and not is_local:
            self.redistributions.append(Redistribution(source.name, node, own, asked, source.index))
            if not self._is_communicated_again(source.name):
                self.communications[node.name] = name_communication(own, asked)
        return [asked]

    def _is_communicated_again(self, name: str) -> bool:
        """Whether the operator behind a value has its communication recomputed (`select_comm_recompute`)."""
        while name in self.nodes:
            node = self.nodes[name]
            if node.attributes.get("recompute_comm_op"):
                return True
            if node.op not in SPLIT_PASSING_OPS and node.op not in RESHAPING_OPS and node.op != "TupleGetItem":
                return False
            name = node.inputs[0]
        return False

    def _asked_split(self, node: Node) -> Split | None:
        """What the first user with a strategy asks of the output of `node`, looking through casts."""
        for user in self.users.get(node.name, ()):
            strategy = read_strategy(user.attributes)
            if strategy:
                for operand, asked in zip(self._operands(user), strategy, strict=False):
                    if operand.name == node.name and len(asked) == len(operand.type.shape):
                        return asked
            elif user.op in SPLIT_PASSING_OPS and user.inputs[0] == node.name:
                asked_later = self._asked_split(user)
                if asked_later is not None:
                    return asked_later
        return None

    def _split_by_operands(self, node: Node, operands: list[_Operand], has_note: bool) -> "list[Split | None] | None":
        """Outputs as the operands come; what is not known counts as whole."""
        splits = [operand.split or (1,) * len(operand.type.shape) for operand in operands]
        call = self._call(node, operands, splits)
        outputs = output_splits(call) if operands else None
        if has_note:
            self._note_sum(node, call)
        if has_note and any(_num_elements(known) > 1 for known in node.outputs) and outputs is not None:
            # step_parallel.cc, ExtractStrategyAndInit: batch parallel, the first dimension over all devices.
            reason = "has no strategy; MindSpore cuts its first dimension over all ranks, here it follows its operands"
            if node.layer_index is None and not node.cell_path:  # of a function, which may be one for a rank (Morph)
                reason = "is in no cell and has no strategy; here it follows its operands"
            self.unresolved.append(Unresolved(node, reason))
        return list(outputs) if outputs is not None else None

    def _note_sum(self, node: Node, call: Call, is_scattered: bool = False) -> None:
        num_ranks = summed_parts(call)
        if num_ranks > 1:
            self.sums[node.name] = PartialSum(num_ranks, is_scattered)

    def kept_copies(self) -> Iterator[Redistribution]:
        """Where backward may hold the tensor as it arrived by communication, while the size is that of its maker."""
        saved = set(self.forward_names.values())
        for moved in self.redistributions:
            is_keeping = moved.consumer.op in KEEPING_OPS or LOCAL_MARK in moved.consumer.attributes
            if moved.producer in saved and is_keeping:
                yield moved

    def note_kept_copies(self) -> None:
        """Say so."""
        for moved in self.kept_copies():
            reason = f"kept as cut by its maker {moved.before}; {moved.consumer.op} reads it as {moved.after}"
            self.unresolved.append(Unresolved(self.nodes[moved.producer], reason))

    def gathered_gradients(self) -> Iterator[tuple[str, GatheredGradient]]:
        """Operators whose sum is scattered, each with the gradient of that sum as its own gradients read it."""
        for node in self.graph.backward:
            before = self.scattered.get(node.origin)
            if before is None or node.is_duplicate:
                continue
            known, after = self.nodes[node.origin].outputs[0], self.splits[node.origin][0]
            for operand in self._operands(node):
                is_of_backward = operand.name not in self.forward_names
                if is_of_backward and (operand.type.shape, operand.split) == (known.shape, after):
                    yield node.origin, GatheredGradient(operand.name, _cut(operand.type, before))

    # -- backward ---------------------------------------------------------------------------------

    def _backward_splits(self, node: Node) -> "list[Split | None] | None":
        if self.local.add(node, self.forward_names):
            return [(1,) * len(known.shape) for known in node.outputs]
        if node.op == FROM_LOCAL:
            return [self._whole_split(node)]
        if node.is_duplicate and node.origin in self.splits:  # cut as the first time
            if node.origin in self.communications:
                self.communications[node.name] = self.communications[node.origin]
            return list(self.splits[node.origin])
        if node.op in TUPLE_OPS or node.op in TYING_OPS or read_strategy(node.attributes):
            return self._forward_splits(node)
        operands = self._operands(node)
        if not operands and node.outputs:
            return None
        if node.op in RESHAPING_OPS and len(node.outputs) == 1:
            source = operands[0]
            if source.split is None:
                return [None]
            carried = self._operand_split(node) or self._product_split(node)
            carried = carried or reshape_split(source.type.shape, source.split, node.outputs[0].shape)
            if carried is None:
                reason = f"{source.split} of {source.type.shape} is no regular cut of {node.outputs[0].shape}"
                self.unresolved.append(Unresolved(node, reason))
            return [carried]
        if node.op in SPLIT_PASSING_OPS:
            return [operands[0].split] * len(node.outputs)
        if node.op == "AllGather":  # the gradient of a ReduceScatter: of what that reads
            return [self._operand_split(node)]
        gradient = self._gradient_split(node, operands)
        if gradient is not None:
            return [gradient]
        if node.op in PRODUCT_OPS and all(
            operand.split is None or num_parts(operand.split) == 1 for operand in operands
        ):
            return [(1,) * len(known.shape) for known in node.outputs]
        if node.op in PRODUCT_OPS:
            self.unresolved.append(Unresolved(node, "its forward operator is not found; counted as whole"))
            return [None]
        return self._split_by_operands(node, operands, has_note=False)

    def _whole_split(self, node: Node) -> Split | None:
        """The cut of what ToLocal takes, for its gradient; one that runs again is cut as the first time."""
        if node.is_duplicate and node.origin in self.splits:
            return self.splits[node.origin][0]
        forward = self.nodes.get(node.origin)
        operands = self._operands(forward) if forward is not None else []
        if forward is not None and forward.op == TO_LOCAL and operands:
            return operands[0].split or next(iter(read_strategy(forward.attributes)), None)
        self.unresolved.append(Unresolved(node, "its forward operator is not found; counted as whole"))
        return None

    def _operand_split(self, node: Node) -> Split | None:
        """The cut of what the forward operator reads first, if `node` is its gradient."""
        forward = self.nodes.get(node.origin)
        if forward is None or node.is_duplicate:
            return None
        operand = next(iter(self._operands(forward)), None)
        return operand.split if operand is not None and operand.type.shape == node.outputs[0].shape else None

    def _product_split(self, node: Node) -> Split | None:
        """The cut of the forward product or attention whose gradients read `node`: the gradient of what came out."""
        for user in self.users.get(node.name, ()):
            product = self.nodes.get(user.origin)
            if product is None or product.op not in (*PRODUCT_OPS, "FlashAttentionScore"):
                continue
            if product.outputs[-1].shape == node.outputs[0].shape:  # of attention the last one, of a product the only
                return self.splits[product.name][-1]
        return None

    def _gradient_split(self, node: Node, operands: list[_Operand]) -> Split | None:
        """The cut of the tensor that `node` is the gradient of, where its forward operator tells.

        A gradient is cut as the forward operator asks of the operand with this shape. Where that is not
        one: the gradient of one operand of a product reads the other one, so the forward operator is among
        the readers of what is read here.
        """
        if len(node.outputs) != 1 or node.op not in (*PRODUCT_OPS, "UnsortedSegmentSum"):
            return None
        shape = node.outputs[0].shape
        wanted = PRODUCT_OPS if node.op in PRODUCT_OPS else frozenset({"Gather"})
        forward = self.nodes.get(node.origin)
        if forward is not None and forward.op in wanted:
            by_operand = zip(self._operands(forward), read_strategy(forward.attributes), strict=False)
            asked = {split for operand, split in by_operand if operand.type.shape == shape}
            if len(asked) == 1:
                return asked.pop()
        found: set[Split] = set()
        for operand in operands:
            for name in self._forward_origins(operand.name):
                for known_as, reader in self._readers(name):
                    strategy = read_strategy(reader.attributes)
                    if reader.op not in wanted or len(strategy) < 2:
                        continue
                    read = self._operands(reader)
                    for position, other in enumerate(read[:2]):
                        if other.name != known_as and other.type.shape == shape:
                            found.add(strategy[position])
        return found.pop() if len(found) == 1 else None

    def _readers(self, name: str) -> Iterator[tuple[str, Node]]:
        """Operators that read a value, each with the name under which it does.

        What is copied to the host is read by its other users as `Depend(value, copy)`.
        """
        for reader in self.users.get(name, ()):
            if reader.op == "Depend" and reader.inputs[0] == name:
                yield from self._readers(reader.name)
            else:
                yield name, reader

    def _forward_origins(self, name: str) -> Iterator[str]:
        """Names under which the forward operators know what backward calls `name`."""
        for _ in range(8):  # casts, copies and ties on the way
            yield name
            forward = self.forward_names.get(name)
            if forward is not None:
                name = forward
                continue
            node = self.nodes.get(name)
            if node is None:
                return
            if node.is_duplicate and node.origin:
                name = node.origin
                continue
            if node.op not in SPLIT_PASSING_OPS and node.op not in RESHAPING_OPS:
                return
            name = node.inputs[0]


def name_communication(before: Split, after: Split) -> str:
    """What gives a rank its part of a tensor under another cut: one of `REDISTRIBUTION_OPS`."""
    if num_parts(before) > num_parts(after):
        return "AllGather"
    return "Slice" if num_parts(before) < num_parts(after) else "AllToAll"


def _is_cut(node: Node) -> bool:
    strategies = (*read_strategy(node.attributes), *read_out_strategy(node.attributes))
    return any(num_parts(split) > 1 for split in strategies)


def _cut(known: TensorType, split: Split | None) -> TensorType:
    if split is None or num_parts(split) == 1:
        return known
    shape = tuple(size // parts for size, parts in zip(known.shape, split, strict=True))
    return TensorType(shape, known.dtype, known.size_bytes // num_parts(split))


def _num_elements(known: TensorType) -> int:
    count = 1
    for size in known.shape:
        count *= size
    return count
