"""Work of operators, counted by hand."""

from dataclasses import replace

import pytest

from mindswap.graph.model import TensorType
from mindswap.graph.work import Work, measure_work
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
    assert measure_work(step)["c"].flops == flops


def test_attention_forward_is_two_products_and_backward_five():
    # batch 1, heads 2, 8 queries of 4 numbers, 16 keys: one product is 2 * 2 * 8 * 16 * 4.
    product = 2 * 2 * 8 * 16 * 4
    inputs = [shaped("q", "Mul", "x", (1, 2, 8, 4)), shaped("k", "Mul", "x", (1, 2, 16, 4))]
    step = graph([*inputs, shaped("f", "FlashAttentionScore", "q k", (1, 2, 8, 4))])
    assert measure_work(step)["f"].flops == 2 * product
    step = graph(inputs, [shaped("g", "FlashAttentionScoreGrad", "q_b k_b", (1, 2, 8, 4), (1, 2, 16, 4))], saved="q k")
    assert measure_work(step)["g"].flops == 5 * product


def test_other_operators_touch_each_element_once():
    step = graph([shaped("a", "Mul", "x", (4, 8)), shaped("b", "Add", "a a", (4, 8))])
    assert measure_work(step)["b"] == Work(flops=32, read_bytes=128, written_bytes=64)


def test_views_and_copies_are_no_work():
    step = graph(
        [shaped("a", "Mul", "x", (4, 8)), shaped("b", "Reshape", "a", (32,)), shaped("c", "MoveTo", "b", (32,))]
    )
    assert measure_work(step)["b"] == measure_work(step)["c"] == Work(0, 0, 0)


def test_equal_names_of_forward_and_backward_are_two_operators():
    step = graph([shaped("a", "Mul", "x", (4, 8))], [shaped("a", "Mul", "a_b", (2, 2))], saved="a")
    assert measure_work(step)["a"].flops == 32
    assert measure_work(step)["a'"] == Work(flops=4, read_bytes=64, written_bytes=8)
