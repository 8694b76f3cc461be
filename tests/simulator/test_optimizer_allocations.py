"""End of a step: allocations in order, against the totals that the peak has."""

from dataclasses import replace

import pytest

from mindswap.config.weight_sharding import WeightSharding
from mindswap.simulator.captured_step import GradientRule
from mindswap.simulator.cost.static_memory import Parameter
from mindswap.simulator.optimizer_allocations import (
    FinalGradient,
    final_gradients,
    optimizer_allocations,
    persistent_tensors,
)
from mindswap.simulator.stage_weights import _closing_memory
from tests.simulator.cost.builders import step_settings

# Float32 matrices of 64 and 16 KiB and a vector of 4 KiB.
WEIGHTS = (
    Parameter("large", 65536, 16384, shape=(128, 128)),
    Parameter("small", 16384, 4096, shape=(64, 64)),
    Parameter("norm", 4096, 1024, shape=(1024,)),
)


def highest(weights, rule, settings):
    """The most bytes at a time, more than the gradients that backward leaves."""
    gradients = final_gradients(weights, rule, settings)
    live = {(i, "gradient"): gradient.backward_bytes for i, gradient in enumerate(gradients)}
    before = most = sum(live.values())
    for tensor, size_bytes in optimizer_allocations(weights, gradients, settings):
        if size_bytes:
            assert tensor not in live
            live[tensor] = size_bytes
        else:
            del live[tensor]
        most = max(most, sum(live.values()))
    assert not live
    return most - before


@pytest.mark.parametrize("is_fused", [True, False])
@pytest.mark.parametrize("is_rate_constant", [True, False])
@pytest.mark.parametrize("is_decaying", [True, False])
def test_the_most_at_a_time_is_what_the_peak_has(is_fused, is_rate_constant, is_decaying):
    settings = step_settings(
        num_micro_batches=4,
        is_accumulating=True,
        is_fused=is_fused,
        is_rate_constant=is_rate_constant,
        is_decaying=is_decaying,
    )
    rule = GradientRule(is_summed=True)
    half = tuple(replace(weight, size_bytes=weight.size_bytes // 2) for weight in WEIGHTS)
    for weights in (WEIGHTS, WEIGHTS[1::-1], half, half[1::-1]):  # the first weight is decayed later at jit_level O1
        assert highest(weights, rule, settings) == _closing_memory(weights, rule, settings).total_bytes


@pytest.mark.parametrize("is_clipping", [True, False])
@pytest.mark.parametrize("is_fused", [True, False])
def test_gradients_of_backward_are_freed_one_by_one(is_clipping, is_fused):
    settings = step_settings(is_fused=is_fused, is_clipping=is_clipping)
    rule = GradientRule(sharding=WeightSharding())
    gradients = final_gradients(WEIGHTS, rule, settings)
    assert gradients[0] == FinalGradient(65536, 65536)
    assert highest(WEIGHTS, rule, settings) == _closing_memory(WEIGHTS, rule, settings).total_bytes
    names = [tensor for tensor, _ in optimizer_allocations(WEIGHTS, gradients, settings)]
    assert names[:4] == [(0, "scaled"), (0, "gradient"), (1, "scaled"), (1, "gradient")]


def test_a_gradient_of_a_half_precision_weight_is_scaled_into_float32():
    half = Parameter("h", 8192, 4096, shape=(64, 64))
    assert final_gradients([half], GradientRule(), step_settings()) == (FinalGradient(8192, 16384),)
    assert final_gradients([half], GradientRule(is_summed=True), step_settings(num_micro_batches=2)) == (
        FinalGradient(0, 8192),
    )


def test_a_fused_optimizer_has_no_temporaries():
    settings = step_settings(optimizer="FusedAdamW")
    gradients = final_gradients(WEIGHTS, GradientRule(), settings)
    events = list(optimizer_allocations(WEIGHTS, gradients, settings))
    assert [tensor for tensor, _ in events[-3:]] == [(0, "scaled"), (1, "scaled"), (2, "scaled")]
    assert len(events) == 3 * 3


def test_states_on_the_host_are_prefetched_with_their_weight_and_stay():
    settings = step_settings(is_fused=True, is_state_offloaded=True)
    gradients = final_gradients(WEIGHTS, GradientRule(), settings)
    live = dict(optimizer_allocations(WEIGHTS, gradients, settings))
    assert [size_bytes for (_, name), size_bytes in live.items() if name.startswith("state")] == [
        65536, 65536, 16384, 16384, 4096, 4096,
    ]  # fmt: skip


def test_weights_come_from_the_last_to_the_first_and_states_of_vectors_before_those_of_matrices():
    summed = step_settings(num_micro_batches=2, is_accumulating=True)
    weights = [4096, 16384, 65536]
    states = [4096, 4096, 16384, 16384, 65536, 65536]
    assert persistent_tensors(WEIGHTS, summed) == [*weights, *weights, *states]
    assert persistent_tensors(WEIGHTS, step_settings()) == [*weights, *states]


def test_vectors_are_clipped_and_updated_after_matrices_and_sums_scaled_in_the_opposite_order():
    weights = (WEIGHTS[2], *WEIGHTS[:2])
    gradients = final_gradients(weights, GradientRule(), step_settings())
    clipping = step_settings(is_fused=True, is_clipping=True)
    events = [tensor for tensor, size_bytes in optimizer_allocations(weights, gradients, clipping) if size_bytes]
    assert events[:6] == [(1, "scaled"), (2, "scaled"), (0, "scaled"), (1, "clipped"), (2, "clipped"), (0, "clipped")]
    assert [position for position, _ in events[6:]] == sorted((p for p, _ in events[6:]), key=[1, 2, 0].index)
    summed = step_settings(is_fused=True, num_micro_batches=2, is_accumulating=True)
    events = [tensor for tensor, size_bytes in optimizer_allocations(weights, gradients, summed) if size_bytes]
    assert events[:3] == [(0, "scaled"), (2, "scaled"), (1, "scaled")]
