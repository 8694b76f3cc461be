"""What a choice costs a layer."""

import pytest

from mindswap.planner.catalog import backward_ns
from mindswap.simulator.layer_block import Block, BlockOp
from tests.simulator.builders import KINDS


def backward(text: str) -> Block:
    """Operators of backward as `tests.simulator.builders` writes them."""
    words = (word.partition("@") for word in text.split())
    ops = [BlockOp(f"op{i}", KINDS[w[0]], int(w[1:]), int(at or -1)) for i, (w, _, at) in enumerate(words)]
    return Block((), tuple(ops), (), ())


@pytest.mark.parametrize(
    ("ops", "expected_ns"),
    [
        ("B10 B5 R5", 20),
        ("B10 C20@0 B5 B5@1", 10 + 20 + 5),  # the last one waits
        ("B10 C20@0 R30 B5@1", 10 + 30 + 5),  # what runs again hides it
        ("C20 B5@0", 20 + 5),  # of what the layer before has made
        ("B10 C30@0", 10),  # for which nothing waits
        ("", 0),
    ],
)
def test_backward_of_a_layer_waits_for_its_communication(ops, expected_ns):
    assert backward_ns(backward(ops)) == expected_ns
