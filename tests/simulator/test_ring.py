"""Ring attention as operators of a block, by hand."""

from mindswap.graph.model import TensorType
from mindswap.graph.ring_attention import RingKernel, Round, list_rounds, ring_flops
from mindswap.simulator.layer_block import BlockOp
from mindswap.simulator.program import NO_OP, OpKind
from mindswap.simulator.ring_attention import ring_buffers, ring_ops

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


def test_half_of_the_pairs_of_its_own_queries_count():
    """4 queries on each of 3 ranks: of 16 pairs each those of 2 rounds, and 10 of 16 of its own."""
    assert ring_flops(160, 4, 3) == 2 * 160 + 100


OPERANDS = [TensorType((), "bfloat16", size) for size in (800, 100, 60)]  # keys and values: 160 bytes


def test_rounds_of_forward():
    """Keys and values go round twice; 5 parts of the work: 1 in the first round, 2 in each other one."""
    first, second, last = list_rounds(True, 3, 500, OPERANDS, 8, is_fused=True)
    take, give = RingKernel("Split", 320), RingKernel("Concat", 320)
    assert [(one.before, one.num_ring_exchanges, one.flops) for one in (first, second, last)] == [
        ((give,), 1, 100), ((take, give), 1, 200), ((take,), 0, 200),
    ]  # fmt: skip
    assert first.after == () and second.after == last.after != ()


def test_rounds_of_backward():
    """Gradients of keys and values go round behind them: two exchanges in all but the first and last rounds."""
    rounds = list_rounds(False, 3, 500, OPERANDS, 8, is_fused=True)
    give, take = RingKernel("Concat", 320), RingKernel("Split", 320)
    joins = (RingKernel("Add", 2400), take, RingKernel("Add", 480))
    assert [(one.before, one.num_ring_exchanges, one.flops, one.after) for one in rounds] == [
        ((give,), 1, 200, ()), ((give, take), 2, 200, joins), ((give, take), 1, 100, joins),
    ]  # fmt: skip


def test_one_rank_has_one_round():
    (only,) = list_rounds(True, 1, 500, OPERANDS, 8, is_fused=True)
    assert (only.before, only.num_ring_exchanges, only.flops, only.after) == ((), 0, 500, ())


def test_what_joins_the_result_of_a_round_with_those_before():
    """Fused: one kernel on the statistics, four read and four written; else each operator by what it moves."""
    fused, apart = (list_rounds(True, 2, 300, OPERANDS, 16, is_fused=way)[1].after for way in (True, False))
    statistics = "Maximum 48, Sub 48, Sub 48, Exp 32, Exp 32, Mul 48, Mul 48, Add 48, RealDiv 48, RealDiv 48"
    spread = "Split 32, Cast 3, Transpose 2, Tile 800"
    found = [", ".join(f"{kernel.op} {kernel.moved_bytes}" for kernel in kernels) for kernels in (fused, apart)]
    assert found == [
        f"Mul 128, {spread}, {spread}, Add 4000", f"{statistics}, {spread}, {spread}, Mul 2400, Mul 2400, Add 2400",
    ]  # fmt: skip
