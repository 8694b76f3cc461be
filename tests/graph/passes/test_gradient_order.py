"""Order of the products of backward where gradients of weights are accumulated."""

from dataclasses import replace

import pytest

from mindswap.graph.passes.gradient_order import (
    delay_head_gradient,
    find_gradient_pairs,
    find_head_gradients,
    order_weight_gradients,
)
from mindswap.policy.model import Policy
from mindswap.simulator.compiled_layers import CompiledLayers
from tests.compiled_steps import PLAIN, captured
from tests.graph.builders import graph, node

# Two linear operators after an activation; x, y and z are saved, w and v are weights.
BACKWARD = [
    node("g", "AddN", "d e"),
    node("to_z", "MatMul", "g v"),
    node("act", "Mul", "to_z act_b"),
    node("flat", "Reshape", "g shape"),
    node("of_v", "MatMul", "z_b flat"),
    node("of_v_sum", "Cast", "of_v kind"),
    node("to_x", "MatMul", "act w"),
    node("of_w", "MatMul", "x_b act"),
    node("all", "MakeTuple", "of_v_sum of_w"),
]


def names(backward):
    step = graph([], backward, saved="", shape=1, kind=1)
    return " ".join(each.name for each in order_weight_gradients(step, find_gradient_pairs(step)).backward)


def test_the_gradient_of_a_weight_comes_just_before_that_of_the_input():
    """With its view of the gradient, and the cast before the sum; also where it came long before."""
    assert names(BACKWARD) == "g flat of_v of_v_sum to_z act of_w to_x all"
    early = [*BACKWARD[:3], BACKWARD[7], *BACKWARD[3:7], BACKWARD[8]]
    assert names(early) == "g flat of_v of_v_sum to_z act of_w to_x all"


def test_one_that_needs_the_gradient_of_the_input_stays():
    """And one that reads a recomputed tensor, and one whose gradient no other product reads."""
    g = BACKWARD[0]
    later = [g, node("to_x", "MatMul", "g w"), node("again", "Mul", "to_x y_b"), node("of_w", "MatMul", "again g")]
    assert names([*later, node("all", "MakeTuple", "of_w")]) == "g to_x again of_w all"
    again = [node("copy", "Mul", "a_b b_b", is_duplicate=True), node("of_w", "MatMul", "copy g")]
    assert names([g, node("to_x", "MatMul", "g w"), *again, node("all", "MakeTuple", "of_w")]) == "g to_x copy of_w all"
    alone = [g, node("scaled", "Mul", "g s"), node("of_w", "MatMul", "x_b g"), node("all", "MakeTuple", "of_w")]
    assert names(alone) == "g scaled of_w all"


HEAD = [node("normed", "RmsNorm", "x"), node("head", "MatMul", "normed weight", layer=None)]
WEIGHT = node("weight", "Load", "lm_head", layer=None)
TO_NORM = node("to_norm", "MatMul", "logits weight_b", layer=None)
NORM = node("norm_grad", "RmsNormGrad", "to_norm", layer=None)
OF_HEAD = node("of_head", "MatMul", "logits normed_b", layer=None)
OF_HEAD_CAST = node("of_head_cast", "Cast", "of_head kind", layer=None)
OF_LAYER = (node("to_x", "MatMul", "norm_grad w"), node("of_w", "MatMul", "norm_grad x_b"))


def delayed(*backward, outputs="of_head_cast of_w", forward=HEAD):
    """Return the order of backward; gradients of a head, of what else is given, and of a layer."""
    begin, end = node("logits", "Sub", "exp_b labels_b", layer=None), node("all", "MakeTuple", outputs, layer=None)
    step = graph([WEIGHT, *forward], [begin, *backward, *OF_LAYER, end], saved="normed weight", kind=1, shape=1)
    head = find_head_gradients(step)
    return None if head is None else " ".join(each.name for each in delay_head_gradient(step, head).backward)


def test_the_gradient_of_the_head_waits_for_that_of_the_last_norm():
    """With all that reads it before; that of a layer stays."""
    expected = "logits to_norm norm_grad of_head of_head_cast to_x of_w all"
    assert delayed(OF_HEAD, OF_HEAD_CAST, TO_NORM, NORM) == expected
    reduced = node("reduced", "AllReduce", "of_head", layer=None)
    cast = node("of_head_cast", "Cast", "reduced kind", layer=None)
    order = delayed(OF_HEAD, TO_NORM, reduced, cast, NORM)
    assert order == "logits to_norm norm_grad of_head reduced of_head_cast to_x of_w all"


def test_the_gradient_of_the_head_stays_where_it_cannot_wait():
    """For a view of what it reads, which newer models make in backward; without a norm; or for one that reads it."""
    view = node("view", "Reshape", "normed_b shape", layer=None, is_duplicate=True)
    of_view = node("of_head", "MatMul", "logits view", layer=None)
    assert delayed(view, of_view, OF_HEAD_CAST, TO_NORM, NORM).split()[1:4] == ["view", "of_head", "of_head_cast"]
    other = node("norm_grad", "Mul", "to_norm", layer=None)
    assert delayed(OF_HEAD, OF_HEAD_CAST, TO_NORM, other).split()[1:4] == ["of_head", "of_head_cast", "to_norm"]
    reader = node("norm_grad", "RmsNormGrad", "to_norm of_head", layer=None)
    assert delayed(OF_HEAD, OF_HEAD_CAST, TO_NORM, reader) is None


def test_the_gradient_of_the_head_is_never_moved_to_an_earlier_position():
    assert delayed(TO_NORM, NORM, OF_HEAD, OF_HEAD_CAST).split()[1:5] == [
        "to_norm", "norm_grad", "of_head", "of_head_cast"
    ]  # fmt: skip
    cast_later = delayed(OF_HEAD, TO_NORM, NORM, OF_HEAD_CAST)
    assert cast_later == "logits to_norm norm_grad of_head of_head_cast to_x of_w all"


def test_other_products_outside_of_the_layers_are_not_the_head():
    """That of an embedding's projection stays where it is, also before the gradient of a norm."""
    projection = node("projected", "MatMul", "normed other", layer=None)
    forward = [HEAD[0], projection, node("head", "MatMul", "projected weight", layer=None)]
    of_other = node("of_other", "MatMul", "to_norm normed_b", layer=None)
    to_x = node("to_other", "MatMul", "to_norm other_b", layer=None)
    of_head = node("of_head", "MatMul", "logits projected_b", layer=None)
    order = delayed(
        of_head, OF_HEAD_CAST, TO_NORM, of_other, to_x, NORM, outputs="of_head_cast of_other of_w", forward=forward
    )
    assert order == "logits to_norm of_other to_other norm_grad of_head of_head_cast to_x of_w all"


def test_no_gradient_is_delayed_with_two_heads_or_none():
    """Two with multi-token prediction, which sums their gradients; none where the last product is one of a layer."""
    second = node("prediction", "MatMul", "normed weight", layer=None)
    backward = (OF_HEAD, OF_HEAD_CAST, TO_NORM, NORM)
    assert delayed(*backward, forward=[*HEAD, second]) is None
    assert delayed(*backward, forward=[HEAD[0], node("head", "MatMul", "normed weight", layer=1)]) is None
    assert delayed(*backward, forward=[HEAD[0]]) is None
    tied = node("sum", "AddN", "of_head of_embedding_b", layer=None)  # the embedding reads the same weight
    assert delayed(OF_HEAD, tied, TO_NORM, NORM, outputs="sum of_w") is None


@pytest.mark.parametrize(
    ("name", "is_delayed"),
    [("llama2_70b_tp8", True), ("qwen3_small", False), ("deepseek_v3_small", False)],
)
def test_gradients_of_compiled_steps(name, is_delayed):
    """Newer models have a view in backward, and one that predicts more tokens has two heads."""
    step = captured(f"planned/{name}")
    late, early = (
        CompiledLayers(step, replace(PLAIN, lacks_lazy_inline=lacks)).rewritten(Policy(is_swap_enabled=False), 0)
        for lacks in (True, False)
    )
    assert ([each.name for each in late.backward] != [each.name for each in early.backward]) is is_delayed
