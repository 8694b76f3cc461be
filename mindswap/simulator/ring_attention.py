"""Ring attention as operators of a block: ranks exchange the next keys and values during attention over the current."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from mindswap.graph.analysis.work import Work
from mindswap.graph.model import TensorType
from mindswap.graph.ring_attention import RING, RingKernel, Round
from mindswap.simulator.layer_block import BlockOp
from mindswap.simulator.program import NO_OP, OpKind


def ring_ops(
    op: BlockOp, rounds: Sequence[Round], begin: int, time_ns: Callable[[Work, str], int], exchange_ns: int
) -> list[BlockOp]:
    """Expand one attention operator into the rounds of ring attention.

        compute   concat | attention 0 | split, concat | attention 1 ... | split | attention n - 1, join
        links            | exchange 0        |         | exchange 1 ...    |

    Args:
        op: attention as one operator.
        rounds: rounds from `list_rounds`.
        begin: position of the first returned operator in the pass.
        time_ns: (work, primitive) -> duration of a kernel in ns.
        exchange_ns: duration of one exchange in ns.

    Returns:
        Operators in execution order.
    """
    ops: list[BlockOp] = []
    wait_op = op.wait_op

    def compute(duration_ns: int, wait: int) -> None:
        ops.append(replace(op, duration_ns=duration_ns, wait_op=wait))

    for attention_round in rounds:
        if attention_round.before:
            compute(_kernels_ns(attention_round.before, time_ns), wait_op)
            wait_op = NO_OP
        for _ in range(attention_round.num_ring_exchanges):
            ops.append(BlockOp(f"{op.label} {RING}", OpKind.COLLECTIVE, exchange_ns, begin + len(ops) - 1, RING))
        attention_ns = time_ns(Work(attention_round.flops, 0, 0), op.op)
        compute(attention_ns + _kernels_ns(attention_round.after, time_ns), wait_op)
        # The next round reads the keys and values that this exchange receives.
        sent = [at for at, entry in enumerate(ops) if entry.kind is OpKind.COLLECTIVE]
        wait_op = begin + sent[-1] if sent else NO_OP
    return ops


def ring_buffers(operands: Sequence[TensorType], is_forward: bool) -> int:
    """Return the workspace of ring attention in bytes, without operands and results.

    Forward: current and incoming keys and values, and the result of one round. Backward: in addition their gradients,
    and in place of the result the query gradient of one round.

    Args:
        operands: types of query, key and value.
        is_forward: whether attention runs in forward.
    """
    query, pair = operands[0].size_bytes, operands[1].size_bytes + operands[2].size_bytes
    return (2 if is_forward else 4) * pair + query


def _kernels_ns(kernels: Sequence[RingKernel], time_ns: Callable[[Work, str], int]) -> int:
    return sum(time_ns(Work(0, kernel.moved_bytes, 0), kernel.op) for kernel in kernels)
