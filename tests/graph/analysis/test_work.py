"""Work of operators, counted by hand."""

from dataclasses import replace

import pytest

from mindswap.graph.analysis.work import Work, count_attention_pairs, count_work, measure_work
from mindswap.graph.model import TensorType
from tests.graph.builders import graph, node


def shaped(name, op, inputs, *shapes):
    """An operator with float16 outputs of these shapes."""
    outputs = []
    for shape in shapes:
        size = 2
        for dim in shape:
            size *= dim
        outputs.append(TensorType(shape, "float16", size))
    return replace(node(name, op, inputs), outputs=tuple(outputs))


def forward_work(step, name):
    """Work of one forward operator."""
    return measure_work(step)[0][[node.name for node in step.forward].index(name)]


@pytest.mark.parametrize(
    ("first", "second", "output", "flops"),
    [
        ((4, 8), (8, 16), (4, 16), 2 * 4 * 8 * 16),
        ((8, 4), (8, 16), (4, 16), 2 * 4 * 8 * 16),  # transposed: the number of elements is what counts
        ((2, 3, 4, 8), (2, 3, 8, 16), (2, 3, 4, 16), 2 * 6 * 4 * 8 * 16),
    ],
)
def test_matrix_products(first, second, output, flops):
    step = graph(
        [shaped("a", "Mul", "x", first), shaped("b", "Mul", "y", second), shaped("c", "MatMul", "a b", output)]
    )
    assert forward_work(step, "c").flops == flops


def attention(integers: str, query=(1, 2, 8, 4), key=None, **constants):
    """A step of one attention, 8 queries and as many keys by default, in forward and backward."""
    tensors = [shaped("q", "Mul", "x", query), *(shaped(name, "Mul", "x", key or query) for name in "kv")]
    mask = replace(shaped("mask", "Mul", "x", (8, 8)), outputs=(TensorType((8, 8), "uint8", 64),))
    statistics = (*query[:-1], 8)
    score = shaped("f", "FlashAttentionScore", f"q k v mask {integers}", statistics, statistics, (0,), query)
    gradient = shaped("g", "FlashAttentionScoreGrad", f"q_b k_b v_b d mask_b {integers}", query, query, query)
    incoming = shaped("d", "Mul", "x", query)
    step = graph([*tensors, mask, score], [incoming, gradient], saved="q k v mask")
    return replace(step, constants=constants)


def test_attention_forward_is_two_products_and_backward_five():
    # Batch 1, 2 heads, 8 queries of 4 numbers, 8 keys, all 64 pairs (sparse mode 1): a product is 2 * 2 * 64 * 4.
    step = attention("many many none bnsd all", many=2**31 - 1, none=0, bnsd=1, all=1)
    forward, backward = measure_work(step)
    assert forward[-1].flops == 2 * (2 * 2 * 64 * 4)
    assert backward[-1].flops == 5 * (2 * 2 * 64 * 4)


def test_causal_attention_counts_the_pairs_that_the_mask_leaves():
    # 8 queries see 1, 2, ... 8 keys: 36 pairs of 64. MindFormers: mask given, none after, sparse mode 0.
    step = attention("many none none bnsd none", many=2**31 - 1, none=0, bnsd=1)
    assert measure_work(step)[0][-1].flops == 2 * (2 * 2 * 36 * 4)


def test_attention_of_which_the_compiler_says_not_all_counts_every_pair():
    step = attention("unknown none none bnsd mode", none=0, bnsd=1, mode=0)
    assert measure_work(step)[0][-1].flops == 2 * (2 * 2 * 64 * 4)


def test_a_gradient_of_several_operands_is_no_attention():
    # LayerNormGrad of 8 rows of 4 numbers: one operation for each of 32 numbers, of whichever of its operands.
    operands = [shaped(name, "Mul", "x", shape) for name, shape in (("a", (8, 4)), ("b", (8, 1)), ("w", (4,)))]
    step = graph([*operands, shaped("g", "LayerNormGrad", "a a b b w", (8, 4), (4,), (4,))])
    assert forward_work(step, "g").flops == 8 * 4 + 4 + 4


@pytest.mark.parametrize("mode", [0, 2])
def test_queries_of_one_rank_are_those_of_the_last_one(mode):
    # 2 of 8 queries: the last two see 7 and 8 keys, in either way of giving the causal mask.
    shapes = {"query": (1, 2, 2, 4), "key": (1, 2, 8, 4)}
    step = attention("many none none bnsd mode", **shapes, many=2**31 - 1, none=0, bnsd=1, mode=mode)
    assert measure_work(step)[0][-1].flops == 2 * (2 * 2 * 15 * 4)


@pytest.mark.parametrize(
    ("layout", "shape"),
    [(0, (1, 8, 8)), (1, (1, 2, 8, 4)), (2, (8, 1, 8)), (3, (1, 8, 2, 4)), (4, (8, 2, 4))],
    ids=["BSH", "BNSD", "SBH", "BSND", "TND"],
)
def test_the_layout_says_where_the_sequence_is(layout, shape):
    # Batch 1, 8 positions, 2 heads of 4; as many operations in every layout.
    step = attention(
        "many many none layout all", query=shape, key=shape, value=shape, many=2**31 - 1, none=0, layout=layout, all=1
    )
    assert measure_work(step)[0][-1].flops == 2 * (2 * 2 * 64 * 4)


def test_values_may_be_shorter_than_keys():
    # Queries and keys of 6 numbers, values of 4, 1 head, 2 x 2 pairs: 2 * 4 * (6 + 4).
    tensors = [shaped("q", "Mul", "x", (1, 1, 2, 6)), shaped("k", "Mul", "x", (1, 1, 2, 6))]
    tensors.append(shaped("v", "Mul", "x", (1, 1, 2, 4)))
    step = graph([*tensors, shaped("f", "FlashAttentionScore", "q k v", (1, 1, 2, 8), (1, 1, 2, 8), (1, 1, 2, 4))])
    assert forward_work(step, "f").flops == 2 * 4 * (6 + 4)


@pytest.mark.parametrize(
    ("queries", "keys", "mode", "before", "after", "has_mask", "pairs"),
    [
        (4, 4, 0, 99, 0, True, 10),  # 1 + 2 + 3 + 4
        (4, 4, 0, 99, 0, False, 16),  # without a mask the numbers say nothing
        (4, 4, 0, 1, 0, True, 7),  # 1 + 2 + 2 + 2
        (4, 4, 1, 0, 0, True, 16),
        (4, 6, 2, 0, 0, True, 10),
        (4, 6, 3, 0, 0, True, 18),  # 3 + 4 + 5 + 6
        (6, 4, 3, 0, 0, True, 10),  # 0 + 0 + 1 + 2 + 3 + 4
        (4, 6, 4, 2, 0, True, 12),  # three each
        (4, 4, 7, 0, 0, True, 16),
    ],
)
def test_pairs_by_sparse_mode(queries, keys, mode, before, after, has_mask, pairs):
    assert count_attention_pairs(queries, keys, mode, before, after, has_mask) == pairs


def test_other_operators_touch_each_element_once():
    step = graph([shaped("a", "Mul", "x", (4, 8)), shaped("b", "Add", "a a", (4, 8))])
    work = forward_work(step, "b")
    assert (work.flops, work.read_bytes, work.written_bytes) == (32, 128, 64)
    assert work.inputs == (TensorType((4, 8), "float16", 64),) * 2


def test_a_reduction_works_on_its_input():
    step = graph([shaped("a", "Mul", "x", (4, 8)), shaped("b", "ReduceSum", "a", (4,))])
    work = forward_work(step, "b")
    assert (work.flops, work.read_bytes, work.written_bytes) == (32, 64, 8)


def test_a_lookup_reads_the_rows_that_it_gives():
    # A table of 100 rows, 5 indices of 4 bytes, rows of 8 numbers: 5 * 8 * 2 bytes out and as many of the table.
    table = shaped("t", "Mul", "x", (100, 8))
    indices = replace(shaped("i", "Mul", "x", (5,)), outputs=(TensorType((5,), "int32", 20),))
    work = forward_work(graph([table, indices, shaped("g", "Gather", "t i", (5, 8))]), "g")
    assert (work.read_bytes, work.written_bytes) == (80 + 20, 80)


def test_members_of_a_tuple_are_read_one_by_one():
    parts = [shaped("a", "Mul", "x", (4, 8)), shaped("b", "Mul", "x", (4, 8))]
    tied = shaped("t", "MakeTuple", "a b", (4, 8), (4, 8))
    work = forward_work(graph([*parts, tied, shaped("s", "AddN", "t", (4, 8))]), "s")
    assert (work.read_bytes, work.written_bytes) == (128, 64)


def test_constants_and_parameters_are_read_too():
    step = replace(graph([shaped("a", "Mul", "x c", (4, 8))]), types={"c": TensorType((8,), "float16", 16)})
    assert forward_work(step, "a").read_bytes == 16


def test_views_and_copies_are_no_work():
    step = graph(
        [shaped("a", "Mul", "x", (4, 8)), shaped("b", "Reshape", "a", (32,)), shaped("c", "MoveTo", "b", (32,))]
    )
    assert forward_work(step, "b") == forward_work(step, "c") == Work(0, 0, 0)


def test_equal_names_of_forward_and_backward_are_two_operators():
    step = graph([shaped("a", "Mul", "x", (4, 8))], [shaped("a", "Mul", "a_b", (2, 2))], saved="a")
    forward, backward = measure_work(step)
    assert (forward[0].read_bytes, forward[0].written_bytes) == (0, 64)
    assert (backward[0].read_bytes, backward[0].written_bytes) == (64, 8)


@pytest.mark.parametrize(("first", "second", "expected"), [(1, 0, True), (0, 1, False), (1, 1, True)])
def test_a_product_whose_first_operand_is_transposed_is_a_gradient_of_a_weight(first, second, expected):
    operands = [shaped("a", "Mul", "x", (8, 4)), shaped("b", "Mul", "y", (8, 16))]
    step = graph([*operands, shaped("c", "MatMul", "a b first second", (4, 16))], first=first, second=second)
    assert forward_work(step, "c").is_weight_gradient is expected
    bare = replace(step.forward[2], inputs=("first", "second"))
    assert forward_work(replace(step, forward=(bare,)), "c").is_weight_gradient is expected


def test_an_operator_that_reads_a_part_of_its_first_operand_reads_the_others_whole():
    """100 rows, of which 4 elements are taken by 16 indices."""
    operands = [shaped("table", "Mul", "x", (100,)), shaped("which", "Mul", "y", (16,))]
    assert forward_work(graph([*operands, shaped("taken", "Gather", "table which", (4,))]), "taken").flops == 16


def test_by_shapes_a_product_of_matrices_whose_first_is_transposed_is_a_gradient_of_a_weight():
    def is_gradient(*shapes):
        first, second, output = (TensorType.of(shape, "float32") for shape in shapes)
        return count_work("MatMul", (first, second), (output,)).is_weight_gradient

    assert is_gradient((8, 4), (8, 6), (4, 6)) and is_gradient((2, 8, 4), (2, 8, 6), (2, 4, 6))
    assert not is_gradient((8, 4), (4, 6), (8, 6)) and not is_gradient((4, 4), (4, 6), (4, 6))
    assert not is_gradient((4,), (4, 6), (6,))
