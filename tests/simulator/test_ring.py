"""Ring attention as operators of a block, by hand."""

from mindswap.graph.model import TensorType
from mindswap.graph.sharding.overlap import RingKernel, Round
from mindswap.simulator.block import BlockOp, ring_buffers, ring_ops
from mindswap.simulator.program import NO_OP, OpKind

CONCAT, SPLIT, ADD = RingKernel("Concat", 2), RingKernel("Split", 3), RingKernel("Add", 5)


def time_ns(work, op):
    """One ns for each operation and for each byte."""
    return work.flops + work.read_bytes


def test_an_exchange_goes_on_beside_attention():
    own = BlockOp("f", OpKind.FORWARD, 999, wait_op=4, op="FlashAttentionScore")
    rounds = (Round((CONCAT,), 1, 50, ()), Round((SPLIT, CONCAT), 1, 100, (ADD,)), Round((SPLIT,), 0, 100, (ADD,)))
    ops = ring_ops(own, rounds, 7, time_ns, 30)
    assert [(op.kind is OpKind.COLLECTIVE, op.duration_ns, op.wait_op) for op in ops] == [
        (False, 2, 4),  # 7: concat, waits for what attention waits for
        (True, 30, 7),  # 8: sends it
        (False, 50, NO_OP),  # 9: attention of its own keys
        (False, 5, 8),  # 10: split and concat of what came
        (True, 30, 10),  # 11
        (False, 105, NO_OP),  # 12
        (False, 3, 11),  # 13
        (False, 105, NO_OP),  # 14
    ]


def test_two_exchanges_one_after_the_other():
    own = BlockOp("g", OpKind.BACKWARD, 999)
    ops = ring_ops(own, (Round((CONCAT,), 2, 50, ()), Round((SPLIT,), 0, 50, ())), 0, time_ns, 30)
    assert [op.wait_op for op in ops] == [NO_OP, 0, 1, NO_OP, 2, NO_OP]


def test_buffers():
    # Two pairs of keys and values and the result of a round; backward their gradients besides.
    operands = [TensorType((), "bfloat16", size) for size in (800, 100, 100)]
    assert ring_buffers(operands, True) == 2 * 200 + 800
    assert ring_buffers(operands, False) == 4 * 200 + 800
