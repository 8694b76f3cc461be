"""Positions in the backend's execution order, counted while a step is read."""

from collections import Counter
from collections.abc import Sequence
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
    """

    graph: Graph
    num_pending: Counter[OpList] = field(default_factory=Counter)

    def note_view(self, node: Node, op_list: OpList) -> None:
        """Record an operator without a kernel; its positions are those of the next operator of the list."""
        self.num_pending[op_list] += count_view(self.graph, node)

    def take(self, node: Node, op_list: OpList, *, is_fused: bool) -> int:
        """Return the positions of an operator, with those of views before it.

        Args:
            node: the operator.
            op_list: its list.
            is_fused: whether it is part of the kernel of its reader, which has the position of both.
        """
        return 0 if is_fused else count_kernel(self.graph, node) + self.num_pending.pop(op_list, 0)


def with_gradient_launch(ops: Sequence[BlockOp | UntimedOp], producer: int) -> list[BlockOp | UntimedOp]:
    """Return the operators with the position that the reduction of a gradient, or its sum, has after its producer.

    Args:
        ops: operators of backward.
        producer: position of the operator that computes the gradient.
    """
    following = min(producer + 1, len(ops) - 1)
    op = ops[following]
    positions = op.positions + 1
    counted = op._replace(positions=positions) if isinstance(op, UntimedOp) else replace(op, positions=positions)
    return [*ops[:following], counted, *ops[following + 1 :]]
