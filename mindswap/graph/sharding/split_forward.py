"""Splits of the operators of forward, as MindSpore's step_parallel.cc follows them."""

from mindswap.graph.model import Node
from mindswap.graph.ops import RESHAPING_OPS, SPLIT_PASSING_OPS, TUPLE_OPS, TYING_OPS, Cut, line_of
from mindswap.graph.sharding.experts import FROM_LOCAL
from mindswap.graph.sharding.split_rules import OperatorCall, output_splits, summed_parts
from mindswap.graph.sharding.split_table import NodeSplits, Operand, PartialSum, Redistribution, SplitTable
from mindswap.graph.sharding.splits import Split, num_parts, reshape_split
from mindswap.graph.sharding.strategies import LOCAL_MARK, read_out_strategy, read_strategy


class ForwardSplits:
    """Finds the splits of operators whose operands are in the table."""

    def __init__(self, table: SplitTable):
        self.table = table

    def of(self, node: Node) -> NodeSplits:
        if node.op in TYING_OPS:
            return [None] * len(node.outputs)
        if self.table.local.add(node, self.table.forward_names):
            return [(1,) * len(known.shape) for known in node.outputs]
        if node.op in TUPLE_OPS:
            return self.table.tuple_splits(node)
        operands = self.table.operands(node)
        if node.op == FROM_LOCAL:
            return [self.table.asked_split(node)]
        strategy = read_strategy(node.attributes)
        if strategy:
            return self._by_strategy(node, operands, strategy)
        if node.op in RESHAPING_OPS:
            return self._reshape(node, operands)
        if node.op in SPLIT_PASSING_OPS:
            if operands and operands[0].split is not None:
                return [operands[0].split]
            # A weight is cut as the operator asks that reads it.
            return [self.table.asked_split(node)] * len(node.outputs)
        return self.by_operands(node, operands, has_note=True)

    def _by_strategy(self, node: Node, operands: list[Operand], strategy: tuple[Split, ...]) -> NodeSplits:
        if len(operands) < len(strategy):
            self.table.note(node, f"{len(strategy)} strategies for {len(operands)} operands")
            return [None] * len(node.outputs)
        used = operands[: len(strategy)]
        for operand, asked in zip(used, strategy, strict=True):
            own = operand.split
            if own is None or len(own) != len(asked) or operand.name not in self.table.nodes:
                continue
            if own != asked and line_of(node.op).cut is not Cut.ONE_HOT:
                self.table.redistributions.append(Redistribution(operand.name, node, own, asked, operand.index))
        call = self.table.call(node, used, list(strategy))
        splits = output_splits(call)
        asked_outputs = read_out_strategy(node.attributes)
        is_scattered = bool(splits is not None and asked_outputs and num_parts(asked_outputs[0]) > num_parts(splits[0]))
        self._note_sum(node, call, is_scattered)
        if splits is not None and is_scattered and node.name in self.table.sums:
            self.table.scattered[node.name] = splits[0]
        if asked_outputs and len(asked_outputs) <= len(node.outputs):
            rest = splits[len(asked_outputs) :] if splits else [(1,) * len(t.shape) for t in node.outputs][1:]
            return [*asked_outputs, *rest]
        return list(splits) if splits is not None else None

    def _reshape(self, node: Node, operands: list[Operand]) -> NodeSplits:
        """As the next operator with a strategy asks; else the cut of the input under the new shape."""
        if not operands or len(node.outputs) != 1:
            return None
        source, target = operands[0], node.outputs[0].shape
        own = source.split
        carried = reshape_split(source.type.shape, own, target) if own is not None else None
        asked = self.table.asked_split(node)
        if asked is None:
            if carried is None and own is not None and num_parts(own) > 1:
                self.table.note(node, f"{own} of {source.type.shape} is no regular cut of {target}")
            return [carried]
        # The compiler may make one of two reshapes, of which it keeps the attributes of the first only.
        has_mark = any(LOCAL_MARK in other.attributes for other in (node, *self.table.users.get(node.name, ())))
        is_local = has_mark and own is not None and num_parts(own) == num_parts(asked)
        if own is not None and carried != asked and source.name in self.table.nodes and not is_local:
            self.table.redistributions.append(Redistribution(source.name, node, own, asked, source.index))
            if not self._is_communicated_again(source.name):
                self.table.communications[node.name] = name_communication(own, asked)
        return [asked]

    def _is_communicated_again(self, name: str) -> bool:
        """Whether the operator behind a value has its communication recomputed (`select_comm_recompute`)."""
        while name in self.table.nodes:
            node = self.table.nodes[name]
            if node.attributes.get("recompute_comm_op"):
                return True
            if node.op not in SPLIT_PASSING_OPS and node.op not in RESHAPING_OPS and node.op != "TupleGetItem":
                return False
            name = node.inputs[0]
        return False

    def by_operands(self, node: Node, operands: list[Operand], has_note: bool) -> NodeSplits:
        """Outputs as the operands come; what is not known counts as whole."""
        splits = [operand.split or (1,) * len(operand.type.shape) for operand in operands]
        call = self.table.call(node, operands, splits)
        outputs = output_splits(call) if operands else None
        if has_note:
            self._note_sum(node, call)
        if has_note and node.makes_more_than_a_number and outputs is not None:
            # step_parallel.cc, ExtractStrategyAndInit: batch parallel, the first dimension over all devices.
            reason = "has no strategy; MindSpore cuts its first dimension over all ranks, here it follows its operands"
            if node.layer_index is None and not node.cell_path:  # of a function, which may be one for a rank (Morph)
                reason = "is in no cell and has no strategy; here it follows its operands"
            self.table.note(node, reason)
        return list(outputs) if outputs is not None else None

    def _note_sum(self, node: Node, call: OperatorCall, is_scattered: bool = False) -> None:
        num_ranks = summed_parts(call)
        if num_ranks > 1:
            self.table.sums[node.name] = PartialSum(num_ranks, is_scattered)


def name_communication(before: Split, after: Split) -> str:
    """What gives a rank its part of a tensor under another cut: one of `REDISTRIBUTION_OPS`."""
    if num_parts(before) > num_parts(after):
        return "AllGather"
    return "Slice" if num_parts(before) < num_parts(after) else "AllToAll"
