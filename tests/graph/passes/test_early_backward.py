"""Operators of backward that need no gradient run in forward, by hand, as two dry runs with experts have them."""

from dataclasses import replace

from mindswap.graph.passes.early_backward import run_early
from tests.graph.builders import graph, node


def step(reader: str = "TransposeExtView"):
    """Tokens are selected twice for experts, which compute an activation again for backward."""
    forward = [
        node("first", "IndexSelect", "tokens here"),
        node("gate", "GroupedMatmul", "first"),
        node("swiglu", "Swiglu", "gate"),
        node("second", "IndexSelect", "swiglu there"),
        node("here", "Sort", "tokens"),
        node("there", "Sort", "tokens"),
    ]
    copy = node("copy", "Swiglu", "tied", is_duplicate=True)
    backward = [
        node("sum2", "UnsortedSegmentSum", "dout there_b size"),
        node("tied", "Depend", "gate_b dout"),
        replace(copy, origin="swiglu"),
        node("turned", reader, "copy" if reader == "TransposeExtView" else "copy dout"),
        node("sum1", "UnsortedSegmentSum", "turned here_b size"),
    ]
    return graph(forward, backward, saved="gate here there")


def names(nodes):
    return " ".join(each.name for each in nodes)


def test_zeros_of_the_first_selection_are_made_in_forward():
    early = run_early(step())
    assert names(early.forward) == "first first:zeros gate swiglu second here there"
    inputs = {each.name: each.inputs for each in early.backward}
    assert (inputs["sum1"], inputs["sum2"]) == (
        ("turned", "here_b", "size", "first:zeros"),
        ("dout", "there_b", "size"),
    )
    assert early.index.nodes["first:zeros"].size_bytes == early.index.nodes["first"].size_bytes


def test_a_copy_that_a_view_reads_first_is_kept_from_forward():
    early = run_early(step())
    assert names(early.backward) == "sum2 tied turned sum1"
    assert early.index.forward_names["copy"] == "swiglu"


def test_a_copy_waits_for_what_its_first_reader_reads_besides():
    early = run_early(step(reader="SwigluGrad"))
    assert names(early.backward) == "sum2 tied copy turned sum1"


def test_other_steps_are_unchanged():
    swapping = step()
    swapping = replace(swapping, forward=(*swapping.forward, node("out", "MoveTo", "gate")))
    assert run_early(swapping) is swapping
    before = graph([node("x", "Mul")], [node("y", "Mul", "x_b")], saved="x")
    assert run_early(before) is before
