"""Forward of a micro-batch in two parts, in the order of layers."""

from mindswap.graph.passes.interleaved_batch import is_slice_of_part, order_by_layer
from tests.graph.builders import graph, node


def part(number: int) -> list:
    """Tokens and labels of a part, two layers, logits and loss; the mask of the first part is for both."""
    mask = [node("mask", "Less", "positions", layer=None)] if number == 0 else []
    return [
        node(f"x{number}", "StridedSlice", "ids", layer=None, cell_path=f"interleave_inputs.{number}"),
        node(f"labels{number}", "StridedSlice", f"x{number}", layer=None),
        node(f"h{number}", "Gather", f"x{number} table", layer=None),
        *mask,
        node(f"a{number}", "MatMul", f"h{number} mask", layer=0),
        node(f"b{number}", "MatMul", f"a{number} mask", layer=1),
        node(f"loss{number}", "Sub", f"b{number} labels{number}", layer=None),
    ]


def test_all_parts_of_a_layer_come_before_the_next_layer():
    step = graph([*part(0), *part(1), node("sum", "Add", "loss0 loss1", layer=None)])
    names = " ".join(entry.name for entry in order_by_layer(step).forward)
    # Labels are read after the layers only.
    assert names == "x0 h0 mask x1 h1 a0 a1 b0 b1 labels0 loss0 labels1 loss1 sum"


def test_a_part_is_sliced_from_an_input_of_the_step():
    slices = [entry.name for entry in part(0) if is_slice_of_part(entry)]
    assert slices == ["x0"]
