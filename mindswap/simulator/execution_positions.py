"""Positions in the backend's execution order, counted while a step is read."""

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace

from mindswap.graph.analysis.execution_order import count_kernel, count_view
from mindswap.graph.model import Graph, Node
from mindswap.simulator.layer_block import BlockOp
from mindswap.simulator.step_tensors import OpList, UntimedOp


@dataclass(eq=False)  # not frozen: counts while the graph is read
class PositionCounter:
    """Counter of the positions before the next operator of each list.

    Args:
        graph: the step.
        joined: operators without a position of their own.
        is_single: whether the step has one micro-batch. Then a weight is all-gathered just before its reader, so the
            position of the AllGather counts with that.
    """

    graph: Graph
    joined: Set[str]
    is_single: bool = False
    num_pending: Counter[OpList] = field(default_factory=Counter)
    num_deferred: dict[str, int] = field(default_factory=dict)  # operator that runs once in a step -> positions

    def note_view(self, node: Node, op_list: OpList) -> None:
        """Record an operator without a kernel; its positions are those of the next operator of the list.

        Args:
            node: the operator.
            op_list: its list.
        """
        positions = count_view(self.graph, node)
        if self.is_single and op_list.is_per_step:  # they count with the reader
            self.num_deferred[node.name] = positions + sum(self.num_deferred.pop(name, 0) for name in node.inputs)
        else:
            self.num_pending[op_list] += positions

    def take(self, node: Node, op_list: OpList) -> int:
        """Return the positions of an operator, with those of views before it.

        Args:
            node: the operator.
            op_list: its list.
        """
        if node.name in self.joined:
            return 0
        positions = count_kernel(self.graph, node) + self.num_pending.pop(op_list, 0)
        positions += sum(self.num_deferred.pop(name, 0) for name in node.inputs)
        if self.is_single and op_list.is_per_step:
            self.num_deferred[node.name] = positions
            return 0
        return positions

    def with_remaining(self, op_list: OpList, ops: list[BlockOp | UntimedOp]) -> list[BlockOp | UntimedOp]:
        """Return the operators of a list with the positions of views after the last one.

        Args:
            op_list: the list.
            ops: all of its operators.
        """
        positions = self.num_pending.pop(op_list, 0)
        return _with_positions(ops, len(ops) - 1, positions) if positions and ops else ops


def with_gradient_launch(ops: Sequence[BlockOp | UntimedOp], producer: int) -> list[BlockOp | UntimedOp]:
    """Return the operators with the position that the reduction of a gradient, or its sum, has after its producer.

    Args:
        ops: operators of backward.
        producer: position of the operator that computes the gradient.
    """
    return _with_positions(ops, min(producer + 1, len(ops) - 1), 1)


def _with_positions(ops: Sequence[BlockOp | UntimedOp], index: int, added: int) -> list[BlockOp | UntimedOp]:
    op = ops[index]
    positions = op.positions + added
    counted = op._replace(positions=positions) if isinstance(op, UntimedOp) else replace(op, positions=positions)
    return [*ops[:index], counted, *ops[index + 1 :]]
