"""Views where a tensor arrives by communication."""

from dataclasses import replace

from mindswap.graph.arrivals import with_arrivals
from mindswap.graph.model import Saved
from tests.graph.builders import graph, node


def test_one_view_for_all_readers_and_what_backward_reads():
    forward = [node("x", "Cast", "norm"), node("a", "MatMul", "x w"), node("b", "MatMul", "x v"), node("c", "Neg", "x")]
    backward = [
        replace(node("da", "MatMul", "grad x_b"), origin="a"),
        replace(node("dc", "Neg", "grad x_b"), origin="c"),
    ]
    step = graph(forward, backward, saved="x")
    seen = with_arrivals(step, [("x", forward[1]), ("x", forward[2])])
    assert [(entry.name, entry.inputs) for entry in seen.forward] == [
        ("x", ("norm",)),
        ("x:arrived", ("x",)),
        ("a", ("x:arrived", "w")),
        ("b", ("x:arrived", "v")),
        ("c", ("x",)),
    ]
    assert seen.saved == (Saved("x", "x_b"), Saved("x:arrived", "x_b:arrived"))
    assert [entry.inputs for entry in seen.backward] == [("grad", "x_b:arrived"), ("grad", "x_b")]
