"""The order of the two halves of a layer."""

from dataclasses import replace

from mindswap.graph.sharding.overlap import order_halves
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


def test_what_puts_both_halves_together_waits_for_neither_in_their_place():
    """`mid` reads what y1 sends before g1 does; g1 waits all the same, until z0 has run."""
    *before, g1, z1, z = step().forward
    ordered = order_halves(
        replace(step(), forward=(*before, node("mid", "Add", "y0 y1"), g1, z1, z)), set(), {"y0", "y1"}
    )
    assert names(n for n in ordered.forward if n.name != "mid") == "x0 w y0 x1 y1 g0 v z0 g1 z1 z"
