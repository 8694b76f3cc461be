"""Gradients of weights over time: the rule in bytes by hand, and in a step made by hand."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest

from benchmarks.reference.program_check import check_program
from mindswap.config.pipeline_layout import Pipeline
from mindswap.config.weight_sharding import WeightSharding
from mindswap.graph.model import Graph, TensorType
from mindswap.policy.model import ALL_LAYERS, Policy
from mindswap.simulator.captured_step import GradientRule
from mindswap.simulator.cost.cost_table import CostTable
from mindswap.simulator.cost.static_memory import Parameter
from mindswap.simulator.engine import run_program
from mindswap.simulator.memory import interval_times, profile_memory
from mindswap.simulator.program import MemoryKind, OpKind, Program
from mindswap.simulator.stage_weights import _closing_memory
from mindswap.simulator.step_model import StepModel
from tests.graph.builders import KIB, node
from tests.simulator.cost.builders import device
from tests.simulator.steps import SETTINGS, captured, gradient_of, hand_graph

CUT_BY_4 = WeightSharding(num_ranks=4, threshold_bytes=KIB)
KEEP_ALL = Policy(True)
KEPT, SENT = GradientRule(), GradientRule(is_shared=True)
CUT, SUMMED = GradientRule(sharding=CUT_BY_4, is_shared=True), GradientRule(True, CUT_BY_4, is_shared=True)
RELEASED = replace(CUT, sharding=replace(CUT_BY_4, is_released=True))


@pytest.mark.parametrize(
    ("rule", "is_sharded_weight", "passing", "waiting", "kept", "final"),
    [
        # 1024 bytes of 512 numbers: the optimizer gets 2048 bytes of float32, or a quarter of them.
        (KEPT, False, 0, 0, 1024, 2048),
        # What a ReduceScatter or an AllReduce has read stays beside what it gives,
        (CUT, True, 0, 1024, 256, 512),
        (CUT, False, 0, 1024, 1024, 2048),
        (SENT, False, 0, 1024, 1024, 2048),
        # but where backward waits for the AllGathers of the same ranks.
        (RELEASED, True, 1024, 0, 256, 512),
        # With a sum the optimizer gets a new tensor of its type, and nothing of the gradient stays.
        (SUMMED, True, 1024, 0, 0, 256),
    ],
)
def test_what_becomes_of_a_gradient(rule, is_sharded_weight, passing, waiting, kept, final):
    known = TensorType((4, 128) if is_sharded_weight else (5, 128), "float16", 1024)
    assert rule.is_sharded_weight(known, 0) == is_sharded_weight
    is_reduced = rule.is_reduced(known, 0)
    assert is_reduced == (rule is not KEPT)
    assert rule.parts_bytes(1024, is_sharded_weight, is_reduced) == (passing, waiting, kept)
    assert rule.final_bytes(1024, 512, 4 if is_sharded_weight else 1) == final


def test_small_weights_and_odd_first_dimensions_are_whole():
    assert CUT.is_sharded_weight(TensorType((4, 64), "float32", 1024), 0)
    assert not CUT.is_sharded_weight(TensorType((4, 32), "float32", 512), 0)
    assert not CUT.is_sharded_weight(TensorType((5, 64), "float32", 1280), 0)


def test_a_weight_before_the_layers_is_whole_and_one_of_its_shape_behind_them_is_not():
    known = TensorType((4, 64), "float32", 1024)
    rule = replace(CUT, unsharded_weights=frozenset({(-1, (4, 64))}), unreplicated_weights=frozenset({(0, (4, 64))}))
    assert [rule.is_sharded_weight(known, where) for where in (-1, 0, 1)] == [False, True, True]
    assert [rule.is_reduced(known, where) for where in (-1, 0, 1)] == [True, False, True]


def with_gradients(casts: bool = False, more: Mapping[str, str] = MappingProxyType({})) -> Graph:
    """The step of `steps.py` with a gradient of 1 KiB for each layer behind its `matmul_grad`, and of the embedding.

    `more` gradients of the layer, name and operator, are behind the first one.
    """
    plain = hand_graph()
    backward, gradients = [], ["embed_grad"]
    for made in plain.backward:
        backward.append(made)
        if made.name.startswith("matmul_grad"):
            index = made.layer_index
            for name, op in {"dw": "MatMul", **more}.items():
                backward.append(gradient_of(f"{name}{index}", op, f"gelu_grad{index}", index, f"matmul{index}"))
                gradients.append(f"{name}{index}")
            if casts:
                backward.append(gradient_of(f"cast{index}", "Cast", f"dw{index}", index, f"matmul{index}"))
                gradients[-1] = f"cast{index}"
    backward.append(node("out", "MakeTuple", " ".join(gradients), 0, layer=None))
    return replace(plain, backward=tuple(backward))


def model(casts: bool = False, **settings) -> StepModel:
    """With an optimizer that makes nothing of gradients but new weights."""
    step = replace(captured(), graph=with_gradients(casts))
    return StepModel(step, CostTable(device()), replace(SETTINGS, **{"optimizer": "FusedAdamW"} | settings))


def gradient_bytes(own: StepModel, policy: Policy = KEEP_ALL) -> list[int]:
    """Memory of gradients whenever it changes, from the first one on."""
    timeline = run_program(own.program(policy))
    over_time = profile_memory(timeline, 0).by_kind_bytes[MemoryKind.GRADIENT]
    return over_time[np.flatnonzero(np.diff(over_time, prepend=0))].tolist()


def test_gradients_stay_from_their_maker_to_the_end():
    # Layers 2, 1, 0, then the embedding, whose gradient in float32 is what it is already.
    assert gradient_bytes(model()) == [KIB, 2 * KIB, 3 * KIB, 4 * KIB, 0]
    assert gradient_bytes(model(), Policy(True, layer_recompute=ALL_LAYERS)) == [KIB, 2 * KIB, 3 * KIB, 4 * KIB, 0]


def test_the_parallel_optimizer_keeps_a_part_of_each_and_what_was_sent():
    each = KIB + KIB // 4
    assert gradient_bytes(model(sharding=CUT_BY_4)) == [each, 2 * each, 3 * each, 4 * each, 0]


def test_with_level3_only_the_part_stays():
    # The whole and a quarter of it for two operators, then the quarter. The embedding comes right behind layer 0.
    whole, part = KIB, KIB // 4
    expected = [whole + part, part, whole + 2 * part, 2 * part, whole + 3 * part, whole + 4 * part, 0]
    assert gradient_bytes(model(sharding=replace(CUT_BY_4, is_released=True))) == expected


def test_the_whole_gradient_is_cast_and_sent():
    # As without casts: what a cast makes is what the ReduceScatter takes. What the cast reads is no gradient.
    assert gradient_bytes(model(casts=True, sharding=CUT_BY_4)) == gradient_bytes(model(sharding=CUT_BY_4))


def test_sums_take_gradients_at_once():
    # Layers 2, 1 and 0, each before the gradient of its input, and the embedding, twice. The one weight of the step is
    # the embedding: at last the optimizer gets a copy of its sum, when the gradient has gone.
    own = model(num_micro_batches=2)
    assert own.layout.closing_bytes == (KIB,)
    assert gradient_bytes(own) == [KIB, 0] * 8
    assert own.static[0].gradient_bytes == KIB


def test_half_precision_weights_get_gradients_of_float32():
    """One weight of 1 KiB with 512 numbers: 2 KiB for the optimizer, of which 1 KiB is there."""
    step = captured()
    half = TensorType((512,), "float16", KIB)
    forward = [replace(made, outputs=(half,)) if made.op == "Load" else made for made in with_gradients().forward]
    step = replace(step, graph=replace(with_gradients(), forward=tuple(forward)))
    own = StepModel(step, CostTable(device()), replace(SETTINGS, optimizer="FusedAdamW"))
    assert own.layout.closing_bytes == (KIB,)
    # What the last operator reads goes before the optimizer begins: there is room for that.
    assert gradient_bytes(own) == [KIB, 2 * KIB, 3 * KIB, 4 * KIB, 0]


@pytest.mark.parametrize(
    ("settings", "num_more"),
    [
        # One weight of 1 KiB: the gradient times `1 - beta1`, and in its turn the first moment and that times `beta1`.
        ({"optimizer": "AdamW", "is_rate_constant": True}, 3),
        # And the weight less its decay, which is a constant part of it, or a part that is computed in each step.
        ({"optimizer": "AdamW", "is_rate_constant": True, "is_decaying": True}, 4),
        ({"optimizer": "AdamW"}, 4),
        ({"optimizer": "AdamW", "is_fused": True}, 2),  # no product: the first moment, and that times `beta1`
        ({"optimizer": "Adam", "is_decaying": True}, 0),
    ],
)
def test_an_optimizer_of_single_operators_makes_products_first(settings, num_more):
    own = model(**settings)
    assert own.layout.closing_bytes == (num_more * KIB,)
    # The last operator reads 1 KiB, which makes room for as much.
    assert gradient_bytes(own) == [KIB, 2 * KIB, 3 * KIB, (4 + max(num_more - 1, 0)) * KIB, 0]


@pytest.mark.parametrize(
    ("settings", "num_more"),
    [
        # One weight of 1 KiB: two states, a copy of the first and its product; the gradient is there.
        ({"optimizer": "AdamW", "is_rate_constant": True}, 4),
        # And the weight less its decay.
        ({"optimizer": "AdamW", "is_rate_constant": True, "is_decaying": True}, 5),
        ({"optimizer": "AdamW"}, 5),
        ({"optimizer": "FusedAdamW"}, 2),
        # With sums over micro-batches the gradient is a copy, too.
        ({"optimizer": "AdamW", "is_rate_constant": True, "num_micro_batches": 2}, 5),
    ],
)
def test_states_on_the_host_come_with_their_weights(settings, num_more):
    assert model(is_state_offloaded=True, **settings).layout.closing_bytes == (num_more * KIB,)


@pytest.mark.parametrize(
    ("sizes_kib", "closing_kib"),
    [
        # States of both are there at the second, whose gradient is left, and two products: 2 + 4 + 2 + 4.
        ((1, 2), 12),
        # At the first: its states, both gradients, two products: 4 + 3 + 4. At the second less: 6 + 1 + 2.
        ((2, 1), 11),
    ],
)
def test_states_on_the_host_stay_to_the_end_and_gradients_go(sizes_kib, closing_kib):
    weights = [Parameter("w", size * KIB, size * KIB // 4) for size in sizes_kib]
    settings = replace(SETTINGS, optimizer="AdamW", is_rate_constant=True, is_state_offloaded=True, num_micro_batches=2)
    assert _closing_memory(weights, GradientRule(True), settings).total_bytes == closing_kib * KIB


@pytest.mark.parametrize(
    ("settings", "sizes_kib", "closing_kib"),
    [
        # Of the second weight a moment, that times its beta, and the weight less its decay, without the first gradient.
        ({"is_fused": True}, (1, 2), 3 * 2 - 1),
        # The first is decayed later: two of it.
        ({"is_fused": True}, (2, 1), 2 * 2),
        ({"is_fused": True, "is_rate_constant": True}, (1, 2), 2 * 2 - 1),
        # Products of both are there first, 3; three of the second without gradient and product of the first.
        ({}, (1, 2), 3 + 3 * 2 - 2),
        ({}, (2, 1), 3 + 3 * 2),
    ],
)
def test_weights_are_updated_in_turn(settings, sizes_kib, closing_kib):
    weights = [Parameter("w", size * KIB, size * KIB // 4) for size in sizes_kib]
    settings = replace(SETTINGS, optimizer="AdamW", **settings)
    assert _closing_memory(weights, GradientRule(), settings).total_bytes == closing_kib * KIB


@pytest.mark.parametrize(
    ("settings", "is_summed", "sizes_kib", "closing_kib"),
    [
        # Sums of 1 and 2 KiB are copied. Of the second weight both moments, the decayed and the new weight of 4 KiB in
        # float32, without both gradients: 4 * 4 - 3.
        ({}, True, (1, 2), 3 + 16 - 3),
        # Of the first weight, without its gradient: 4 * 4 - 2.
        ({}, True, (2, 1), 3 + 16 - 2),
        # Nothing is decayed: both moments and the new weight, without both gradients.
        ({"is_rate_constant": True}, True, (1, 2), 3 + 12 - 3),
        # Gradients in float32 are 3 KiB more than those that backward leaves: 4 * 4 - 4 without the first, 2.
        ({}, False, (1, 2), 3 + 12 - 2),
        # Single operators: as if stored in float32, 2 + 4 of products, and three of the second without the first.
        ({"is_fused": False}, True, (1, 2), 3 + 6 + 12 - 1 - 2),
    ],
)
def test_the_new_value_of_a_weight_in_16_bits_is_a_tensor_of_float32(settings, is_summed, sizes_kib, closing_kib):
    # Witness: finetune_codellama_34b_16p full of benchmarks/dryrun/broad.yaml: 4375 and 4219 MiB.
    weights = [Parameter("w", size * KIB, size * KIB // 2) for size in sizes_kib]
    settings = replace(SETTINGS, **{"optimizer": "AdamW", "is_fused": True} | settings)
    assert _closing_memory(weights, GradientRule(is_summed), settings).total_bytes == closing_kib * KIB


def test_what_waited_for_communication_makes_room_for_the_optimizer():
    """1 KiB that an AllReduce has read is gone when the 3 KiB of products are made."""
    assert model(optimizer="AdamW", is_rate_constant=True, data_parallel=2).layout.closing_bytes == (2 * KIB,)


def test_products_of_what_is_cut_are_cut_and_replace_what_was_sent():
    # Another rank has the rest: 4 KiB waited for communication, and are gone.
    settings = {"optimizer": "AdamW", "is_rate_constant": True, "sharding": replace(CUT_BY_4, is_released=True)}
    assert model(**settings).layout.closing_bytes == (3 * KIB // 4,)
    assert model(**settings | {"num_micro_batches": 2}).layout.closing_bytes == (KIB,)


def test_memory_ends_at_the_static_level_and_is_never_negative():
    for own in (model(), model(sharding=CUT_BY_4), model(num_micro_batches=3), model(casts=True)):
        for policy in (Policy(True), Policy(True, layer_recompute=ALL_LAYERS)):
            profile = profile_memory(run_program(own.program(policy)), 0)
            assert (profile.by_kind_bytes >= 0).all()
            assert (profile.by_kind_bytes[:, -1] == 0).all()


def zero_bubble_v(graph: Graph) -> tuple[Program, np.ndarray]:
    """Two stages of two layers, and what stage 1 does in backward of micro-batch 3, the last one."""
    step, pipeline = replace(captured(4), graph=graph), Pipeline(2, 2, 0, "zero_bubble_v")
    own = StepModel(step, CostTable(device()), replace(SETTINGS, pipeline=pipeline, num_micro_batches=4))
    program = own.program(KEEP_ALL)
    stage = np.arange(program.stage_starts[1], program.stage_starts[2])
    is_last = (program.ops.micro_batch[stage] == 3) & (program.ops.kind[stage] == OpKind.BACKWARD)
    return program, stage[is_last]


def test_zero_bubble_v_computes_gradients_of_weights_apart():
    """Two stages of two layers; stage 1 has layers 1 and 2, the turn of the V.

    Its micro-batch 3 is cut in both chunks, the others are not: per layer 5 operators of backward, one of them `dw`.
    """
    program, is_last = zero_bubble_v(with_gradients())
    check_program(program)
    labels = [str(program.labels[label]) for label in program.ops.label[is_last]]
    # Layers are 2 and 1; mul, gelu, matmul, add of each, then the two products that were left.
    each = ["mul", "mlp.gelu", "mlp.matmul", "add"]
    assert labels == [*each, *each, "mlp.matmul", "mlp.matmul"]
    # `dw` reads the gradient of gelu, which is there until then.
    profile = profile_memory(run_program(program), 1)
    assert (profile.by_kind_bytes >= 0).all() and (profile.by_kind_bytes[:, -1] == 0).all()
    (begins, ends) = interval_times(run_program(program))
    intervals = program.intervals
    gelu = (intervals.stage == 1) & (intervals.label == program.labels.index(("mlp.gelu",)))
    is_made_back = gelu & (intervals.kind == MemoryKind.TRANSIENT) & np.isin(intervals.begin, is_last)
    assert sorted(intervals.end[is_made_back]) == sorted(is_last[-2:])
    assert (begins[is_made_back] < ends[is_made_back]).all()


def test_zero_bubble_v_adds_a_gradient_in_the_half_that_makes_it():
    """Per layer two products, which are put off, and between them a reduction, which is not.

    Four operators, the reduction and the sum behind it of each layer, then the four products. The operator behind a
    gradient adds it; behind the second product of a layer its half is at its end.
    """
    program, ops = zero_bubble_v(with_gradients(more={"db": "ReduceSum", "dv": "MatMul"}))
    intervals = program.intervals
    own = (intervals.kind == MemoryKind.GRADIENT) & np.isin(intervals.begin, ops)
    spans = zip(np.searchsorted(ops, intervals.begin[own]), np.searchsorted(ops, intervals.end[own]), strict=True)
    assert len(ops) == 14
    assert sorted(spans) == [(3, 4), (8, 9), (10, 11), (11, 11), (12, 13), (13, 13)]


def test_tensors_are_aligned():
    # 1 KiB in pieces of 768 bytes: 1536.
    own = StepModel(replace(captured(), graph=with_gradients()), CostTable(device(pool_alignment_bytes=768)), SETTINGS)
    assert gradient_bytes(own)[0] == 1536
    assert own.simulate(Policy(True)).activation_bytes[0] % 768 == 0


@pytest.mark.parametrize(
    ("is_shared", "num_copies", "closing_kib"),
    [
        (True, None, 2),  # data parallel ranks have it: its gradient waited for communication, 1 KiB, and is gone
        (True, 2, 2),  # experts that two ranks have: likewise
        (True, 1, 3),  # experts of this rank alone: nothing is sent
        (False, None, 3),
    ],
)
def test_only_what_other_ranks_have_waited_for_communication(is_shared, num_copies, closing_kib):
    """One weight of 1 KiB under AdamW: 3 KiB of products, less what is gone by then."""
    weights = [Parameter("w", KIB, KIB // 4, num_copies=num_copies)]
    settings = replace(SETTINGS, optimizer="AdamW", is_rate_constant=True)
    assert _closing_memory(weights, GradientRule(is_shared=is_shared), settings).total_bytes == closing_kib * KIB
