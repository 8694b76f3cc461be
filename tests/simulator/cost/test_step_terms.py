"""Work on weights and gradients, counted by hand on the generic device: 1 TB/s, no cache, no fixed cost."""

from dataclasses import replace

from mindswap.simulator.cost.hardware import Link
from mindswap.simulator.cost.static_memory import Parameter
from mindswap.simulator.cost.step_terms import (
    accumulate_ns,
    clip_ns,
    move_states_ns,
    optimize_ns,
    overflow_ns,
    reduce_gradient_ns,
    scale_ns,
)
from tests.simulator.cost.builders import GENERIC, device, step_settings

MIB = 2**20
# A float32 matrix and a float16 one, 1 MiB each.
FULL = Parameter("f", MIB, 2**18)
HALF = Parameter("h", MIB, 2**19)
ALONE, FUSED = step_settings(), step_settings(is_fused=True)
SUMMED = step_settings(num_micro_batches=4, is_accumulating=True)
FUSED_SUM = step_settings(num_micro_batches=4, is_accumulating=True, is_fused=True)


def test_gradients_of_each_micro_batch_are_added():
    # Read the sum and the gradient, write the sum: 3 MiB, 3,145.7 ns, four times.
    assert accumulate_ns([HALF], SUMMED, GENERIC) == 4 * 3146
    assert accumulate_ns([HALF], ALONE, GENERIC) == 0


def test_sums_may_be_cut():
    # A cut sum: an eighth of 3 MiB, 393.2 ns.
    cut = step_settings(8, 2, is_accumulating=True, is_accumulator_sharded=True)
    assert accumulate_ns([HALF], cut, GENERIC) == 2 * 394
    assert accumulate_ns([HALF], step_settings(8, 2, is_accumulating=True), GENERIC) == 2 * 3146


def test_one_micro_batch_scales_into_float32():
    # Cast 2 + 4, product 4 + 4 bytes for each of 2^19 numbers: 7,340,032 bytes. One kernel: 2 + 4.
    assert scale_ns([HALF], ALONE, GENERIC) == 7341
    assert scale_ns([HALF], FUSED, GENERIC) == 3146
    # A float32 gradient needs no cast: 4 + 4 bytes for 2^18 numbers.
    assert scale_ns([FULL], ALONE, GENERIC) == 2098


def test_sums_are_scaled_in_their_type_and_cleared():
    # Scaled: two products of 2 + 2 bytes; cleared: compare 2 + 1, cast 1 + 2, product and assignment 2 + 2 each.
    assert scale_ns([HALF], SUMMED, GENERIC) == 4195 + 7341
    # One kernel of 2 + 2 bytes for each of both.
    assert scale_ns([HALF], FUSED_SUM, GENERIC) == 2 * 2098
    # The parallel optimizer cuts what is scaled, not the sum that is cleared: 524,288 bytes and 7,340,032.
    assert scale_ns([HALF], step_settings(8, 4, is_accumulating=True), GENERIC) == 525 + 7341


def test_a_weight_of_one_number():
    # 2000 of 4 bytes each, read in the type of the weight: 8 ns.
    assert overflow_ns([Parameter("one", 4, 1)] * 2000, SUMMED, GENERIC) == 8


def test_clipping():
    # float32: square 8, sum 4, product 8 bytes: 20 for 2^19 numbers. One kernel for each of both: 4 and 8.
    assert clip_ns([HALF], ALONE, GENERIC) == 10_486
    assert clip_ns([HALF], FUSED, GENERIC) == 6292
    # float16: square 4, sum 2, cast 6, product 8, cast 6: 26.
    assert clip_ns([HALF], SUMMED, GENERIC) == 13_632


def test_the_overflow_check_reads_every_gradient():
    assert overflow_ns([HALF], ALONE, GENERIC) == 2098
    assert overflow_ns([HALF], SUMMED, GENERIC) == 1049


def test_a_fused_optimizer_goes_once_through_memory():
    # Read weight 2, gradient 4, states 8 bytes, write weight and states: 24 for 2^19 numbers: 12,582,912 bytes.
    assert optimize_ns([HALF], step_settings(optimizer="FusedAdamW"), GENERIC) == 12_583
    assert optimize_ns([HALF], step_settings(optimizer="FusedAdamW", is_fused=True), GENERIC) == 12_583


def test_adamw_fused_by_the_compiler_is_ten_kernels():
    # First moment 8 + 8 + 12, second 8 + 8 + 12, decay 8, both copied 16, step 16: 96 bytes for 2^18 numbers.
    assert optimize_ns([FULL], FUSED, GENERIC) == 25_166
    assert optimize_ns([FULL], FUSED, device(op_latency_ns={"vector": 2000})) == 25_166 + 10 * 2000
    # Of a float16 weight the decay is 6, and the result is cast, 6: 100 bytes for 2^19 numbers.
    assert optimize_ns([HALF], FUSED, GENERIC) == 52_429
    assert optimize_ns([HALF], FUSED, device(op_latency_ns={"vector": 2000})) == 52_429 + 11 * 2000
    # Gradients of sums have the type of the weight: 96 bytes.
    assert optimize_ns([HALF], FUSED_SUM, GENERIC) == 50_332
    # 40 of the 100 bytes are weights, gradients, states and their result: 20,971.5 ns; 60 at 2 TB/s: 15,728.6 ns.
    cached = device(cache_bytes=64 * MIB, cache_bandwidth_bytes_per_s=2 * 10**12)
    assert optimize_ns([HALF], FUSED, cached) == 20_972 + 15_729


def test_updates_of_small_weights_wait_for_their_launches():
    # An update takes 25,166 ns on the device, its ten launches 10 or 60 us: three times the one, or the other.
    assert optimize_ns([FULL] * 3, FUSED, device(launch_ns=1000)) == 3 * 25_166
    assert optimize_ns([FULL] * 3, FUSED, device(launch_ns=6000)) == 180_000
    # The last launch is at 5,100 ns; the updates before it take longer.
    assert optimize_ns([FULL], FUSED, device(launch_ns=510)) == 25_166
    # One kernel of 12,583 ns; a graph that is launched at once.
    assert optimize_ns([HALF] * 2, step_settings(optimizer="FusedAdamW"), device(launch_ns=6000)) == 2 * 12_583
    at_once = step_settings(is_fused=True, is_launched_at_once=True)
    assert optimize_ns([FULL] * 3, at_once, device(launch_ns=6000)) == optimize_ns([FULL] * 3, FUSED, GENERIC)


def test_nothing_is_launched_for_weights_that_are_not_trained():
    assert optimize_ns([], FUSED, device(launch_ns=6000)) == optimize_ns([], FUSED, GENERIC) == 0


def test_adamw_as_single_operations():
    # To float32 6, decay 8, first moment 8 + 8 + 8 + 12 + 8, second 8 + 8 + 16 + 8, both copied 16, corrected 3 x 8,
    # step 12 + 8 + 12, to float16 6, assigned 4: 180 bytes for 2^19 numbers, by 21 kernels.
    assert optimize_ns([HALF], ALONE, GENERIC) == 94_372
    slow = device(op_latency_ns={"vector": 2000})
    assert optimize_ns([HALF], ALONE, slow) == 94_372 + 21 * 2000
    # A float32 weight needs no casts: 19 kernels, as a dry run has them (docs/internals/notes.md#launches-of-a-step).
    assert optimize_ns([FULL], ALONE, slow) == optimize_ns([FULL], ALONE, GENERIC) + 19 * 2000


def test_results_stay_in_the_cache():
    # 32 of the 180 bytes are weights, gradients and states: 16,777.2 ns; 148 at 2 TB/s: 38,797.3 ns.
    cached = device(cache_bytes=64 * MIB, cache_bandwidth_bytes_per_s=2 * 10**12)
    assert optimize_ns([HALF], ALONE, cached) == 16_778 + 38_798
    # It just holds what the largest kernel moves, 16 bytes for each number: 8 MiB.
    just = device(cache_bytes=8 * MIB, cache_bandwidth_bytes_per_s=2 * 10**12)
    assert optimize_ns([HALF], ALONE, just) == 16_778 + 38_798
    # It does not hold what one kernel moves.
    small = device(cache_bytes=MIB, cache_bandwidth_bytes_per_s=2 * 10**12)
    assert optimize_ns([HALF], ALONE, small) == 94_372


def test_the_parallel_optimizer_cuts_the_work():
    # An eighth of 52,428,800 bytes.
    assert optimize_ns([HALF], step_settings(8, is_fused=True), GENERIC) == 6554


def test_states_in_host_memory_come_and_go():
    # Two states of 2 MiB at 10 GB/s, 209,715.2 ns: one in, one out while the other comes, and the other out.
    assert move_states_ns([HALF], ALONE, GENERIC) == 3 * 209_716
    # Out at 5 GB/s: 419,430.4 ns.
    slow_out = device(offload=Link(5 * 10**9, 0))
    assert move_states_ns([HALF], ALONE, slow_out) == 209_716 + 2 * 419_431
    # No copy of the next weight overlaps those of a weight.
    assert move_states_ns([HALF] * 3, ALONE, GENERIC) == 9 * 209_716


def test_copies_in_both_directions_slow_each_other_down():
    # At half the speed while both run: twice the time of the shorter one, and the rest of the longer one.
    half = device(contended_permille=500)
    assert move_states_ns([HALF], ALONE, half) == 4 * 209_716
    slow_out = device(contended_permille=500, offload=Link(5 * 10**9, 0))
    assert move_states_ns([HALF], ALONE, slow_out) == 209_716 + (2 * 209_716 + 419_431 - 209_716) + 419_431


def test_fused_updates_offload_states_while_those_of_the_next_weight_come():
    fused = replace(ALONE, optimizer="FusedAdamW")
    # Both states of a weight, 4 MiB, are one copy in time: 419,430.4 ns.
    assert move_states_ns([HALF], fused, GENERIC) == 2 * 419_431
    assert move_states_ns([HALF] * 3, fused, GENERIC) == 4 * 419_431
    frozen = replace(HALF, is_trained=False)
    assert move_states_ns([HALF, frozen, HALF], fused, GENERIC) == 3 * 419_431


def test_a_gradient_is_a_message():
    # 40 MiB. AllReduce of 2 ranks sends 2 * 1/2 of it at 100 GB/s, ReduceScatter half of that.
    weight = Parameter("a", 40 * MIB, 10 * MIB)
    latency = device(op_latency_ns={"communication": 1000})
    two, cut = step_settings(data_parallel=2), step_settings(2, data_parallel=2)
    assert reduce_gradient_ns(weight, two, GENERIC) == 419_431
    assert reduce_gradient_ns(weight, two, latency) == 419_431 + 1000
    assert reduce_gradient_ns(weight, cut, GENERIC) == 209_716
    assert reduce_gradient_ns(weight, ALONE, latency) == 0
    # With 8 ranks between them the two are in different nodes: 10 GB/s.
    assert reduce_gradient_ns(weight, step_settings(data_parallel=2, model_parallel=8), GENERIC) == 4_194_304


def test_a_weight_that_stays_whole_is_summed_whole():
    norm = Parameter("n", 40 * MIB, 10 * MIB, is_sharded=False)
    assert reduce_gradient_ns(norm, step_settings(2, data_parallel=2), GENERIC) == 419_431


def test_experts_are_handed_to_the_ranks_that_have_them():
    """Two copies of an expert are half of the ranks apart: of 16 in another node of 8 cards, of 8 in the same one.

    They are one after the other at least.
    """
    expert = Parameter("e", 40 * MIB, 10 * MIB, num_copies=2)
    assert reduce_gradient_ns(expert, step_settings(data_parallel=16), GENERIC) == 4_194_304
    assert reduce_gradient_ns(expert, step_settings(data_parallel=8), GENERIC) == 419_431
    assert reduce_gradient_ns(expert, step_settings(data_parallel=1), GENERIC) == 419_431
    of_two = step_settings(data_parallel=2, model_parallel=8)
    assert reduce_gradient_ns(expert, of_two, GENERIC) == 4_194_304
    eight, weight = replace(expert, num_copies=8), replace(expert, num_copies=None)
    assert reduce_gradient_ns(eight, step_settings(data_parallel=1), GENERIC) == reduce_gradient_ns(
        weight, step_settings(data_parallel=8), GENERIC
    )
    assert reduce_gradient_ns(replace(expert, num_copies=1), step_settings(data_parallel=8), GENERIC) == 0
