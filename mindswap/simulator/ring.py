"""Ring attention as operators of a block: an exchange goes on while attention of what has come is computed."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from mindswap.graph.model import TensorType
from mindswap.graph.sharding.ring import RING, RingKernel, Round
from mindswap.graph.work import Work
from mindswap.simulator.block_parts import BlockOp
from mindswap.simulator.program import NO_OP, OpKind


def ring_ops(
    op: BlockOp, rounds: Sequence[Round], begin: int, time_ns: Callable[[Work, str], int], exchange_ns: int
) -> list[BlockOp]:
    """The operators that stand for one attention.

        compute   concat | attention 0 | split, concat | attention 1 ... | split | attention n - 1, join
        links            | exchange 0        |         | exchange 1 ...    |

    Args:
        op: the attention as one operator.
        rounds: from `list_rounds`.
        begin: position of the first of them.
        time_ns: time of a kernel of the given work and primitive.
        exchange_ns: time of one exchange.
    """
    ops: list[BlockOp] = []
    wait_op = op.wait_op

    def compute(duration_ns: int, wait: int) -> None:
        ops.append(replace(op, duration_ns=duration_ns, wait_op=wait))

    for one in rounds:
        if one.before:
            compute(_kernels_ns(one.before, time_ns), wait_op)
            wait_op = NO_OP
        for _ in range(one.num_exchanges):
            ops.append(BlockOp(f"{op.label} {RING}", OpKind.COLLECTIVE, exchange_ns, begin + len(ops) - 1, RING))
        attention_ns = time_ns(Work(one.flops, 0, 0), op.op)
        compute(attention_ns + _kernels_ns(one.after, time_ns), wait_op)
        # The next round begins with what this exchange brings.
        sent = [at for at, entry in enumerate(ops) if entry.kind is OpKind.COLLECTIVE]
        wait_op = begin + sent[-1] if sent else NO_OP
    return ops


def ring_buffers(operands: Sequence[TensorType], is_forward: bool) -> int:
    """Bytes that are there while it runs, beside operands and results.

    Forward: keys and values that are used and those that come, and the result of a round. Backward: the same for their
    gradients, and the gradient of queries of a round.
    """
    query, pair = operands[0].size_bytes, operands[1].size_bytes + operands[2].size_bytes
    return (2 if is_forward else 4) * pair + query


def _kernels_ns(kernels: Sequence[RingKernel], time_ns: Callable[[Work, str], int]) -> int:
    return sum(time_ns(Work(0, kernel.moved_bytes, 0), kernel.op) for kernel in kernels)
