"""The order of the two halves of a layer."""

from dataclasses import replace

import pytest

from mindswap.graph.passes.interleaved_halves import Branches, order_halves
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


def test_a_sum_that_reads_a_tuple_of_both_halves_runs_as_early_as_the_tuple():
    *before, g1, z1, z = step().forward
    forward = (*before, node("both", "MakeTuple", "y0 y1"), node("sum", "AddN", "both"), g1, z1, z)
    ordered = order_halves(replace(step(), forward=forward), set(), {"y0", "y1"})
    assert names(ordered.forward) == "x0 w y0 x1 y1 both sum g0 v z0 g1 z1 z"


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
