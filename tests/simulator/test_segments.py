"""Sections of the step of `steps.py`, and of operators that the compiler lists late."""

from dataclasses import replace

import pytest

from mindswap.errors import SimulationError
from mindswap.graph.model import Saved, TensorType
from mindswap.simulator.segments import backward_segments, count_layers, find_start_operators, forward_segments
from tests.graph.builders import node
from tests.simulator.steps import hand_graph

STEP = hand_graph(2)


def test_forward():
    # A read of the weight, embedding and mask; two layers of four; the loss.
    assert count_layers(STEP) == 2
    assert forward_segments(STEP, 2) == [-1, -1, -1, *[0] * 4, *[1] * 4, 2]


def test_backward():
    # The loss, layers 1 and 0, the embedding.
    assert backward_segments(STEP, 2, {"loss"}) == [2, *[1] * 4, *[0] * 4, -1]


def test_what_runs_again_is_where_it_is_needed_first():
    # The compiler lists it behind the loss; the second gradient of layer 0 is the first that reads it.
    again = node("again", "Gelu", "", layer=0, is_duplicate=True)
    first, *layers = STEP.backward
    layers[5] = replace(layers[5], inputs=(*layers[5].inputs, "again"))
    step = replace(STEP, backward=(first, again, *layers))
    assert backward_segments(step, 2, {"loss"})[:2] == [2, 0]


def test_a_gradient_behind_the_layers_stays_there_wherever_it_is_listed():
    late = replace(node("late", "MatMul", "loss_grad", layer=None), origin="loss")
    step = replace(STEP, backward=(*STEP.backward, late))
    assert backward_segments(step, 2, {"loss"})[-2:] == [-1, 2]


def test_a_step_without_layers():
    with pytest.raises(SimulationError, match="no transformer layers"):
        count_layers(replace(STEP, forward=STEP.forward[:3]))


def test_what_reads_a_value_from_behind_the_layers_is_behind_them_too():
    # It also reads a gradient of layer 1, and the compiler left it without operator of forward.
    step = replace(STEP, saved=(*STEP.saved, Saved("loss", "loss_b")))
    late = node("late", "Mul", f"loss_b {STEP.backward[2].name}", layer=None)
    step = replace(step, backward=(*step.backward, late))
    assert backward_segments(step, 2, {"loss"})[-2:] == [-1, 2]


def test_what_follows_from_the_loss_alone_and_several_layers_read_is_behind_them():
    """The compiler makes the gradient of what all routers add to the loss once, in the layer that comes first."""
    step = hand_graph(3)
    loss, *layers = step.backward
    share = node("share", "RealDiv", "loss_grad count", layer=2)
    alone = node("alone", "Neg", "loss_grad", layer=2)  # its own layer reads it: stays
    layers[1] = replace(layers[1], inputs=(*layers[1].inputs, "share", "alone"))
    layers[9] = replace(layers[9], inputs=(*layers[9].inputs, "share"))
    step = replace(step, backward=(loss, share, alone, *layers))
    assert backward_segments(step, 3, {"loss"})[:3] == [3, 3, 2]


def test_labels_of_the_input_of_the_tokens_are_ready_at_once():
    """`tokens` is read before the layers. The loss asks for labels of their own, and for the weight of the head."""
    embed = next(
        made.name for made, segment in zip(STEP.forward, forward_segments(STEP, 2), strict=True) if segment < 0
    )
    *layers, loss = STEP.forward
    first = [replace(made, inputs=(*made.inputs, "tokens")) if made.name == embed else made for made in layers]
    behind = [
        node("labels", "StridedSlice", "tokens", layer=None),
        node("one_hot", "OneHot", "labels", layer=None),
        node("other", "OneHot", "targets", layer=None),
        node("head", "Cast", "weight", layer=None),
        node("mul", "Mul", f"one_hot {layers[-1].name}", layer=None),
    ]
    types = {name: TensorType((2, 8), "int32", 64) for name in ("tokens", "targets")}
    step = replace(STEP, forward=(*first, *behind, loss), types={**STEP.types, **types})
    segments = [*forward_segments(STEP, 2)[:-1], *[2] * 6]
    assert find_start_operators(step, segments, 2) == {"labels", "one_hot"}


@pytest.mark.parametrize(
    ("readers", "segment"),
    [
        ((2,), 2),  # the layer in which the compiler makes it
        ((2, 1), 2),  # and the one that backward runs next: neighbours may share a tensor
        ((2, 0), 3),  # further away: only what is made behind the layers is read by any of them
        ((2, 1, 0), 3),
    ],
)
def test_a_share_of_the_loss_is_behind_the_layers_if_others_than_neighbours_read_it(readers, segment):
    step = hand_graph(3)
    loss, *layers = step.backward
    share = node("share", "RealDiv", "loss_grad count", layer=2)
    for layer in readers:
        position = 4 * (2 - layer) + 1  # layers of four operators, the last layer first
        layers[position] = replace(layers[position], inputs=(*layers[position].inputs, "share"))
    step = replace(step, backward=(loss, share, *layers))
    assert backward_segments(step, 3, {"loss"})[:2] == [3, segment]
