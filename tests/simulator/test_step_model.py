"""The step of `steps.py` under policies: figures by hand, and what holds under any policy."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.program_bounds import compute_only_ns, lower_bound_ns

from benchmarks.reference.program_check import check_program
from mindswap.config.pipeline_layout import Pipeline
from mindswap.errors import SimulationError
from mindswap.graph.model import Saved, TensorType
from mindswap.policy.model import ALL_LAYERS, Layers, LayerSwap, OpRecompute, OpSwap, Policy
from mindswap.simulator import step_model
from mindswap.simulator.cost.cost_table import CostTable
from mindswap.simulator.cost.transfer import send_ns
from mindswap.simulator.engine import run_program
from mindswap.simulator.memory import peak_memory
from mindswap.simulator.partition import BlockBuilder
from mindswap.simulator.placing import TransferCosts
from mindswap.simulator.program import MemoryKind, OpKind
from mindswap.simulator.step_model import StepModel
from tests.graph.builders import KIB
from tests.simulator.cost.builders import device
from tests.simulator.steps import SETTINGS, captured, hand_graph, model, placed
from tests.strength import examples

PATTERNS = ("mlp", r"mlp\.matmul", r"mlp\.gelu", "mul", "add")
NUM_LAYERS = 6


@st.composite
def policies(draw, swaps=True, recomputes=True, patterns=PATTERNS):
    layers = st.one_of(
        st.just(ALL_LAYERS),
        st.sets(st.integers(0, NUM_LAYERS - 1)).map(lambda chosen: Layers(tuple(sorted(chosen)))),
    )
    pattern, distance = st.sampled_from(patterns), st.integers(1, 12)
    swap = st.builds(OpSwap, pattern, layers, distance)
    # The residual sum too would have one layer after the other run again.
    recompute = st.builds(OpRecompute, st.sampled_from([name for name in patterns if name != "add"]), layers)
    return Policy(
        True,
        op_swap=tuple(draw(st.lists(swap, max_size=3))) if swaps else (),
        layer_swap=tuple(draw(st.lists(st.builds(LayerSwap, layers, distance), max_size=1))) if swaps else (),
        select_recompute=tuple(draw(st.lists(recompute, max_size=2))) if recomputes else (),
        layer_recompute=draw(layers) if recomputes and draw(st.booleans()) else Layers(()),
    )


def with_free_copies(num_layers):
    own = model(num_layers)
    own.transfers = TransferCosts(lambda size_bytes: 0, lambda size_bytes: 0)
    return own


MODEL = model(NUM_LAYERS)
FREE = with_free_copies(NUM_LAYERS)
KEEP_ALL = Policy(True)
SWAP_ALL = Policy(True, layer_swap=(LayerSwap(ALL_LAYERS, 1),))


def kept_bytes(program):
    return int(program.intervals.size_bytes[program.intervals.kind == MemoryKind.KEPT].sum())


# -- by hand ------------------------------------------------------------------------------------


def test_kept_bytes():
    # Three tensors for each of six layers, the embedding and the mask.
    assert kept_bytes(MODEL.program(KEEP_ALL)) == 20 * KIB
    # Whole layers: the output of each (which the next one reads), the embedding and the mask.
    assert kept_bytes(MODEL.program(Policy(True, layer_recompute=ALL_LAYERS))) == 8 * KIB
    # All three are swapped in each layer; the embedding and the mask are outside the layers.
    swapped = MODEL.program(SWAP_ALL)
    assert kept_bytes(swapped) == 2 * KIB
    assert swapped.copies.size_bytes.sum() == 18 * KIB


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Policy(True, select_recompute=(OpRecompute(".*", ALL_LAYERS),)), "only neighbouring layers"),
        # The last operator of a layer of `steps.py` is `add`.
        (Policy(True, select_recompute=(OpRecompute(".*", Layers((3,))),)), r"layer 3: .*\n    fix: recompute without"),
    ],
)
def test_layers_that_run_again_together_are_not_simulated(policy, words):
    with pytest.raises(SimulationError, match=words):
        MODEL.simulate(policy)


def test_a_policy_for_one_layer():
    program = MODEL.program(Policy(True, op_swap=(OpSwap(r"mlp\.gelu", Layers((4,)), 2),)))
    assert program.copies.layer.tolist() == [4]
    assert [str(program.labels[label]) for label in program.copies.label] == ["mlp.gelu"]
    # gelu of layer 4 is the second of its four; layers begin behind the embedding and the mask.
    assert program.copies.producer_op.tolist() == [2 + 4 * 4 + 1]
    # It is read by the first operator of backward of layer 4: 27 of forward, loss_grad, 4 of layer 5.
    assert program.copies.first_user_op.tolist() == [27 + 1 + 4]


def test_with_swap_disabled_nothing_moves_as_in_a_training():
    again = {"select_recompute": (OpRecompute(r"mlp\.gelu", ALL_LAYERS),)}
    off = MODEL.program(Policy(False, op_swap=(OpSwap("mlp", ALL_LAYERS, 2),), **again))
    assert len(off.copies) == 0
    assert (off.ops.kind == OpKind.RECOMPUTE).sum() == NUM_LAYERS
    on = MODEL.program(Policy(True, op_swap=(OpSwap("mlp", ALL_LAYERS, 2),), **again))
    assert len(on.copies) > 0


def test_recompute_adds_the_time_of_what_runs_again():
    plain = MODEL.program(KEEP_ALL)
    again = MODEL.program(Policy(True, select_recompute=(OpRecompute(r"mlp\.gelu", ALL_LAYERS),)))
    assert len(again.ops) - len(plain.ops) == NUM_LAYERS
    recomputed = again.ops.kind == OpKind.RECOMPUTE
    assert recomputed.sum() == NUM_LAYERS
    added = run_program(again).step_time_ns - run_program(plain).step_time_ns
    assert added == again.ops.duration_ns[recomputed].sum() > 0


@pytest.mark.parametrize(("data_parallel", "is_within"), [(4, True), (8, False)])
def test_stages_send_within_a_node_as_long_as_two_of_them_are_in_one(data_parallel, is_within):
    """Eight cards in a node, two stages of as many cards as data parallel has ranks."""
    own = model(4, data_parallel=data_parallel, pipeline=Pipeline(num_stages=2))
    costs = own.costs
    assert costs.device.num_cards_per_node == 8
    assert send_ns(10**9, True, costs.device) != send_ns(10**9, False, costs.device)
    assert own.transfers.send_ns(10**9) == send_ns(10**9, is_within, costs.device)


def test_blocks_are_made_once_for_layers_with_equal_settings():
    own = model(NUM_LAYERS)
    blocks = own.blocks(Policy(True, op_swap=(OpSwap("mlp", Layers((1, 2, 3)), 1),)))
    assert blocks[2] is blocks[3] is blocks[4]
    assert blocks[5] is not blocks[4]


def test_a_block_is_made_when_it_is_asked_for_and_its_step_is_read_once(monkeypatch):
    asked, read, own = [], [], model(NUM_LAYERS)
    make, cut = BlockBuilder.block, StepModel._block_builder
    monkeypatch.setattr(BlockBuilder, "block", lambda self, segment: asked.append(segment) or make(self, segment))
    monkeypatch.setattr(StepModel, "_block_builder", lambda self, *policy: read.append(policy) or cut(self, *policy))
    policy = Policy(True, op_swap=(OpSwap("mlp", ALL_LAYERS, 1),))
    own.layer_block(policy, 0)
    own.layer_block(policy, 0)
    assert asked == [own.captured.sample.layer_map[0]]
    assert len(read) == 1
    positions = len(set(own.captured.sample.layer_map))
    own.blocks(policy)  # with what is before and behind the layers, under no policy
    assert len(asked) == positions + 2
    assert len(read) == 2


def test_what_a_step_that_was_read_long_ago_has_is_read_again(monkeypatch):
    monkeypatch.setattr(step_model, "NUM_RECENT", 1)
    policy = Policy(True, op_swap=(OpSwap("mlp", Layers((1, 3)), 1),))
    few, many = model(NUM_LAYERS), MODEL
    assert few.simulate(policy).step_time_ns == many.simulate(policy).step_time_ns
    assert len(few._parts.cache.builders) == 1


def test_peak_is_the_sum_of_activations_and_static_memory():
    step = MODEL.simulate(KEEP_ALL)
    assert step.peak_bytes == step.activation_bytes[0] + MODEL.static[0].total_bytes
    assert step.step_time_ns == step.timeline.step_time_ns + sum(term.duration_ns for term in step.terms)
    # At the end of forward: 20 KiB kept, and what the loss makes.
    assert step.activation_bytes == (21 * KIB,)


# -- under any policy ---------------------------------------------------------------------------


@settings(max_examples=examples(10, 40))
@given(policies())
def test_programs_are_consistent_and_not_faster_than_the_bound(policy):
    program = MODEL.program(policy)
    check_program(program)
    timeline = run_program(program)
    assert timeline.step_time_ns >= lower_bound_ns(program)
    assert (peak_memory(timeline) > 0).all()


@settings(max_examples=examples(10, 40))
@given(policies())
def test_copies_that_cost_nothing_take_no_time(policy):
    program = FREE.program(policy)
    assert run_program(program).step_time_ns == compute_only_ns(program).max()


@settings(max_examples=examples(10, 40))
@given(policies(swaps=False), policies(swaps=False))
def test_more_recompute_never_keeps_more(one, other):
    both = replace(
        one,
        select_recompute=one.select_recompute + other.select_recompute,
        layer_recompute=ALL_LAYERS,
    )
    assert kept_bytes(MODEL.program(both)) <= kept_bytes(MODEL.program(one))


@settings(max_examples=examples(10, 30))
@given(policies())
def test_the_same_twice(policy):
    first, second = MODEL.simulate(policy), model(NUM_LAYERS).simulate(policy)
    assert (first.step_time_ns, first.peak_bytes) == (second.step_time_ns, second.peak_bytes)
    assert np.array_equal(first.timeline.op_start_ns, second.timeline.op_start_ns)


@settings(max_examples=examples(10, 40))
@given(policies(recomputes=False))
def test_every_byte_that_is_kept_is_swapped_or_kept(policy):
    program = MODEL.program(policy)
    assert kept_bytes(program) + program.copies.size_bytes.sum() == 20 * KIB


@pytest.mark.parametrize("num_layers", [3, 6, 40])
def test_swapping_everything_with_free_copies_needs_less_than_keeping_it(num_layers):
    free = with_free_copies(num_layers)
    swapped, kept = free.simulate(SWAP_ALL), free.simulate(KEEP_ALL)
    assert swapped.peak_bytes <= kept.peak_bytes
    # What is alive does not grow with the layers.
    assert swapped.activation_bytes[0] <= 10 * KIB


@settings(max_examples=examples(10, 40))
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 9), st.data())
def test_pipelines_run_to_their_end(num_stages, num_chunks, num_micro_batches, data):
    num_cells = num_stages * num_chunks
    if num_chunks > 1:  # MindSpore takes no fewer then
        num_micro_batches = max(num_micro_batches, num_stages)
    num_layers = data.draw(st.integers(max(3, num_cells), 14))
    rest = num_layers % num_cells
    rows = [[0] * num_stages for _ in range(num_chunks)]
    for _ in range(rest):
        rows[data.draw(st.integers(0, num_chunks - 1))][data.draw(st.integers(0, num_stages - 1))] += 1
    scheduler = data.draw(st.sampled_from(["1f1b", "gpipe", "seqpipe", "seqvpp"]))
    pipeline = Pipeline(num_stages, num_chunks, rows if num_chunks > 1 else rows[0], scheduler)
    own = model(num_layers, pipeline=pipeline, num_micro_batches=num_micro_batches)
    policy = data.draw(policies(patterns=("mlp", r"mlp\.gelu")))
    program = own.program(policy)
    check_program(program)
    timeline = run_program(program)
    assert (timeline.op_end_ns >= 0).all()
    alone = model(num_layers, num_micro_batches=num_micro_batches).program(policy)
    assert needed_bytes(program) == needed_bytes(alone)


@pytest.mark.parametrize(("num_stages", "num_chunks", "num_micro_batches"), [(4, 3, 5), (5, 2, 7), (5, 3, 12)])
def test_interleaved_pipelines_whose_last_group_is_not_full(num_stages, num_chunks, num_micro_batches):
    pipeline = Pipeline(num_stages, num_chunks)
    own = model(num_stages * num_chunks, pipeline=pipeline, num_micro_batches=num_micro_batches)
    assert own.simulate(KEEP_ALL).step_time_ns > 0


@settings(max_examples=20)
@given(st.integers(2, 4), st.integers(0, 5), st.data())
def test_zero_bubble_v_runs_to_its_end(num_stages, more, data):
    num_micro_batches = 2 * num_stages + more
    num_layers = 2 * num_stages
    own = model(num_layers, pipeline=Pipeline(num_stages, 2, 0, "zero_bubble_v"), num_micro_batches=num_micro_batches)
    program = own.program(data.draw(policies(patterns=("mlp", r"mlp\.gelu"))))
    check_program(program)
    assert run_program(program).step_time_ns > 0
    # The first stage has the embedding and the head: the mask is on every stage, the weight on the first only.
    assert own.layout.are_ends_together and own.static[-1].parameter_bytes == 0


def needed_bytes(program):
    """What backward needs, on the device or on the host; without the mask, which every chunk has."""
    own = (program.intervals.kind == MemoryKind.KEPT) & (
        program.intervals.label != label_of(program, "shared by layers")
    )
    return program.intervals.size_bytes[own].sum() + program.copies.size_bytes.sum()


def label_of(program, name):
    return program.labels.index(name)


def test_the_sample_stands_for_all_layers():
    assert captured(9).sample.layer_map == (0, 1, 1, 1, 1, 1, 1, 1, 2)


def test_what_layers_share_lives_from_its_maker_to_its_last_use():
    """Three layers: the mask is operator 1; forward has 2 + 3 * 4 + 1 = 15, backward the loss and 3 * 4 more.

    Layer 0 is the last of backward, operators 24 to 27; the first of them, the gradient of its product, reads the mask.
    """
    program = model(3).program(KEEP_ALL)
    (own,) = np.flatnonzero(program.intervals.label == label_of(program, "shared by layers"))
    assert (program.intervals.begin[own], program.intervals.end[own]) == (1, 24)


def test_labels_cut_out_of_the_tokens_are_there_from_the_begin():
    """Behind the layers, 14 operators: `logits` is 14, `OneHot` of the tokens 15, `Square` of another input 16."""
    step = hand_graph()
    *layers, loss = step.forward
    head = (
        placed("logits", "Neg", "add2", None, "loss"),
        placed("labels", "OneHot", "ids", None, "loss"),
        placed("answers", "Square", "others", None, "loss"),
        replace(loss, inputs=("logits", "labels", "answers")),
    )
    first = replace(step.backward[0], inputs=(*step.backward[0].inputs, "labels_b", "answers_b"))
    step = replace(
        step,
        forward=(*layers, *head),
        backward=(first, *step.backward[1:]),
        saved=(*step.saved, Saved("labels", "labels_b"), Saved("answers", "answers_b")),
        types={**step.types, **dict.fromkeys(("ids", "others"), TensorType.of((2, 8), "int32"))},
    )
    program = StepModel(replace(captured(), graph=step), CostTable(device()), SETTINGS).program(Policy(True))
    begins = {
        str(program.labels[label]): int(begin)
        for label, begin in zip(program.intervals.label, program.intervals.begin, strict=True)
    }
    assert (begins["loss.Neg"], begins["loss.OneHot"], begins["loss.Square"]) == (14, 0, 16)


def test_the_flops_of_a_step_are_those_of_its_matrix_products():
    """One of 2 * 256 * 256 in forward and one in backward of each layer; norms and activations do not count."""
    assert model(3).model_flops() == 3 * 2 * 131_072
    assert model(6, num_micro_batches=2).model_flops() == 2 * 6 * 2 * 131_072


def test_a_model_made_again_keeps_what_is_not_given():
    fixed, keep = Policy(True, layer_recompute=Layers((0,))), Policy(True)
    own = MODEL.with_fixed_policy(fixed)
    assert own.layers.fixed is own.with_costs(FREE.costs).layers.fixed is fixed
    assert MODEL.layers.fixed is not fixed and own.with_fixed_policy(keep).layers.fixed is keep
    assert (own.costs, own.settings) == (MODEL.costs, MODEL.settings)
    other = replace(MODEL.settings, seq_length=17)
    assert MODEL.with_settings(other).settings is other and MODEL.with_costs(FREE.costs).costs is FREE.costs


def test_flops_are_of_all_cards_that_do_the_same_and_all_micro_batches():
    """Two data parallel ranks in each of two stages, which share the layers: 2 x 2 micro-batches."""
    cards = model(NUM_LAYERS, data_parallel=2, pipeline=Pipeline(num_stages=2), num_micro_batches=2)
    assert cards.model_flops() == 4 * MODEL.model_flops() > 0


def with_prediction() -> StepModel:
    """The model of three layers with a layer for multi-token prediction of two operators, which the loss reads."""
    step, cell = captured(), "model.mtp.layers.0"
    more = [placed("inner", "MatMul", "add2", None, f"{cell}.mlp"), placed("outer", "Gelu", "inner", None, cell)]
    loss = replace(step.graph.forward[-1], inputs=("add2", "outer"))
    forward = (*step.graph.forward[:-1], *more, loss)
    gradient = replace(step.graph.backward[0], inputs=("add2_b", "outer_b", "inner_b"))
    saved = (*step.graph.saved, Saved("inner", "inner_b"), Saved("outer", "outer_b"))
    changed = replace(step.graph, forward=forward, backward=(gradient, *step.graph.backward[1:]), saved=saved)
    return StepModel(replace(step, graph=changed), CostTable(device()), SETTINGS)


@pytest.mark.parametrize(
    ("policy", "is_recomputed"),
    [
        (Policy(True, layer_recompute=ALL_LAYERS), True),
        (Policy(True, layer_recompute=Layers((2,))), True),
        (Policy(True, layer_recompute=Layers((0, 1))), False),
        (Policy(True, select_recompute=(OpRecompute("mlp", ALL_LAYERS),)), False),
        (Policy(True), False),
    ],
)
def test_layers_for_multi_token_prediction_are_recomputed_with_the_last_layer(policy, is_recomputed):
    """What is in the layer is recomputed in backward, its output is kept, as MindFormers sets it."""
    built = with_prediction()
    *_, epilogue = built.blocks(policy)
    again = [str(op.label) for op in epilogue.backward if op.kind is OpKind.RECOMPUTE]
    assert again == (["model.mtp.layers.0.mlp.MatMul"] if is_recomputed else [])
    kept = [str(t.label) for t in epilogue.tensors if t.is_forward and t.uses.first_backward >= 0]
    inner = [] if is_recomputed else ["model.mtp.layers.0.mlp.MatMul"]
    assert [label for label in kept if "mtp" in label] == [*inner, "model.mtp.layers.0.Gelu"]
