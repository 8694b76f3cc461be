"""Operators where a tensor arrives by communication."""

from dataclasses import replace

import pytest

from mindswap.graph.analysis.collectives import Collective, find_collectives
from mindswap.graph.analysis.work import measure_work
from mindswap.graph.model import Saved
from mindswap.graph.sharding.rank_sizes import insert_arrivals, shard_graph
from tests.graph.builders import graph, node
from tests.graph.cut_graphs import graph as cut_graph
from tests.graph.cut_graphs import op, shapes


def test_one_view_for_all_readers_and_what_backward_reads():
    forward = [node("x", "Cast", "norm"), node("a", "MatMul", "x w"), node("b", "MatMul", "x v"), node("c", "Neg", "x")]
    backward = [
        replace(node("da", "MatMul", "grad x_b"), origin="a"),
        replace(node("dc", "Neg", "grad x_b"), origin="c"),
    ]
    step = graph(forward, backward, saved="x")
    seen = insert_arrivals(step, [("x", forward[1]), ("x", forward[2])])
    assert [(entry.name, entry.inputs) for entry in seen.forward] == [
        ("x", ("norm",)),
        ("x:arrived", ("x",)),
        ("a", ("x:arrived", "w")),
        ("b", ("x:arrived", "v")),
        ("c", ("x",)),
    ]
    assert seen.saved == (Saved("x", "x_b"), Saved("x:arrived", "x_b:arrived"))
    assert [entry.inputs for entry in seen.backward] == [("grad", "x_b:arrived"), ("grad", "x_b")]


SEQ, WIDTH, FFN, NUM_RANKS = 8, 16, 32, 4
# Each product of the whole: 2 x 8 x 16 x 32; of one rank a fourth of it.
FLOPS = 2 * SEQ * WIDTH * FFN // NUM_RANKS


def megatron_layer(is_sequence_parallel):
    """down(up(norm(x))) as Megatron cuts it on four ranks, with all gradients; the loss gives `top`."""
    rows = (NUM_RANKS, 1) if is_sequence_parallel else (1, 1)
    scatters = {"out_strategy": (rows,)} if is_sequence_parallel else {}
    return cut_graph(
        op("norm", "SiLU", "x", (SEQ, WIDTH), in_strategy=(rows,)),
        op("up", "MatMul", "norm up_w no yes", (SEQ, FFN), in_strategy=((1, 1), (NUM_RANKS, 1))),
        op(
            "down", "MatMul", "up down_w no yes", (SEQ, WIDTH), in_strategy=((1, NUM_RANKS), (1, NUM_RANKS)), **scatters
        ),
        op("last", "SiLU", "down", (SEQ, WIDTH), in_strategy=(rows,)),
        backward=(
            op("top", "SiLUGrad", "grad down_b", (SEQ, WIDTH), origin="last"),
            op("up_grad", "MatMul", "top down_w no no", (SEQ, FFN), origin="down"),
            op("down_w_grad", "MatMul", "top up_b yes no", (WIDTH, FFN), origin="down"),
            op("up_w_grad", "MatMul", "up_grad norm_b yes no", (FFN, WIDTH), origin="up"),
            op("read_grad", "MatMul", "up_grad up_w no no", (SEQ, WIDTH), origin="up"),
            op("norm_grad", "SiLUGrad", "read_grad x_b", (SEQ, WIDTH), origin="norm"),
        ),
        saved="x norm up down",
        types={"x": (SEQ, WIDTH), "up_w": (FFN, WIDTH), "down_w": (WIDTH, FFN), "grad": (SEQ, WIDTH)},
        no=0,
        yes=1,
    )


@pytest.mark.parametrize("is_sequence_parallel", [False, True])
def test_a_product_and_both_its_gradients_compute_as_much(is_sequence_parallel):
    cut = shard_graph(megatron_layer(is_sequence_parallel)).graph
    work = dict(
        zip((n.name for n in (*cut.forward, *cut.backward)), (w for p in measure_work(cut) for w in p), strict=True)
    )
    products = ("up", "down", "up_grad", "down_w_grad", "up_w_grad", "read_grad")
    assert {name: work[name].flops for name in products} == dict.fromkeys(products, FLOPS)


def test_the_gradient_of_a_scattered_sum_is_gathered_once():
    """Rank: `top` has 8 / 4 rows, its gathered copy all 8; the whole message is 8 x 16 x 4 bytes = 512."""
    sharding = shard_graph(megatron_layer(True))
    backward = {entry.name: entry.inputs[0] for entry in sharding.graph.backward}
    assert list(backward)[:2] == ["top", "down:arrived"]
    assert (backward["down:arrived"], backward["up_grad"], backward["down_w_grad"]) == (
        "top",
        "down:arrived",
        "down:arrived",
    )
    assert (shapes(sharding)["top"], shapes(sharding)["down:arrived"]) == ((2, WIDTH), (8, WIDTH))
    by_node = find_collectives(sharding)[0]
    assert by_node["down:arrived"] == (Collective("AllGather", SEQ * WIDTH * 4, NUM_RANKS),)
    assert "up_grad" not in by_node
