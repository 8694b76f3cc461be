"""Order of the products of backward where gradients of weights are accumulated."""

from mindswap.graph.passes.gradient_order import delay_head_gradient, find_gradient_pairs, order_weight_gradients
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


def delayed(of_head, *before):
    """Gradients of a head, of the norm before it, and of a layer; `of_head` reads what the head read."""
    backward = [
        node("logits", "Sub", "exp_b labels_b", layer=None),
        *before,
        node("of_head", "MatMul", of_head, layer=None),
        node("of_head_cast", "Cast", "of_head kind", layer=None),
        node("to_norm", "MatMul", "logits head", layer=None),
        node("norm_grad", "RmsNormGrad", "to_norm normed_b", layer=None),
        node("to_x", "MatMul", "norm_grad w"),
        node("of_w", "MatMul", "norm_grad x_b"),
        node("all", "MakeTuple", "of_head_cast of_w", layer=None),
    ]
    step = graph([], backward, saved="", kind=1, shape=1)
    return " ".join(each.name for each in delay_head_gradient(step, find_gradient_pairs(step)).backward)


def test_the_gradient_of_the_head_waits_for_that_of_the_last_norm():
    """Unless backward makes a view of what it reads, which newer models do; those of layers stay."""
    assert delayed("logits normed_b") == "logits to_norm norm_grad of_head of_head_cast to_x of_w all"
    view = node("view", "Reshape", "normed_b shape", layer=None, is_duplicate=True)
    assert delayed("logits view", view) == "logits view of_head of_head_cast to_norm norm_grad to_x of_w all"
