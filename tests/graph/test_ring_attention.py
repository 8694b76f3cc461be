"""Ring attention of one rank, counted by hand."""

from dataclasses import replace

import pytest

from mindswap.graph.analysis.collectives import Collective, find_collectives
from mindswap.graph.analysis.work import measure_work
from mindswap.graph.model import TensorType
from mindswap.graph.ring_attention import RING, RingKernel, list_rounds, ring_axes, ring_flops
from mindswap.graph.sharding.rank_sizes import shard_graph
from tests.graph.builders import graph, node

# 1 sample, 16 positions, 4 heads of 8 numbers, 2 of keys and values; bfloat16. Layout BSH is 0.
QUERY, KEY, STATISTIC = (1, 16, 32), (1, 16, 16), (1, 4, 16, 8)
INTEGERS = "heads many zero zero zero zero"
STRATEGY = ((1, 4, 2), (1, 4, 2), (1, 4, 2))  # 4 ranks share the sequence, 2 the heads


def shaped(name, op, inputs, *shapes, dtype="bfloat16", **attributes):
    outputs = []
    for shape in shapes:
        size = 4 if len(shape) == 4 else 2
        for dim in shape:
            size *= dim
        outputs.append(TensorType(shape, "float32" if len(shape) == 4 else dtype, size))
    return replace(node(name, op, inputs), outputs=tuple(outputs), attributes=attributes)


def ring_step(strategy=STRATEGY, is_ring=True):
    operands = [
        shaped(name, "Mul", f"x{name}", shape, in_strategy=strategy[:1])
        for name, shape in (("q", QUERY), ("k", KEY), ("v", KEY))
    ]
    score = shaped(
        "f", "FlashAttentionScore", f"q k v {INTEGERS}", STATISTIC, STATISTIC, (0,), QUERY,
        in_strategy=strategy, enable_ring_attention=is_ring,
    )  # fmt: skip
    gradient = replace(shaped("g", "FlashAttentionScoreGrad", f"q_b k_b v_b d {INTEGERS}", QUERY, KEY, KEY), origin="f")
    incoming = shaped("d", "Mul", "xq", QUERY, in_strategy=strategy[:1])
    numbers = {"heads": 4, "many": 2**31 - 1, "zero": 0}
    made = graph([*operands, score], [incoming, gradient], "q k v", **numbers)
    return replace(made, types={f"x{operand.name}": operand.outputs[0] for operand in operands})


def test_each_exchange_has_keys_and_values_of_one_rank():
    # Keys of a rank: 1 x 4 x 8 x 2 = 64 bytes, values as many. The next rank of the ring is 2 further on.
    found = find_collectives(shard_graph(ring_step()))[0]
    assert found["f"] == found["g"] == (Collective(RING, 128, 4, stride=2),)
    # Two of a ring have 256 bytes each; without a ring there is nothing to exchange.
    found = find_collectives(shard_graph(ring_step(((1, 2, 2),) * 3)))[0]
    assert found["f"] == found["g"] == (Collective(RING, 256, 2, stride=2),)
    assert find_collectives(shard_graph(ring_step(is_ring=False)))[0] == {}


def test_an_attention_that_runs_again_goes_by_the_exchange_of_the_first_time():
    step = ring_step()
    copy = replace(step.forward[-1], name="again", origin="f", is_duplicate=True)
    found = find_collectives(shard_graph(replace(step, backward=(copy, *step.backward))))[0]
    assert found.keys() == {"f", "g"}


def test_pairs_of_the_last_rank():
    # 4 queries: 4 x 5 / 2 pairs in the first round, 16 in each of 3 others: 58; 2 heads of 8 numbers, 2 x (8 + 8) for
    # each pair forward, 2 x (3 x 8 + 2 x 8) backward.
    forward, backward = measure_work(shard_graph(ring_step()).graph)
    assert forward[-1].flops == 58 * 2 * 32
    assert backward[-1].flops == 58 * 2 * 80
    assert ring_flops(160, 4, 1) == 100  # alone: 10 of 16 pairs


# Statistics of 64 bytes: eight operators with two operands move 192 each (Maximum, Add, twice Sub, Mul, RealDiv), Exp,
# twice, 128. Spreading one of them: 128 + 12 + 8 + 800. The results of 800 bytes: three operators with two operands.
SPREAD = 2 * (128 + 12 + 8 + 800)


@pytest.mark.parametrize(
    ("is_fused", "num_kernels", "moved_bytes"),
    [(False, 10 + 8 + 3, 8 * 192 + 2 * 128 + SPREAD + 3 * 2400), (True, 1 + 8 + 1, 8 * 64 + SPREAD + 5 * 800)],
)
def test_rounds_of_forward(is_fused, num_kernels, moved_bytes):
    operands = [TensorType((), "bfloat16", size) for size in (800, 100, 100)]
    first, second, last = list_rounds(True, 3, 500, operands, 64, is_fused)
    # Half of the pairs in the first of three rounds: 1 : 2 : 2.
    assert [first.flops, second.flops, last.flops] == [100, 200, 200]
    # 200 bytes of keys and values, read and written; they travel in all rounds but the last.
    assert first.before == (RingKernel("Concat", 400),)
    assert second.before == (RingKernel("Split", 400), RingKernel("Concat", 400))
    assert last.before == (RingKernel("Split", 400),)
    assert [one.num_ring_exchanges for one in (first, second, last)] == [1, 1, 0]
    assert first.after == ()
    assert len(second.after) == len(last.after) == num_kernels
    assert sum(kernel.moved_bytes for kernel in second.after) == moved_bytes


def test_rounds_of_backward():
    operands = [TensorType((), "bfloat16", size) for size in (800, 100, 100)]
    rounds = list_rounds(False, 3, 500, operands, 64, False)
    assert [one.flops for one in rounds] == [200, 200, 100]  # its own keys come last
    # Keys and values in the first two rounds, their gradients in the last two.
    assert [one.num_ring_exchanges for one in rounds] == [1, 2, 1]
    assert rounds[1].after == (RingKernel("Add", 2400), RingKernel("Split", 400), RingKernel("Add", 600))


def test_where_the_sequence_is_in_either_layout():
    """4 ranks share the sequence, 2 the heads: BSH is (1, 4, 2), BNSD (1, 2, 4, 1)."""
    for strategy in ((1, 4, 2), (1, 2, 4, 1)):
        attributes = {"in_strategy": (strategy,) * 3, "enable_ring_attention": True}
        attention = node("f", "FlashAttentionScore", "q k v", **attributes)
        assert ring_axes(graph([attention]), attention) == (4, 2)
    attention = node("f", "FlashAttentionScore", "q k v", enable_ring_attention=True)
    assert ring_axes(graph([attention]), attention) == (1, 1)
