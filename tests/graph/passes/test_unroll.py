"""Copies of layers: the step of three layers unrolled to more is the step that was made with more."""

import re
from dataclasses import replace

import pytest

from mindswap.errors import SimulationError
from mindswap.graph.model import Graph, Node, TensorType
from mindswap.graph.passes.gather import WEIGHT_MARK
from mindswap.graph.passes.unroll import unroll_layers
from tests.graph.builders import graph, node
from tests.simulator.steps import hand_graph

COPY = re.compile(r"\d+@(\d+)(@saved)?$")


def renamed(name: str) -> str:
    """`matmul1@2`, the copy of layer 1 that is layer 2, as the step by hand calls it: `matmul2`."""
    return COPY.sub(lambda match: match[1] + ("_b" if match[2] else ""), name)


def plain(made: Node) -> Node:
    return replace(
        made, name=renamed(made.name), inputs=tuple(map(renamed, made.inputs)), origin=renamed(made.origin), scope=""
    )


def by_hand(step: Graph) -> tuple[list[Node], list[Node], set[tuple[str, str]]]:
    saved = {(renamed(entry.forward_name), renamed(entry.backward_name)) for entry in step.saved}
    read = {name for made in map(plain, step.backward) for name in made.inputs}
    return (
        [plain(made) for made in step.forward],
        [plain(made) for made in step.backward],
        {entry for entry in saved if entry[1] in read},
    )


@pytest.mark.parametrize("sources", [(0, 1, 2), (0, 1, 1, 2), (0, 1, 1, 1, 1, 2), (0, 2)])
def test_an_unrolled_step_is_that_of_so_many_layers(sources):
    unrolled = unroll_layers(hand_graph(3), sources)
    assert by_hand(unrolled.graph) == by_hand(hand_graph(len(sources)))


def test_the_copies_of_an_operator():
    copies = unroll_layers(hand_graph(3), (0, 1, 1, 2)).copies
    assert copies["gelu1"] == ("gelu1@1", "gelu1@2")
    assert copies["mul_grad1"] == ("mul_grad1@2", "mul_grad1@1")  # backward begins with the last layer


def test_every_copy_has_weights_of_its_own():
    def weight(index: int) -> str:
        return f"f{WEIGHT_MARK}model.layers.{index}.wq"

    loads = [node(f"load{i}", "Load", weight(i), layer=i) for i in range(3)]
    products = [node(f"x{i}", "MatMul", f"load{i} " + (f"x{i - 1}" if i else "ids"), layer=i) for i in range(3)]
    of_weight = TensorType((4,), "float32", 16)
    step = replace(
        graph([made for pair in zip(loads, products, strict=True) for made in pair], []),
        types={weight(i): of_weight for i in range(3)},
        frozen=("model.layers.1.wq",),
    )
    unrolled = unroll_layers(step, (0, 1, 1, 2)).graph
    assert [made.inputs[0] for made in unrolled.forward if made.op == "Load"] == [weight(i) for i in range(4)]
    assert {unrolled.types[weight(i)] for i in range(4)} == {of_weight}
    assert unrolled.frozen == ("model.layers.1.wq", "model.layers.2.wq")


def test_layers_that_exchange_other_tensors_do_not_fit():
    step = hand_graph(3)
    # Layer 2 reads two values of layer 1, which reads one of layer 0: the copies of layer 1 cannot be connected.
    forward = tuple(
        replace(made, inputs=("mul1", *made.inputs)) if made.name == "mul2" else made for made in step.forward
    )
    with pytest.raises(SimulationError, match="exchange different tensors"):
        unroll_layers(replace(step, forward=forward), (0, 1, 1, 2))
