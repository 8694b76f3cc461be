"""Simulations of steps that MindSpore compiled: what holds for time, memory and copies under every policy."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from mindswap.config.pipeline_layout import Pipeline
from mindswap.config.weight_sharding import WeightSharding
from mindswap.policy.cell_tree import exact_pattern
from mindswap.policy.model import ALL_LAYERS, Layers, LayerSwap, OpRecompute, OpSwap, Policy
from mindswap.simulator.cost.cost_table import CostTable
from mindswap.simulator.cost.device_file import load_device
from mindswap.simulator.layer_swap_2x import LayerSwapModel2x
from mindswap.simulator.program import NO_OP, OpKind, Program
from mindswap.simulator.step_model import StepModel
from mindswap.simulator.summary import LayerRow, StageReport, find_causes, measure_layers, measure_stages
from tests.compiled_steps import NAMES, PLAIN, captured

pytestmark = pytest.mark.long
SHARDED = replace(PLAIN, data_parallel=4, sharding=WeightSharding(4, 0), is_clipping=True, is_decaying=True)
RELEASED = replace(SHARDED, sharding=WeightSharding(4, 0, is_released=True))
ACCUMULATED = replace(SHARDED, num_micro_batches=3, is_accumulating=True, is_accumulator_sharded=True)
SETTINGS = {
    "plain": PLAIN,
    "fused": replace(PLAIN, is_fused=True, is_clipping=True),
    "sharded": SHARDED,
    "released": RELEASED,
    "released, states on the host": replace(RELEASED, is_state_offloaded=True),
    "3 micro-batches": ACCUMULATED,
    "2 stages": replace(
        SHARDED, pipeline=Pipeline(2), num_micro_batches=4, is_accumulating=True, shares_casts=True
    ),
    "2 stages of 2 chunks": replace(
        PLAIN, pipeline=Pipeline(2, num_chunks=2), num_micro_batches=4, is_accumulating=True, data_parallel=2
    ),
}  # fmt: skip
PATTERN = r".*\.(matmul|cast|reshape|mul|softmax|add)"
KEEP = Policy(True)
SWAP = Policy(True, op_swap=(OpSwap(PATTERN, Layers((0, 2)), 5), OpSwap(".*add", ALL_LAYERS, 2)))
BOTH = Policy(True, op_swap=(OpSwap(PATTERN, Layers((1,)), 9),), layer_recompute=Layers((2,)))
FULL = Policy(True, layer_recompute=ALL_LAYERS)
EVERY_STEP = pytest.mark.parametrize("name", NAMES)
EVERY_SETTING = pytest.mark.parametrize("settings", SETTINGS)
EVERY_POLICY = pytest.mark.parametrize("policy", [SWAP, BOTH, FULL], ids=["swap", "both", "full"])


@dataclass(frozen=True)
class Figures:
    """A simulated step."""

    step_ns: int
    overhead_ns: int
    stages: Sequence[StageReport]
    layers: Sequence[LayerRow]
    exposed_ns: int
    copied_ns: Sequence[int]  # time of each stage for copies of weights in forward


@cache
def make_model(name: str, settings: str) -> StepModel:
    return StepModel(captured(name), CostTable(load_device("atlas_800t_a2")), SETTINGS[settings])


def measure(model: StepModel, policy: Policy) -> Figures:
    step = model.simulate(policy)
    return Figures(
        step.step_time_ns, sum(term.duration_ns for term in step.terms), measure_stages(step.timeline, step.static),
        measure_layers(step.timeline), sum(cause.exposed_ns for cause in find_causes(step.timeline)),
        time_copies_ns(step.timeline.program),
    )  # fmt: skip


def time_copies_ns(program: Program) -> list[int]:
    is_copy = np.array([str(label).endswith("TensorMove") for label in program.labels])[program.ops.label]
    is_copy &= program.ops.kind == OpKind.FORWARD
    copied_ns = np.where(is_copy, program.ops.duration_ns, 0)
    return [int(copied_ns[first:last].sum()) for first, last in pairwise(program.stage_starts.tolist())]


@cache
def simulate(name: str, settings: str, policy: Policy) -> Figures:
    return measure(make_model(name, settings), policy)


@EVERY_STEP
@EVERY_SETTING
@EVERY_POLICY
def test_a_stage_computes_waits_or_idles_for_the_whole_step(name, settings, policy):
    step = simulate(name, settings, policy)
    for stage in step.stages:
        waits_ns = stage.copy_out_ns + stage.copy_in_ns + stage.communication_ns + stage.bubble_ns
        assert stage.compute_ns + waits_ns + step.overhead_ns == step.step_ns
    assert step.exposed_ns == sum(stage.copy_out_ns + stage.copy_in_ns for stage in step.stages)


@EVERY_STEP
@EVERY_SETTING
@EVERY_POLICY
def test_a_policy_changes_computing_by_what_it_recomputes_and_by_copies_of_weights_that_it_avoids(
    name, settings, policy
):
    keep, step = simulate(name, settings, KEEP), simulate(name, settings, policy)
    avoided_ns = [before - after for before, after in zip(keep.copied_ns, step.copied_ns, strict=True)]
    for before, after, copied_ns in zip(keep.stages, step.stages, avoided_ns, strict=True):
        recompute_ns = after.recompute_ns - before.recompute_ns
        assert after.compute_ns - before.compute_ns == recompute_ns - copied_ns
        assert recompute_ns >= 0 <= copied_ns
        assert not copied_ns or recompute_ns  # only recompute avoids copies
    assert step.overhead_ns <= keep.overhead_ns  # a longer backward hides more of the gradients' reduction
    assert step.step_ns >= keep.step_ns - sum(avoided_ns)


@pytest.mark.parametrize(("name", "num_copies"), [("sequences", 9), ("experts", 17)])
def test_only_recompute_avoids_copies_of_weights(name, num_copies):
    """Norms of the layers, which full recompute includes, and the one after the layers, which it does not."""
    keep, swap, full = (simulate(name, "2 stages of 2 chunks", policy).copied_ns for policy in (KEEP, SWAP, FULL))
    assert keep == swap
    assert sum(keep) > (num_copies - 1) * sum(full) > 0


@pytest.mark.parametrize(("num_micro_batches", "is_recomputed"), [(1, [False, False, False]), (3, [False, True, True])])
def test_casts_of_weights_are_recomputed_with_a_cell_in_a_step_of_several_micro_batches(
    num_micro_batches, is_recomputed
):
    """Named, with the cell around it, with the layer. Of one micro-batch the backend merges both casts."""
    settings = replace(PLAIN, num_micro_batches=num_micro_batches, is_accumulating=num_micro_batches > 1)
    model = StepModel(captured("sequences"), CostTable(load_device("atlas_800t_a2")), settings)
    named, cell = (
        Policy(True, select_recompute=(OpRecompute(exact_pattern(path), ALL_LAYERS),))
        for path in ("attention.wq.cast", "attention")
    )
    for policy, is_expected in zip((named, cell, FULL), is_recomputed, strict=True):
        casts = [tensor for tensor in model.layer_block(policy, 1).tensors if str(tensor.label) == "attention.wq.cast"]
        assert any(tensor.is_recomputed for tensor in casts) == is_expected
        held = [tensor for tensor in casts if tensor.is_forward and tensor.uses.first_backward != NO_OP]
        assert len(held) == (not is_expected)


@EVERY_STEP
@EVERY_SETTING
@EVERY_POLICY
def test_what_a_layer_saves_is_kept_swapped_or_recomputed(name, settings, policy):
    for before, after in zip(
        simulate(name, settings, KEEP).layers, simulate(name, settings, policy).layers, strict=True
    ):
        assert (before.swapped_bytes, before.num_copies, before.exposed_ns) == (0, 0, 0)
        assert after.kept_bytes + after.swapped_bytes + after.recomputed_bytes >= before.kept_bytes
        if policy is SWAP:  # otherwise the layer before a recomputed one keeps its output, which that one reads
            assert after.kept_bytes + after.swapped_bytes == before.kept_bytes


@EVERY_STEP
@EVERY_SETTING
def test_copies_are_those_of_each_layer_in_each_micro_batch(name, settings):
    """With one stage the host holds the copies of one micro-batch at a time, and the states that are there."""
    step = simulate(name, settings, SWAP)
    num_micro_batches = SETTINGS[settings].num_micro_batches
    swapped_bytes = sum(layer.swapped_bytes for layer in step.layers)
    assert sum(stage.swapped_bytes for stage in step.stages) == swapped_bytes * num_micro_batches > 0
    if len(step.stages) == 1:
        states_bytes = make_model(name, settings).static[0].host_bytes
        assert bool(states_bytes) == SETTINGS[settings].is_state_offloaded
        assert step.stages[0].host_bytes == swapped_bytes + states_bytes


@EVERY_STEP
def test_a_swap_lowers_the_peak_by_what_it_moves(name):
    """The peak is in the loss of the last micro-batch, where everything that is swapped is on the host."""
    for settings in ("plain", "sharded", "released", "3 micro-batches"):
        keep, swap = simulate(name, settings, KEEP), simulate(name, settings, SWAP)
        moved_bytes = sum(layer.swapped_bytes for layer in swap.layers)
        assert keep.stages[0].peak_bytes - swap.stages[0].peak_bytes == moved_bytes


@EVERY_STEP
def test_the_link_is_busy_for_bytes_by_its_bandwidth_and_a_latency_for_each_copy(name):
    """More where both directions copy at once, which slows both down."""
    step, link = simulate(name, "plain", SWAP), load_device("atlas_800t_a2").offload
    num_copies = sum(layer.num_copies for layer in step.layers)
    copies_ns = step.stages[0].swapped_bytes * 10**9 / link.bandwidth_bytes_per_s + num_copies * link.latency_ns
    assert copies_ns <= step.stages[0].offload_busy_ns <= 1.2 * copies_ns


@EVERY_STEP
@EVERY_SETTING
def test_full_recompute_is_the_forward_pass_of_all_layers_at_most(name, settings):
    keep, full = simulate(name, settings, KEEP), simulate(name, settings, FULL)
    forward_ns = sum(layer.forward_ns for layer in keep.layers if layer.layer >= 0)
    added_ns = sum(stage.recompute_ns for stage in full.stages) - sum(stage.recompute_ns for stage in keep.stages)
    assert 0.5 * forward_ns < added_ns / SETTINGS[settings].num_micro_batches <= forward_ns
    for before, after in zip(keep.stages, full.stages, strict=True):
        assert after.peak_bytes < before.peak_bytes


@EVERY_STEP
def test_micro_batches_repeat_the_passes_and_hold_one_at_a_time(name):
    one, three = (simulate(name, settings, FULL) for settings in ("sharded", "3 micro-batches"))
    # With one micro-batch the backend keeps what DropoutExt gives in a recomputed cell.
    has_dropout = any(node.op == "DropoutExt" for node in captured(name).graph.forward)
    less_ns = three.stages[0].recompute_ns - 3 * one.stages[0].recompute_ns
    assert (0 < less_ns < three.stages[0].recompute_ns / 4) if has_dropout else less_ns == 0
    # A gradient is added to the accumulated sum; that and its memory are the only other differences.
    static = make_model(name, "3 micro-batches").static[0]
    assert 0 < three.stages[0].peak_bytes - one.stages[0].peak_bytes < 2 * static.gradient_bytes
    assert static.gradient_bytes == static.parameter_bytes


@EVERY_STEP
def test_adam_has_two_states_for_each_parameter_and_shards_divide_them(name):
    plain, sharded = (make_model(name, settings).static[0] for settings in ("plain", "sharded"))
    assert [static.optimizer_bytes for static in (plain, sharded)] == [
        2 * plain.parameter_bytes, 2 * sharded.parameter_bytes
    ]  # fmt: skip
    assert plain.parameter_bytes / 4 <= sharded.parameter_bytes < plain.parameter_bytes / 2
    on_host = make_model(name, "released, states on the host")
    assert on_host.static[0].optimizer_bytes == 0 and on_host.static[0].parameter_bytes == sharded.parameter_bytes


@EVERY_STEP
def test_released_weights_are_gathered_twice(name):
    sharded, released = (simulate(name, settings, KEEP) for settings in ("sharded", "released"))
    assert released.stages[0].communication_ns > sharded.stages[0].communication_ns
    assert released.stages[0].peak_bytes < sharded.stages[0].peak_bytes


@EVERY_STEP
def test_fused_kernels_are_faster_and_save_less(name):
    plain, fused = (simulate(name, key, KEEP).stages[0] for key in ("plain", "fused"))
    assert fused.compute_ns < plain.compute_ns and fused.peak_bytes < plain.peak_bytes


@EVERY_STEP
def test_whole_layers_are_swapped_as_mindformers_2_does(name):
    """Layers 0 and 1 have no activations at the peak, layer 3 recomputes; layer 2 is left alone."""
    model = LayerSwapModel2x.of(make_model(name, "plain"))
    policy = Policy(True, layer_swap=(LayerSwap(Layers((0, 1)), 1),), layer_recompute=Layers((3,)))
    keep, step = measure(model, KEEP), measure(model, policy)
    before, after = ({layer.layer: layer for layer in each.layers} for each in (keep, step))
    assert [after[i].swapped_bytes > 0 for i in range(4)] == [True, True, False, False]
    assert after[2].kept_bytes >= before[2].kept_bytes  # and its output, which layer 3 reads
    assert [after[i].recompute_ns > before[i].recompute_ns for i in range(4)] == [False, False, False, True]
    assert step.stages[0].peak_bytes < keep.stages[0].peak_bytes and step.step_ns >= keep.step_ns
