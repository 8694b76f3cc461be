"""Gradients of operators that a layer calls once for each half."""

from mindswap.graph.sharding.overlap import Branches
from tests.graph.builders import node


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
    assert not Branches([node("a", "StridedSlice", "x"), node("b", "MatMul", "a w")], {}, {}).are_there
    assert Branches(halves(), {}, {}).are_there
