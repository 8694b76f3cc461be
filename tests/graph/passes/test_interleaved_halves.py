"""The order of the two halves of a layer."""

from dataclasses import replace

import pytest

from mindswap.graph.analysis.collectives import Collective, find_collectives
from mindswap.graph.analysis.work import measure_work
from mindswap.graph.model import TensorType
from mindswap.graph.passes.interleaved_halves import (
    RING,
    Branches,
    RingKernel,
    list_rounds,
    order_halves,
    ring_axes,
    ring_flops,
)
from mindswap.graph.sharding.rank_sizes import shard_graph
from tests.graph.builders import graph, node


def step():
    """Each half: cut, product that communicates, activation, product; casts of weights when they are first needed."""
    forward = []
    for half in "01":
        forward.append(node(f"x{half}", "StridedSlice", "x", cell_path=f"interleave2_inputs.{half}"))
        forward += [node("w", "Cast", "weight")] if half == "0" else []
        forward += [node(f"y{half}", "MatMul", f"x{half} w"), node(f"g{half}", "Gelu", f"y{half}")]
        forward += [node("v", "Cast", "other_weight")] if half == "0" else []
        forward.append(node(f"z{half}", "MatMul", f"g{half} v"))
    return graph([*forward, node("z", "Concat", "z0 z1")])


def names(nodes):
    return " ".join(node.name for node in nodes)


def test_a_half_computes_while_the_other_communicates():
    ordered = order_halves(step(), set(), {"y0", "y1"})
    # What y0 sends is on its way while x1 and y1 are computed, what y1 sends while g0 and z0 are.
    assert names(ordered.forward) == "x0 w y0 x1 y1 g0 v z0 g1 z1 z"


def test_communication_before_an_operator():
    ordered = order_halves(step(), {"z0", "z1"}, set())
    assert names(ordered.forward) == "x0 w y0 g0 x1 y1 g1 v z0 z1 z"


def test_without_communication_or_halves_all_stays():
    plain = step()
    assert order_halves(plain, set(), set()).forward == plain.forward
    other = graph([node("a", "MatMul", "x w"), node("b", "Gelu", "a")])
    assert order_halves(other, set(), {"a"}) is other


def test_what_no_half_needs_runs_when_nothing_else_can():
    first, *others = step().forward
    with_mask = replace(step(), forward=(first, node("m", "Cast", "mask"), *others))
    ordered = order_halves(with_mask, set(), {"y0", "y1"})
    assert names(ordered.forward) == "x0 w y0 x1 y1 g0 v z0 g1 z1 z m"


def test_halves_that_begin_with_communication_wait_for_nothing_else():
    ordered = order_halves(step(), {"x0", "x1"}, set())
    assert names(ordered.forward) == "x0 w y0 g0 v z0 x1 y1 g1 z1 z"
    # Nor if one of them does, and the other one waits for it.
    second, first = (node(f"x{half}", "StridedSlice", "x", cell_path=f"interleave2_inputs.{half}") for half in "10")
    first = replace(first, inputs=("x1",))
    forward = [second, node("m", "Cast", "mask"), first, node("z", "Concat", "x0 x1")]
    assert names(order_halves(graph(forward), {"x1"}, set()).forward) == "x1 x0 z m"


@pytest.mark.parametrize("inputs", ["y0 y1", "y0 y1 sum_of_others"])
def test_what_puts_both_halves_together_waits_for_neither_in_their_place(inputs):
    """`mid` runs as soon as y1 has; g1 waits all the same for what y1 sends, until z0 has run."""
    *before, g1, z1, z = step().forward
    forward = (*before, node("mid", "Add", inputs), g1, z1, z)
    ordered = order_halves(replace(step(), forward=forward), set(), {"y0", "y1"})
    assert names(ordered.forward) == "x0 w y0 x1 y1 mid g0 v z0 g1 z1 z"


# Gradients of operators that a layer calls once for each half.


def halves():
    """x is cut in two, each half goes through one product, a Concat joins them; one weight for both."""
    return [
        node("w", "Cast", "weight"),
        node("x0", "StridedSlice", "x", cell_path="interleave1_inputs.0"),
        node("x1", "StridedSlice", "x", cell_path="interleave1_inputs.1"),
        node("y0", "MatMul", "x0 w"),
        node("y1", "MatMul", "x1 w"),
        node("y", "Concat", "y0 y1"),
    ]


def test_forward():
    branches = Branches(halves(), {}, {})
    assert [branches[name] for name in ("x0", "x1", "y0", "y1")] == [0, 1, 0, 1]
    assert branches["w"] is None and branches["y"] is None


def test_a_gradient_belongs_to_the_half_whose_gradient_and_input_it_reads():
    forward = halves()
    branches = Branches(forward, {"x0_b": "x0", "x1_b": "x1", "w_b": "w"}, {"first": 0, "second": 1})
    concat, products = forward[5], forward[3:5]
    branches.add(node("split", "SplitWithSize", "dy"), [concat])
    branches.add(node("dy1", "TupleGetItem", "split second"), [concat])
    branches.add(node("dx1", "MatMul", "dy1 w_b"), products)
    branches.add(node("dw1", "MatMul", "dy1 x1_b"), products)
    branches.add(node("dw0", "MatMul", "other x0_b"), products)
    branches.add(node("dw", "AddN", "dw0 dw1"), [])
    assert [branches[name] for name in ("dy1", "dx1", "dw1", "dw0", "dw")] == [1, 1, 1, 0, None]


def test_a_layer_that_is_not_cut_has_none():
    branches = Branches([node("a", "StridedSlice", "x"), node("b", "MatMul", "a w")], {}, {})
    assert [branches[name] for name in "ab"] == [None, None]


# Ring attention of one rank, counted by hand.


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
