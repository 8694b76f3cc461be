"""Outputs that a fused kernel hands to its reader in registers are not written, so less is saved."""

from dataclasses import replace

import pytest

from mindswap.planner.lower_bound import BoundInputs, least_budget_bytes
from mindswap.planner.lower_bound.inputs import Stage, StageLayers
from mindswap.planner.lower_bound.liveness_points import (
    LivenessPoint,
)
from mindswap.planner.lower_bound.tensor_graph import (
    TensorGraph,
)
from mindswap.planner.problem import Allow
from tests.graph.builders import node
from tests.planner.lower_bound.builders import FLOW, PLENTY, bound, bound_inputs, boundary_inputs


@pytest.mark.parametrize(("num_waiting", "budget_bytes", "least_bytes"), [(1, 130, 60), (0, 100, 0)])
def test_what_the_layer_before_hands_on_stays_for_what_runs_again(num_waiting, budget_bytes, least_bytes):
    """100 bytes are made in 10 ns from 30 of the layer before, which are there only for that: 70 bytes are free.

    At the fullest moment that counts for micro-batches between forward and backward of the layer.
    """
    tensor_graph = TensorGraph(
        (100, 30), (0, 1), frozenset({0}), frozenset({1}), ((0, 1),), (10, 0), (0, 0), boundary_inputs=frozenset({1})
    )
    known = bound_inputs(tensor_graph)
    stage = replace(known.stages[0], layers={StageLayers(0, num_waiting=num_waiting): 2})
    boundary_inputs, without_swap = replace(known, stages=(stage,)), Allow(swap=False)
    assert bound(boundary_inputs, budget_bytes, without_swap) == 1000 + 10  # in one of two layers
    assert least_budget_bytes(boundary_inputs, PLENTY, without_swap) == least_bytes
    # At another moment it counts beside what is kept once forward of all layers has ended.
    like = next(iter(stage.layers))
    for is_past_forward, bytes_there in ((True, 60), (False, 0)):
        moment = LivenessPoint(0, {like: 1}, is_past_forward)
        other = replace(stage, peak_bytes=0, liveness_points=(moment,))
        assert least_budget_bytes(replace(known, stages=(other,)), PLENTY, without_swap) == bytes_there
    # On the host it takes time on the link like others: 30 ns in each layer, for which forward waits.
    assert bound(boundary_inputs, 0) == 1000 + 2 * 10 + num_waiting * 2 * 30


def test_what_two_read_is_not_handed_on_in_registers():
    """Both run again in both layers: the first takes 5 ns more then, alone 10 ns; two that read it are no more."""
    paired = TensorGraph(**{**vars(FLOW), "unfused_extra_ns": (5, 0)})
    assert bound(bound_inputs(paired), 0, Allow(swap=False)) == 1000 + 2 * (10 + 20 + 5)
    assert bound(bound_inputs(paired), 100, Allow(swap=False)) == 1000 + 2 * 10
    three = TensorGraph(
        (100, 50, 50), (0, 1, 2), frozenset({0, 1, 2}), frozenset(), ((1, 0), (2, 0)), (10, 20, 20), (0,) * 3
    )
    three = TensorGraph(**{**vars(three), "unfused_extra_ns": (5, 0, 0)})
    assert bound(bound_inputs(three), 0, Allow(swap=False)) == 1000 + 2 * (10 + 20 + 20 + 5)


def test_a_reader_saves_what_it_need_not_read():
    """It reads 3 KiB and writes 1: 40 ns and 100 ns to start, or 30 ns. A matrix product saves nothing."""
    big = node("dy", "MatMul", "start_b start_b")
    assert boundary_inputs(big, node("g", "Mul", "silu_b start_b dy")) == [0, 140 - 30, 0]
    assert boundary_inputs(node("g", "MatMul", "silu_b start_b")) == [0, 0, 0]
    assert boundary_inputs(node("g", "Mul", "silu_b start_b"), node("h", "Neg", "silu_b")) == [0, 0, 0]


def test_a_reader_that_gets_more_in_registers_may_come_into_the_cache():
    """Alone 140 - 30 as above. If `cast` comes in registers, too: 30 ns for 3 KiB, then 2 ns in the cache."""
    big = node("dy", "MatMul", "start_b start_b")
    assert boundary_inputs(big, node("g", "Mul", "silu_b cast_b dy")) == [0, 130 - 2, 130 - 2]


def test_what_other_stages_need_not_write_comes_back_sooner():
    """A stage waits 200 ns for another, whose one layer may write less for 30 ns in each of 2 micro-batches."""
    costs = bound_inputs().transfers
    unwritten = TensorGraph(**{**vars(FLOW), "avoided_forward_ns": 30})
    first = Stage(150, {StageLayers(0, in_flight=1): 1}, 0, work_ns=300, idle_ns=200)
    second = Stage(150, {StageLayers(0, in_flight=2): 1}, 0, work_ns=100)
    assert bound(BoundInputs((FLOW,), (first, second), costs), 150) == 500
    assert bound(BoundInputs((unwritten,), (first, second), costs), 150) == 500 - 2 * 30


def test_what_forward_need_not_write_is_gained():
    """The first takes 10 ns less than nothing; with the second 10 ns are left, and no step is faster than any work."""
    gained = TensorGraph(**{**vars(FLOW), "recompute_ns": (-10, 20)})
    assert bound(bound_inputs(gained), 0, Allow(swap=False)) == 1000 + 2 * 10
    assert bound(bound_inputs(gained), 100, Allow(swap=False)) == 1000
