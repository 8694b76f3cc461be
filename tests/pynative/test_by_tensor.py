"""Which tensor goes with which name, on one layer made by hand.

Operators of forward: 0 `attention.wq.matmul` makes Q, 1 `feed_forward.mul` reads a view of Q, of which a kernel saves a
copy, and makes M, 2 `feed_forward.w2.matmul` saves M. Q, its copy and M have 16, 16 and 64 bytes.
"""

from dataclasses import replace

from mindswap.config.parse import parse_document
from mindswap.policy.cell_tree import CellNode
from mindswap.policy.formats.mindformers2.tables import Model, paths_from_outline
from mindswap.policy.model import ALL_LAYERS, OpRecompute, OpSwap, Policy
from mindswap.policy.resolve import resolve_layer
from mindswap.pynative.by_tensor import (
    choose_1_9,
    choose_2x,
    differences,
    find_distances_2x,
    treatment_in_1_9,
    treatment_in_2x,
)
from mindswap.pynative.schedule import Distance, Unit
from mindswap.pynative.trace import Operator, Save, Trace, TracedStorage, Value
from mindswap.rules.checker import check_pynative

COPY, PRODUCT = 0, 1  # numbers of the saved storages
MATMUL, MUL = CellNode("matmul", "MatMul", True), CellNode("mul", "Mul", True)
LAYER = CellNode(
    "",
    "Layer",
    children=(
        CellNode("attention", "Attention", children=(CellNode("wq", "Linear", children=(MATMUL,)),)),
        CellNode("feed_forward", "FeedForward", children=(MUL, CellNode("w2", "Linear", children=(MATMUL,)))),
    ),
)
OUTLINE = {
    "cells": {
        "self_attention": {"cells": {"linear_qkv": {"calls": ["matmul"]}}},
        "mlp": {"calls": ["mul"], "cells": {"linear_fc2": {"calls": ["matmul"]}}},
    }
}
MODEL = Model((paths_from_outline(OUTLINE),) * 2, "by hand")


def step():
    """The layer, and one behind it that saves nothing."""
    q, view = Value(0, 16, (4,), "float32"), Value(0, 16, (2, 2), "float32")
    copy, product = Value(1, 16, (2, 2), "float32", copy_of=0), Value(2, 64, (16,), "float32")
    operators = (
        Operator("MatMul", 0, ("attention", "wq", "matmul"), True, (), (q,)),
        Operator("Reshape", 0, ("feed_forward", "Reshape"), True, (q,), (view,)),
        Operator("Mul", 0, ("feed_forward", "mul"), True, (copy,), (product,)),
        Operator("MatMul", 0, ("feed_forward", "w2", "matmul"), True, (product,), ()),
    )
    storages = (TracedStorage(16, None, 2, "", 1), TracedStorage(64, 2, 3, "", 2))
    saves = (Save(COPY, 0, 2, (2, 2), "float32"), Save(PRODUCT, 0, 3, (16,), "float32"))
    return Trace(2, operators, storages, saves, ())


def of_policy(trace=None, **entries):
    policy = Policy(is_swap_enabled=True, **entries)
    return treatment_in_1_9(trace or step(), [resolve_layer(policy, index, LAYER) for index in range(2)])


def of_text(text, trace=None):
    header = "training: {}\nparallelism: {}\nmodel: {num_hidden_layers: 2}\n"
    return treatment_in_2x(
        trace or step(), check_pynative(parse_document((header + text).encode(), "x.yaml"), model=MODEL).effect
    )


def test_in_1_9_a_tensor_goes_with_its_maker_and_a_copy_of_a_view_with_what_made_the_view():
    assert of_policy(op_swap=(OpSwap(r"feed_forward\.mul", ALL_LAYERS, 1),)).moved == {PRODUCT}
    assert of_policy(op_swap=(OpSwap("attention", ALL_LAYERS, 1),)).moved == {COPY}


def test_of_two_inputs_of_one_shape_a_copy_stands_for_the_one_in_its_memory():
    """`mul` reads a gate of the shape of the copy, too, and before it; `feed_forward` makes the gate."""
    trace = step()
    matmul, view, mul, w2 = trace.operators
    gate = replace(mul, inputs=(), outputs=(Value(3, 16, (2, 2), "float32"),))
    mul = replace(mul, inputs=(*gate.outputs, *mul.inputs))
    saves = (replace(trace.saves[COPY], operator=3), replace(trace.saves[PRODUCT], operator=4))
    trace = replace(trace, operators=(matmul, view, gate, mul, w2), saves=saves)
    assert of_policy(trace, op_swap=(OpSwap("attention", ALL_LAYERS, 1),)).moved == {COPY}


def test_where_an_operator_may_be_another_one_both_have_to_be_named():
    """`mul`, or another `Mul` of that cell, makes M and saves the copy: `mul` alone does not say so, the cell does."""
    trace = step()
    unsure = replace(trace.operators[2], alternative_names=("mul2",))
    trace = replace(trace, operators=(*trace.operators[:2], unsure, *trace.operators[3:]))
    assert of_policy(trace, op_swap=(OpSwap(r"feed_forward\.mul", ALL_LAYERS, 1),)).moved == frozenset()
    assert of_policy(trace, op_swap=(OpSwap("feed_forward", ALL_LAYERS, 1),)).moved == {PRODUCT}
    swap = "swap: {enable: True, op_swap: [{op_name: 'mlp%s', layers: [0]}]}"
    assert of_text(swap % r"\.mul", trace).moved == frozenset()
    assert of_text(swap % "", trace).moved == {COPY, PRODUCT}
    names = {"attention", "feed_forward", "feed_forward.mul"}
    assert choose_1_9(trace, frozenset({PRODUCT}), names.__contains__).paths == {"feed_forward": (0,)}
    assert choose_2x(trace, frozenset({COPY}), MODEL.layers[0], 1).paths == {}


def test_in_2x_a_tensor_goes_with_the_cell_that_saves_it():
    swap = "swap: {enable: True, op_swap: [{op_name: 'mlp\\.%s', layers: [0]}]}"
    assert of_text(swap % "mul").moved == {COPY}
    assert of_text(swap % "linear_fc2").moved == {PRODUCT}
    both = "swap: {enable: True, op_swap: [{op_name: '%s', layers: [0]}, {op_name: '%s', layers: [0]}]}"
    assert of_text(both % (r"mlp\.mul", r"self_attention")).moved == {COPY}


def test_what_only_a_recomputed_cell_saves_is_made_again():
    """The cell `mlp` makes M and alone saves it; the copy is of what attention made, so it is an input of the cell."""
    fate = of_policy(select_recompute=(OpRecompute("feed_forward", ALL_LAYERS),))
    assert (fate.recomputed, fate.moved) == ({PRODUCT}, frozenset())
    assert of_text("recompute: {mode: select, select_module: {mlp: [0]}}").recomputed == {PRODUCT}


def test_in_1_9_what_somebody_outside_of_a_recomputed_cell_saves_is_kept_unless_its_operator_is_named():
    """`feed_forward` saves a copy of what `attention` makes."""
    cell, operator = OpRecompute("attention", ALL_LAYERS), OpRecompute(r"attention\.wq\.matmul", ALL_LAYERS)
    assert of_policy(select_recompute=(cell,)).recomputed == frozenset()
    assert of_policy(select_recompute=(cell, operator)).recomputed == {COPY}


def test_what_another_layer_saves_too_is_not_made_again():
    trace = step()
    other = replace(trace.operators[3], layer_index=1)
    trace = replace(
        trace, operators=(*trace.operators, other), saves=(*trace.saves, Save(PRODUCT, 1, 4, (16,), "float32"))
    )
    assert of_policy(trace, select_recompute=(OpRecompute("feed_forward", ALL_LAYERS),)).recomputed == frozenset()


def test_in_2x_a_single_operator_gives_up_its_output_and_a_cell_does_not():
    recompute = "recompute: {mode: select, select_module: {%s: [0]}}"
    assert of_text(recompute % "mlp.mul").recomputed == {PRODUCT}
    assert of_text(recompute % "self_attention").recomputed == frozenset()
    # Of a whole layer both are made and saved within it.
    assert of_text("recompute: {mode: full, full_recompute_layer: [0]}").recomputed == {COPY, PRODUCT}


def test_names_that_move_what_is_wanted():
    """`mlp` saves both: 16 bytes besides 64 are more than a tenth, so only `linear_fc2` is named. `feed_forward` makes
    M alone, which is all of it."""
    assert choose_2x(step(), frozenset({PRODUCT}), MODEL.layers[0], 1).paths == {"mlp.linear_fc2": (0,)}
    assert choose_2x(step(), frozenset({PRODUCT}), MODEL.layers[0], 0).paths == {}
    names = {"attention", "attention.wq", "feed_forward", "feed_forward.mul"}
    assert choose_1_9(step(), frozenset({PRODUCT}), names.__contains__).paths == {"feed_forward": (0,)}


def test_of_a_cell_that_moves_as_much_unwanted_as_wanted_nothing_is_named():
    """`mlp.mul` saves the copy alone and is no name here, so only `mlp` would move it: 16 bytes, and as many more."""
    trace = step()
    storages = (trace.storages[COPY], replace(trace.storages[PRODUCT], size_bytes=16))
    known = replace(MODEL.layers[0], callables=())
    assert choose_2x(replace(trace, storages=storages), frozenset({COPY}), known, 1).paths == {}
    smaller = (trace.storages[COPY], replace(trace.storages[PRODUCT], size_bytes=15))
    assert choose_2x(replace(trace, storages=smaller), frozenset({COPY}), known, 1).paths == {"mlp": (0,)}


def test_differences_are_named_by_their_makers():
    assert differences(step(), {PRODUCT}, {COPY}, "moves", "2.x") == [
        "2.x no longer moves feed_forward.mul, 64 B, layer 0",
        "2.x now also moves attention.wq.matmul, 16 B, layer 0",
    ]


def test_several_tensors_of_a_cell_are_one_line():
    """M and what `w2` makes, 64 and 32 bytes, are both of `feed_forward`."""
    trace = step()
    w2 = replace(trace.operators[3], outputs=(Value(3, 32, (8,), "float32"),))
    trace = replace(
        trace,
        operators=(*trace.operators[:3], w2),
        storages=(*trace.storages, TracedStorage(32, 3, 3, "", 3)),
        saves=(*trace.saves, Save(2, 0, 3, (8,), "float32")),
    )
    assert differences(trace, {PRODUCT, 2}, set(), "moves", "2.x") == [
        "2.x no longer moves 2 tensors of feed_forward, 96 B, layer 0"
    ]


def test_what_comes_from_outside_stays_in_2x_only_where_several_layers_save_it():
    """M made outside of the layers: with one saver it moves with that, as an input; with one in each layer it stays."""
    swap = "swap: {enable: True, op_swap: [{op_name: 'mlp\\.linear_fc2', layers: [0]}]}"
    trace = step()
    outside = replace(trace.operators[2], layer_index=None)
    trace = replace(trace, operators=(*trace.operators[:2], outside, trace.operators[3]))
    assert of_text(swap, trace).moved == {PRODUCT}
    recomputed = replace(trace.operators[3], layer_index=1)
    both = replace(
        trace, operators=(*trace.operators, recomputed), saves=(*trace.saves, Save(PRODUCT, 1, 4, (16,), "float32"))
    )
    assert of_text(swap, both).moved == frozenset()
    own = replace(both, operators=(*both.operators[:2], replace(outside, layer_index=0), *both.operators[3:]))
    assert of_text(swap, own).moved == {PRODUCT}


def test_the_own_executor_has_a_distance_for_each_entry_and_op_swap_goes_before_layer_swap():
    text = "training: {}\nmodel: {num_hidden_layers: 2}\nmindswap: {swap_engine: mindswap}\n"
    text += "swap: {enable: True, default_prefetch: 1, layer_swap: [{layers: [1]}, {layers: [0], prefetch: 3}],"
    text += " op_swap: [{op_name: mlp.linear_fc2, layers: [0], prefetch: 2}]}"
    checked = check_pynative(parse_document(text.encode(), "x.yaml"), model=MODEL)
    assert not checked.problems
    found = find_distances_2x(step(), checked.effect)
    assert found == {index: Distance(count, Unit.LAYERS, True) for index, count in {COPY: 3, PRODUCT: 2}.items()}
    # The layer of the trace as layer 1 of the model, in the second stage of a pipeline: an entry of layer 0 is not its.
    found = find_distances_2x(step(), checked.effect, layer_indices=(1,))
    assert found == dict.fromkeys((COPY, PRODUCT), Distance(1, Unit.LAYERS, True))
