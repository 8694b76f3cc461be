"""Tensor parallel communication, worked out by hand on steps of a few operators; all tensors are float32."""

from dataclasses import replace

import pytest

from mindswap.graph.analysis.collectives import Collective, _block_splits, _num_exchanging, find_collectives
from mindswap.graph.sharding.experts import KIND, NUM_RANKS, STRIDE
from mindswap.graph.sharding.rank_sizes import shard_graph
from mindswap.graph.sharding.split_table import Redistribution
from mindswap.graph.sharding.splits import LOCAL_MARK
from tests.graph.cut_graphs import graph, op

SEQ, HIDDEN, FFN = 8, 16, 32
TYPES = {"x": (SEQ, HIDDEN), "up_w": (FFN, HIDDEN), "down_w": (HIDDEN, FFN), "grad": (SEQ, HIDDEN)}
BYTES = SEQ * HIDDEN * 4  # 512: the hidden states of all ranks


def found(step):
    """Name of the operator -> its communication; nothing may be missing."""
    by_node, unresolved = find_collectives(shard_graph(step))
    assert unresolved == ()
    return by_node


def mlp(*between, up_reads, down_out=None, norm=(1, 1), added=(1, 1)):
    """x + down(up(norm(x))) on four ranks: `up` by columns, `down` by rows; backward with all gradients."""
    down = {"in_strategy": ((1, 4), (1, 4))} | ({"out_strategy": (down_out,)} if down_out else {})
    forward = (
        op("norm", "SiLU", "x", (SEQ, HIDDEN), in_strategy=(norm,)),
        *between,
        op("up", "MatMul", f"{up_reads} up_w no yes", (SEQ, FFN), in_strategy=((1, 1), (4, 1))),
        op("down", "MatMul", "up down_w no yes", (SEQ, HIDDEN), **down),
        op("sum", "Add", "x down", (SEQ, HIDDEN), in_strategy=(added, added)),
    )
    backward = (
        op("up_grad", "MatMul", "grad down_w no no", (SEQ, FFN), origin="down"),
        op("down_w_grad", "MatMul", "grad up_b yes no", (HIDDEN, FFN), origin="down"),
        op("up_w_grad", "MatMul", f"up_grad {up_reads}_b yes no", (FFN, HIDDEN), origin="up"),
        op("read_grad", "MatMul", "up_grad up_w no no", (SEQ, HIDDEN), origin="up"),
        *(op(f"{node.name}_grad", "Reshape", "read_grad", (SEQ, HIDDEN), origin=node.name) for node in between),
        op("norm_grad", "SiLUGrad", "reshape_grad x_b" if between else "read_grad x_b", (SEQ, HIDDEN), origin="norm"),
    )
    return graph(*forward, backward=backward, saved=f"up x {up_reads}", types=TYPES, no=0, yes=1)


def test_column_and_row_parallel():
    """One AllReduce each way: of what `down` makes, and of the gradient of that."""
    assert found(mlp(up_reads="norm")) == {
        "down": (Collective("AllReduce", BYTES, 4),),
        "up_grad": (Collective("AllReduce", BYTES, 4, is_before=True),),
    }


def test_what_backward_runs_again_is_no_gradient():
    """The first gradient of `down` waits for the sum of gradients, not the copy of `down` before it."""
    step = mlp(up_reads="norm")
    again = op("again", "MatMul", "up_b down_w no yes", (SEQ, HIDDEN), origin="down", is_duplicate=True)
    communication = found(replace(step, backward=(again, *step.backward)))
    assert communication["up_grad"] == (Collective("AllReduce", BYTES, 4, is_before=True),)
    assert communication["down"] == (Collective("AllReduce", BYTES, 4),)


def test_sequence_parallel():
    """Gathered before `up`, scattered behind `down`; the other way round in backward."""
    step = mlp(
        op("reshape", "Reshape", "norm", (SEQ, HIDDEN)), up_reads="reshape", down_out=(4, 1), norm=(4, 1), added=(4, 1)
    )
    assert found(step) == {
        "reshape": (Collective("AllGather", BYTES, 4),),
        "down": (Collective("ReduceScatter", BYTES, 4),),
        "up_grad": (Collective("AllGather", BYTES, 4, is_before=True),),
        "norm_grad": (Collective("ReduceScatter", BYTES, 4, is_before=True),),
    }


def test_a_view_without_a_gradient_has_that_of_its_reader():
    """The gradient of `up` that has the size of the view, not that of the weight; what waits for it is no reader."""
    step = mlp(
        op("reshape", "Reshape", "norm", (SEQ, HIDDEN)), up_reads="reshape", down_out=(4, 1), norm=(4, 1), added=(4, 1)
    )
    *backward, _, last = step.backward
    ties = (
        op("tied", "Depend", "other read_grad", (SEQ, HIDDEN)),
        op("user", "Neg", "tied", (SEQ, HIDDEN)),
        replace(last, inputs=("read_grad", "x_b")),
    )
    assert found(replace(step, backward=(*backward, *ties)))["norm_grad"] == (
        Collective("ReduceScatter", BYTES, 4, is_before=True),
    )


@pytest.mark.parametrize("summed", ["one_grad two_grad", "two_grad one_grad"])
def test_a_tensor_is_gathered_once_for_all_its_readers(summed):
    """And the sum of their gradients is scattered once. A norm cut in two; two products read it."""
    step = graph(
        op("norm", "SiLU", "x", (SEQ, HIDDEN), in_strategy=((2, 1),)),
        op("one", "Reshape", "norm", (SEQ, HIDDEN)),
        op("first", "MatMul", "one up_w no yes", (SEQ, FFN), in_strategy=((1, 1), (2, 1))),
        op("two", "Reshape", "norm", (SEQ, HIDDEN)),
        op("second", "MatMul", "two up_w no yes", (SEQ, FFN), in_strategy=((1, 1), (2, 1))),
        backward=(
            op("one_grad", "Reshape", "grad", (SEQ, HIDDEN), origin="one"),
            op("two_grad", "Reshape", "grad", (SEQ, HIDDEN), origin="two"),
            op("both", "MakeTuple", summed, (SEQ, HIDDEN), (SEQ, HIDDEN)),
            op("total", "AddN", "both", (SEQ, HIDDEN)),
        ),
        types=TYPES,
        no=0,
        yes=1,
    )
    assert found(step) == {
        "one": (Collective("AllGather", BYTES, 2),),
        "total": (Collective("ReduceScatter", BYTES, 2, is_before=True),),
    }


def test_an_operator_that_asks_for_another_cut_waits_for_it():
    step = graph(
        op("mul", "SiLU", "x", (SEQ, HIDDEN), in_strategy=((8, 1),)),
        op("norm", "SiLU", "mul", (SEQ, HIDDEN), in_strategy=((2, 1),)),
        op("turned", "SiLU", "norm", (SEQ, HIDDEN), in_strategy=((1, 2),)),
        op("part", "SiLU", "turned", (SEQ, HIDDEN), in_strategy=((2, 2),)),
        types=TYPES,
        backward=(
            op("norm_grad", "SiLUGrad", "grad mul_b", (SEQ, HIDDEN), origin="norm"),
            op("mul_grad", "SiLUGrad", "norm_grad x_b", (SEQ, HIDDEN), origin="mul"),
            op("turned_grad", "SiLUGrad", "grad norm_b", (SEQ, HIDDEN), origin="turned"),
            op("turned_reader", "Neg", "turned_grad", (SEQ, HIDDEN)),
        ),
        saved="mul x norm",
    )
    # Eight parts become two: groups of four gather a half, 256 bytes. The two halves become two other halves, of
    # which each rank has 256 bytes. A rank that needs a part of what it has asks nobody.
    assert found(step) == {
        "norm": (Collective("AllGather", BYTES // 2, 4, is_before=True),),
        "mul_grad": (Collective("ReduceScatter", BYTES // 2, 4, is_before=True),),
        "turned": (Collective("AllToAll", BYTES // 2, 2, is_before=True),),
        "turned_reader": (Collective("AllToAll", BYTES // 2, 2, is_before=True),),
    }


@pytest.mark.parametrize(("kind", "gradient"), [("AllReduce", "AllReduce"), ("ReduceScatter", "AllGather")])
def test_communication_of_the_model_itself(kind, gradient):
    """It takes the place of what MindSpore would insert; a bias may be added before."""
    strategies = {"in_strategy": ((1, 1),), "out_strategy": ((4, 1),)} if kind == "ReduceScatter" else {}
    step = graph(
        op("product", "MatMul", "up down_w no yes", (SEQ, HIDDEN), in_strategy=((1, 4), (1, 4))),
        op("sum", "Add", "product x", (SEQ, HIDDEN), in_strategy=((1, 1), (1, 1))),
        op("own", kind, "sum", (SEQ, HIDDEN), **strategies),
        backward=(op("own_grad", gradient, "grad", (SEQ, HIDDEN), origin="own"),),
        types={**TYPES, "up": (SEQ, FFN)},
        no=0,
        yes=1,
    )
    assert found(step) == {"own": (Collective(kind, BYTES, 4),), "own_grad": (Collective(gradient, BYTES, 4),)}


def test_a_cut_vocabulary():
    """Looked up in parts of the table, the largest logit and the sum of them over parts of the vocabulary."""
    step = graph(
        op("look_up", "Gather", "table ids zero zero", (SEQ, HIDDEN), in_strategy=((4, 1), (1,)), layer=None),
        op("largest", "ReduceMax", "logits axes", (SEQ,), in_strategy=((1, 4),), layer=None),
        backward=(op("table_grad", "UnsortedSegmentSum", "grad ids", (32, HIDDEN), origin="look_up", layer=None),),
        types={**TYPES, "table": (32, HIDDEN), "ids": (SEQ,), "logits": (SEQ, 32)},
        tuples={"axes": (-1,)},
        zero=0,
    )
    assert found(step) == {
        "look_up": (Collective("AllReduce", BYTES, 4),),
        "largest": (Collective("AllReduce", SEQ * 4, 4),),  # its gradient is no operator here: outside the layers
        "table_grad": (Collective("AllReduce", BYTES, 4, is_before=True),),
    }


def test_batch_parallel_needs_nothing():
    """Sums over the batch are gradients of weights, which data parallelism adds."""
    step = graph(
        op("out", "MatMul", "x up_w no yes", (SEQ, FFN), in_strategy=((8, 1), (1, 1))),
        backward=(op("w_grad", "MatMul", "out_grad x_b yes no", (FFN, HIDDEN), origin="out"),),
        saved="x",
        types={**TYPES, "out_grad": (SEQ, FFN)},
        no=0,
        yes=1,
    )
    assert found(step) == {}


def test_a_gradient_that_is_not_found_is_said():
    step = graph(
        op("down", "MatMul", "up down_w no yes", (SEQ, HIDDEN), in_strategy=((1, 4), (1, 4)), layer=3),
        types={**TYPES, "up": (SEQ, FFN)},
        no=0,
        yes=1,
    )
    (missing,) = find_collectives(shard_graph(step))[1]
    assert (missing.node.name, missing.reason) == (
        "down",
        "its communication in backward is not found and takes no time",
    )


def test_a_reshape_of_ones_own_part_that_a_marked_product_reads():
    """(2, 4, 4, 4) is cut over its second dimension; the product of a function for one rank reads rows of it."""
    step = graph(
        op("made", "SiLU", "x", (2, 4, 4, 4), in_strategy=((1, 4, 1, 1),)),
        op("rows", "Reshape", "made", (8, 16)),
        op("product", "MatMul", "rows w no yes", (8, 16), in_strategy=((4, 1), (1, 1)), **{LOCAL_MARK: True}),
        types={"x": (2, 4, 4, 4), "w": (16, 16)},
        no=0,
        yes=1,
    )
    assert found(step) == {}


@pytest.mark.parametrize(
    ("made", "before", "read", "after", "expected"),
    [
        # Ulysses: 4096 tokens cut over 4, heads over 2; then tokens whole, heads over 8. Shapes are those of a rank.
        ((1, 1024, 4, 1, 4, 128), (2, 4, 1, 2, 1, 1), (1, 4096, 512), (2, 1, 8), [(2, 2), (4, 1), (2, 8)]),
        # And back again.
        ((1, 4096, 512), (2, 1, 8), (1, 1024, 4, 1, 4, 128), (2, 4, 1, 2, 1, 1), [(2, 2), (1, 4), (8, 2)]),
        # Joined batch and sequence: one block, cut over 2 x 4 and over 8.
        ((1, 1024, 64), (2, 4, 1), (1024, 64), (8, 1), [(8, 8), (1, 1)]),
        # A shape of other dimensions than the cut is none of it.
        ((8,), (4,), (16,), (2, 2), [(4, 1)]),
        # No shapes are known: all ranks.
        ((), (2, 4), (8,), (8,), [(8, 1)]),
    ],
)
def test_cuts_of_the_blocks_of_a_reshape(made, before, read, after, expected):
    assert _block_splits(made, before, read, after) == expected


@pytest.mark.parametrize(
    ("made", "before", "read", "after", "expected"),
    [
        # Dimension by dimension: of 4 parts 2 stay, so 2 ranks exchange; of 2 parts all stay. Shapes do not matter.
        ((), (4, 2), (), (2, 4), 2),
        ((1, 1024, 4, 1, 4, 128), (2, 4, 1, 2, 1, 1), (1, 4096, 512), (2, 1, 8), 4),
        ((), (2, 4), (), (8,), 8),
    ],
)
def test_ranks_that_exchange_parts(made, before, read, after, expected):
    moved = Redistribution("made", op("read", "SiLU", "made"), before, after)
    assert _num_exchanging(moved, made, read) == expected


def test_a_view_that_exchanges_parts_keeps_some_dimensions():
    """Rows cut over 4, columns over 2; then rows whole and columns over 8: only the four of each column exchange."""
    step = graph(
        op("made", "SiLU", "x", (8, 16), in_strategy=((4, 2),)),
        op("view", "Reshape", "made", (8, 8, 2)),
        op("out", "SiLU", "view", (8, 8, 2), in_strategy=((1, 8, 1),)),
        types={"x": (8, 16)},
    )
    by_node = find_collectives(shard_graph(step))[0]
    assert by_node == {"view": (Collective("AllToAll", BYTES // 8, 4),)}


def test_tokens_for_experts_travel_as_the_larger_side_has_them():
    """What AllGather gives, what ReduceScatter takes; backward exchanges by operators of its own."""
    exchange = {KIND: "ring", NUM_RANKS: 4, STRIDE: 2}
    step = graph(
        op("part", "SiLU", "x", (SEQ // 4, HIDDEN)),
        op("whole", "AllGather", "part", (SEQ, HIDDEN), **exchange),
        op("back", "ReduceScatter", "whole", (SEQ // 4, HIDDEN), **exchange),
        op("alone", "AllGather", "part", (SEQ // 4, HIDDEN), **{**exchange, NUM_RANKS: 1}),
        backward=(
            op("back_grad", "AllGather", "grad", (SEQ, HIDDEN), **exchange),
            op("whole_grad", "ReduceScatter", "back_grad", (SEQ // 4, HIDDEN), **exchange),
        ),
        types={"x": (SEQ // 4, HIDDEN), "grad": (SEQ // 4, HIDDEN)},
    )
    gather, scatter = (Collective(kind, BYTES, 4, stride=2) for kind in ("AllGather", "ReduceScatter"))
    assert found(step) == {"whole": (gather,), "back": (scatter,), "back_grad": (gather,), "whole_grad": (scatter,)}
