"""Which products of backward give gradients of weights."""

from dataclasses import replace

from mindswap.graph.rewrite.settle import find_weight_gradients
from tests.graph.builders import graph, node


def test_products_that_end_in_gradients_of_weights():
    """dx goes on to a norm, whose gradient of its weight is a sum; dw goes out behind a cast, again behind none."""
    backward = [
        node("turned", "Transpose", "grad x_b"),
        node("dw", "MatMul", "turned x_b"),
        node("cast", "Cast", "dw"),
        node("dx", "MatMul", "grad w_b"),
        node("norm", "RmsNormGrad", "dx"),
        node("again", "MatMul", "x_b w_b", is_duplicate=True),
        node("dv", "MatMul", "again norm"),
        node("out", "MakeTuple", "cast norm dv", 0),
    ]
    step = graph([node("x", "Add"), node("w", "Load")], backward, saved="x w")
    assert find_weight_gradients(step) == {"dw", "cast", "dv"}


def test_a_product_that_is_read_elsewhere_is_none():
    backward = [
        node("dw", "MatMul", "grad x_b"),
        node("other", "Add", "dw"),
        node("out", "MakeTuple", "dw other", 0),
    ]
    step = graph([node("x", "Add")], backward, saved="x")
    assert find_weight_gradients(step) == frozenset()
    # Without the tuple that backward hands out, nothing is known of gradients.
    assert find_weight_gradients(replace(step, backward=step.backward[:1])) == frozenset()
