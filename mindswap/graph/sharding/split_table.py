"""Splits of all values of a step, and their propagation through forward."""

from collections.abc import Sequence
from dataclasses import dataclass

from mindswap.graph.model import Graph, Node, TensorType
from mindswap.graph.ops import ORDERING_OPS, RESHAPING_OPS, SPLIT_PASSING_OPS, TUPLE_OPS, SplitRule, operator_info
from mindswap.graph.sharding.batch_parallel import batch_splits, is_batch_parallel
from mindswap.graph.sharding.experts import FROM_LOCAL, RankLocalValues
from mindswap.graph.sharding.split_rules import OperatorCall, num_summed_ranks, output_splits
from mindswap.graph.sharding.splits import (
    LOCAL_MARK,
    Split,
    fits,
    num_shards,
    read_out_strategy,
    read_strategy,
    reshape_split,
    unsplit_one_dimension,
)
from mindswap.graph.sharding.visit_order import order_of_visits

# Suffix of the name of a tensor as received by communication.
ARRIVAL_SUFFIX = ":arrived"
# Split of each output of an operator, None where unknown; None altogether if no rule fits.
NodeSplits = list[Split | None] | None


@dataclass(frozen=True)
class Unresolved:
    """An operator whose sizes on one rank are uncertain."""

    node: Node
    reason: str


@dataclass(frozen=True)
class Redistribution:
    """A tensor that its producer and its reader split differently, which requires communication."""

    producer: str  # name of the value
    consumer: Node  # reader; a `Reshape` communicates itself
    # splits before and after; for a `Reshape` after is a split of its output shape
    before: Split
    after: Split
    index: int = 0  # output of the producer


@dataclass(frozen=True)
class PartialSum:
    """An output that is a partial sum on each rank."""

    num_ranks: int  # ranks whose outputs are summed
    # if `out_strategy` scatters the sum: its split before that; else None
    scattered: Split | None = None


@dataclass(frozen=True)
class Operand:
    """A tensor that an operator reads: its source, unsharded type and split (None if unknown)."""

    name: str
    index: int
    type: TensorType
    split: Split | None


class SplitTable:
    """Types and splits of all outputs of all values, and the results listed in `Sharding`.

    Args:
        graph: the step.
        num_ranks: ranks of a pipeline stage.
    """

    def __init__(self, graph: Graph, num_ranks: int = 1):
        self.graph = graph
        self.num_ranks = num_ranks
        self.types = {name: (tensor_type,) for name, tensor_type in graph.types.items()} | {
            node.name: node.outputs for node in (*graph.forward, *graph.backward)
        }
        self.splits: dict[str, tuple[Split | None, ...]] = {}
        self.unresolved: list[Unresolved] = []
        self.redistributions: list[Redistribution] = []
        self.sums: dict[str, PartialSum] = {}
        self.users, self.nodes = graph.index.readers, graph.index.nodes
        self.forward_names, self.visits = graph.index.forward_names, order_of_visits(graph.forward)
        self.communications: dict[str, str] = {}  # type of communication of each redistributing Reshape
        self.constant_splits: dict[str, set[Split]] = {}  # constant -> splits that its readers require
        self.local = RankLocalValues()  # values that differ between ranks

    def add_unresolved(self, node: Node, reason: str) -> None:
        """Record an operator whose sizes are uncertain."""
        self.unresolved.append(Unresolved(node, reason))

    def add(self, node: Node, splits: NodeSplits) -> None:
        """Store the splits of a node if they fit its outputs; otherwise record it as unresolved."""
        checked: list[Split | None] = [None] * len(node.outputs)
        self.splits[node.name] = tuple(checked)
        if node.op in ORDERING_OPS:
            return
        if splits is None or len(splits) != len(node.outputs):
            if node.has_tensor_output and node.op != "MakeTuple":
                self.add_unresolved(node, f"no rule for {node.op} with these operands")
            return
        for position, (tensor_type, split) in enumerate(zip(node.outputs, splits, strict=True)):
            if split is None or fits(split, tensor_type.shape):
                checked[position] = split
            else:
                self.add_unresolved(node, f"{tensor_type.shape} cannot be split into {split}")
        self.splits[node.name] = tuple(checked)

    def require_constants(self, node: Node, operands: Sequence[Operand], splits: Sequence[Split]) -> None:
        """Record the splits in which an operator reads constants (step_parallel.cc, SplitTensor)."""
        for operand, split in zip(operands, splits, strict=False):
            is_constant = operand.name in self.graph.types and operand.name not in self.graph.inputs
            if is_constant and operand.name in node.inputs and fits(split, operand.type.shape):
                self.constant_splits.setdefault(operand.name, set()).add(split)

    def operands(self, node: Node) -> list[Operand]:
        """Return the tensors among the inputs; members of tuples count separately."""
        tensors = []
        for name in node.inputs:
            types = self.types.get(name, ())
            splits = self.splits.get(name, (None,) * len(types))
            for index, (tensor_type, split) in enumerate(zip(types, splits, strict=False)):
                tensors.append(Operand(name, index, tensor_type, split))
        return tensors

    def call(self, node: Node, operands: list[Operand], splits: list[Split]) -> OperatorCall:
        """Return the operator in the form that split rules take."""
        graph = self.graph
        return OperatorCall(
            op=node.op,
            shapes=[operand.type.shape for operand in operands],
            splits=splits,
            outputs=[tensor_type.shape for tensor_type in node.outputs],
            integers=[graph.constants[name] for name in node.inputs if name in graph.constants],
            tuples=[graph.tuples[name] for name in node.inputs if name in graph.tuples],
            attributes=node.attributes,
        )

    def tuple_splits(self, node: Node) -> NodeSplits:
        """Return the splits of an operator that creates or reads a tuple."""
        if node.op == "MakeTuple":
            splits = [operand.split for operand in self.operands(node)]
            return splits if len(splits) == len(node.outputs) else [None] * len(node.outputs)
        members = self.splits.get(node.inputs[0], ())
        index = self.graph.constants.get(node.inputs[1], 0)
        return [members[index]] if index < len(members) and len(node.outputs) == 1 else None

    def requested_split(self, node: Node) -> Split | None:
        """Return the split that the first reader with a strategy requires of the output, looking through casts."""
        users = self.users.get(node.name, ())
        for user in sorted(users, key=lambda user: self.visits.get(user.name, len(self.visits))):
            strategy = read_strategy(user.attributes)
            if strategy:
                for operand, requested in zip(self.operands(user), strategy, strict=False):
                    if operand.name == node.name and len(requested) == len(operand.type.shape):
                        return requested
            elif user.op in SPLIT_PASSING_OPS and user.inputs[0] == node.name:
                later_split = self.requested_split(user)
                if later_split is not None:
                    return later_split
        return None


def is_local_reshape(node: Node) -> bool:
    """Return whether each rank reshapes its own shard."""
    return node.op in RESHAPING_OPS and LOCAL_MARK in node.attributes


def shard_type(tensor_type: TensorType, split: Split | None) -> TensorType:
    """Return the type of the shard of one rank."""
    if split is None or num_shards(split) == 1:
        return tensor_type
    shape = tuple(size // parts for size, parts in zip(tensor_type.shape, split, strict=True))
    return TensorType(shape, tensor_type.dtype, tensor_type.size_bytes // num_shards(split))


# Propagation through forward, as in MindSpore's step_parallel.cc.


class ForwardSplits:
    """Derives the splits of operators whose operands are in the table."""

    def __init__(self, table: SplitTable):
        self.table = table

    def of(self, node: Node) -> NodeSplits:
        """Return the split of each output of a forward operator; None where nothing is known of it."""
        if node.op in ORDERING_OPS:
            return [None] * len(node.outputs)
        if self.table.local.add(node, self.table.forward_names):
            return [(1,) * len(tensor_type.shape) for tensor_type in node.outputs]
        if node.op in TUPLE_OPS:
            return self.table.tuple_splits(node)
        operands = self.table.operands(node)
        if node.op == FROM_LOCAL:
            return [self.table.requested_split(node)]
        strategy = read_strategy(node.attributes)
        if strategy:
            return self._by_strategy(node, operands, strategy)
        if node.op in RESHAPING_OPS:
            return self._reshape(node, operands)
        if node.op in SPLIT_PASSING_OPS:
            if operands and operands[0].split is not None:
                return [operands[0].split]
            # A weight has the split that its reader requires.
            return [self.table.requested_split(node)] * len(node.outputs)
        return self._by_operands(node, operands, has_note=True)

    def _by_strategy(self, node: Node, operands: list[Operand], strategy: tuple[Split, ...]) -> NodeSplits:
        if len(operands) < len(strategy):
            self.table.add_unresolved(node, f"{len(strategy)} strategies for {len(operands)} operands")
            return [None] * len(node.outputs)
        used = operands[: len(strategy)]
        for operand, requested in zip(used, strategy, strict=True):
            source_split = operand.split
            if source_split is None or len(source_split) != len(requested) or operand.name not in self.table.nodes:
                continue
            if source_split != requested and operator_info(node.op).split_rule is not SplitRule.ONE_HOT:
                self.table.redistributions.append(
                    Redistribution(operand.name, node, source_split, requested, operand.index)
                )
        self.table.require_constants(node, used, strategy)
        call = self.table.call(node, used, list(strategy))
        splits = output_splits(call)
        output_strategy = read_out_strategy(node.attributes)
        is_scattered = splits and output_strategy and num_shards(output_strategy[0]) > num_shards(splits[0])
        self._record_partial_sum(node, call, splits[0] if splits and is_scattered else None)
        if output_strategy and len(output_strategy) <= len(node.outputs):
            remaining = splits[len(output_strategy) :] if splits else [(1,) * len(t.shape) for t in node.outputs][1:]
            return [*output_strategy, *remaining]
        return list(splits) if splits is not None else None

    def _reshape(self, node: Node, operands: list[Operand]) -> NodeSplits:
        """Return the split that the next operator with a strategy requires; else that of the input in the new shape."""
        if not operands or len(node.outputs) != 1:
            return None
        source, target = operands[0], node.outputs[0].shape
        source_split = source.split
        carried = reshape_split(source.type.shape, source_split, target) if source_split is not None else None
        requested = self.table.requested_split(node)
        if requested is None and source_split is not None and ARRIVAL_SUFFIX in node.name:
            requested = self._local_reshape_split(node, source_split)
        if requested is None:
            if carried is None and source_split is not None and num_shards(source_split) > 1:
                self.table.add_unresolved(
                    node, f"{source_split} of {source.type.shape} is not a regular split of {target}"
                )
            return [carried]
        # The compiler may merge two reshapes, and then keeps only the attributes of the first.
        has_mark = any(LOCAL_MARK in marked.attributes for marked in (node, *self.table.users.get(node.name, ())))
        is_local = has_mark and source_split is not None and num_shards(source_split) == num_shards(requested)
        if source_split is not None and carried != requested and source.name in self.table.nodes and not is_local:
            self.table.redistributions.append(Redistribution(source.name, node, source_split, requested, source.index))
            if not node.attributes.get("recompute_comm_op"):
                self.table.communications[node.name] = name_communication(source_split, requested)
        return [requested]

    def _local_reshape_split(self, node: Node, source_split: Split) -> Split | None:
        """Return the split of the input of a rank-local Reshape: as many parts as the reader of its output requires."""
        requested_splits = [
            self.table.requested_split(user) for user in self.table.users[node.name] if is_local_reshape(user)
        ]
        return (
            unsplit_one_dimension(source_split, num_shards(requested_splits[0]))
            if requested_splits and requested_splits[0] is not None
            else None
        )

    def _by_operands(self, node: Node, operands: list[Operand], has_note: bool) -> NodeSplits:
        """Return the splits derived from the operands, of which unknown ones count as unsplit."""
        splits = [operand.split or (1,) * len(operand.type.shape) for operand in operands]
        call = self.table.call(node, operands, splits)
        outputs = output_splits(call) if operands else None
        if has_note and outputs is not None and is_batch_parallel(node, splits, self.table.num_ranks):
            batch = node.outputs[0].shape[0], self.table.num_ranks
            self.table.require_constants(node, operands, list(batch_splits(call.shapes, *batch)))
            return list(batch_splits(call.outputs, *batch))
        self.table.require_constants(node, operands, splits)
        if has_note:
            self._record_partial_sum(node, call)
        if has_note and node.has_tensor_output and outputs is not None:
            reason = "has no strategy; MindSpore cuts its first dimension over all ranks, here it follows its operands"
            if node.layer_index is None and not node.cell_path:
                reason = "is in no cell and has no strategy; here it follows its operands"
            self.table.add_unresolved(node, reason)
        return list(outputs) if outputs is not None else None

    def _record_partial_sum(self, node: Node, call: OperatorCall, scattered: Split | None = None) -> None:
        num_ranks = num_summed_ranks(call)
        if num_ranks > 1:
            self.table.sums[node.name] = PartialSum(num_ranks, scattered)


def name_communication(before: Split, after: Split) -> str:
    """Return the type of redistribution between two splits, one of `REDISTRIBUTION_OPS`."""
    if num_shards(before) > num_shards(after):
        return "AllGather"
    return "Slice" if num_shards(before) < num_shards(after) else "AllToAll"
