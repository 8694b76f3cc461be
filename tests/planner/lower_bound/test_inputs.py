"""Inputs of the lower bound that are collected from a step: idle time, work and communication of each stage."""

import random
from dataclasses import replace

import numpy as np
import pytest

from mindswap.graph.analysis.collectives import Collective
from mindswap.graph.model import TensorType
from mindswap.planner.lower_bound import collect_bound_inputs
from mindswap.planner.lower_bound.inputs import StageLayers
from mindswap.planner.lower_bound.tensor_graph import (
    build_tensor_graphs,
)
from mindswap.policy.model import Layers, Policy
from mindswap.simulator.cost.cost_table import CostTable
from mindswap.simulator.program import OpKind
from mindswap.simulator.step_model import StepModel
from tests.graph.builders import KIB
from tests.planner.models import MB, small_model
from tests.simulator import steps
from tests.simulator.cost.builders import GENERIC, device
from tests.strength import examples


def test_the_facts_of_one_stage():
    """Most is there when backward of layer 1 begins: 3 MB of each layer, the gradient and what is made of it.

    Then the embedding (2 us), both layers (9 each), loss (2) and its gradient (1) have run; the window begins behind
    the embedding. In backward of layer 1 layer 0 alone waits, and three tensors are there whatever a policy does.
    """
    model = small_model(2)
    (stage,) = collect_bound_inputs(model, model.simulate(Policy())).stages
    first, second = StageLayers(0, 1, 0, num_waiting=1), StageLayers(1, 1, 1)
    assert stage.layers == {first: 1, second: 1}
    assert (stage.peak_bytes, model.static[0].total_bytes) == (8 * MB, 0)
    assert (stage.window_ns, stage.idle_ns, stage.work_ns) == (21_000, 0, 23_000 + 24_000)
    assert [(each.fixed_bytes, each.waiting, each.is_past_forward) for each in stage.liveness_points] == [
        (1 * MB, {first: 1, second: 1}, True),
        (3 * MB, {first: 1, second: 0}, True),
    ]


def test_the_windows_of_later_micro_batches():
    """Four micro-batches one after another, alike, of which three are run: each has the time that the first has."""
    model = small_model(2, num_micro_batches=4)
    (stage,) = collect_bound_inputs(model, model.with_micro_batches(3).simulate(Policy())).stages
    assert (stage.window_ns, stage.later_windows_ns) == (21_000, (21_000,) * 3)
    (alone,) = collect_bound_inputs(small_model(2), small_model(2).simulate(Policy())).stages
    assert alone.later_windows_ns == ()
    # The last stage of a pipeline runs backward of each micro-batch at once.
    model = small_model(6, num_stages=2, num_micro_batches=4)
    first, last = collect_bound_inputs(model, model.simulate(Policy())).stages
    assert (first.later_windows_ns, last.later_windows_ns) == ((), (last.window_ns,) * 3)


def test_the_facts_of_two_stages():
    """1f1b, 3 layers on each: forward of 2 micro-batches before the first backward on the first, of 1 on the second.

    Most is there in backward of the last layer of each. A layer takes 2 + 3 + 2 + 2 us forward and 4 * 3 us backward,
    what is before the layers 2 us, the loss 2 us and its gradient 1 us.
    """
    model = small_model(6, num_stages=2, num_micro_batches=4)
    first, second = collect_bound_inputs(model, model.simulate(Policy())).stages
    assert first.layers == {
        StageLayers(0, 2, 0, 2): 1,
        StageLayers(1, 2, 0, 2): 1,
        StageLayers(2, 2, 1, 1, is_sent=True): 1,
    }
    assert second.layers == {StageLayers(3, 1, 0, 1): 1, StageLayers(4, 1, 0, 1): 1, StageLayers(5, 1, 1): 1}
    assert (first.backward_ns, second.backward_ns) == (36_000, 36_000 + 1000)
    assert (first.work_ns, second.work_ns) == (2000 + 27_000 + 36_000, 27_000 + 2000 + 37_000)
    # A send takes 10 us. The second stage waits for forward of the first one, 29 us and a send. The first stage has
    # computed twice 29 us when the first gradient comes: 29, a send, 29 and 37 of the second stage, a send.
    assert (first.idle_ns, second.idle_ns) == (29_000 + 10_000 + 29_000 + 37_000 + 10_000 - 2 * 29_000, 29_000 + 10_000)


def test_what_micro_batches_share_is_no_work_of_one_of_them():
    """A weight of 1 MB is cast to 0.5 MB in 1.5 us, and `mul` reads it in place of 0.5 MB more: 0.5 us less."""
    model = small_model(2, num_micro_batches=2)
    step, forward = model.captured.graph, []
    for made in step.forward:
        if made.name == "mul0":
            half = TensorType((MB // 4,), "float16", MB // 2)
            forward.append(replace(made, name="w", op="Load", inputs=("▸CR_net.w", "u")))
            forward.append(replace(made, name="cast", op="Cast", inputs=("w",), outputs=(half,)))
            made = replace(made, inputs=("exp0", "cast"))
        forward.append(made)
    captured = replace(model.captured, graph=replace(step, forward=tuple(forward)))
    found = []
    for shares_casts in (False, True):
        own = StepModel(captured, CostTable(GENERIC), replace(model.settings, shares_casts=shares_casts))
        (stage,) = collect_bound_inputs(own, own.simulate(Policy())).stages
        found.append((stage.work_ns, stage.idle_ns))
    assert found == [(47_000 - 500 + 1500, 0), (47_000 - 500, 1500)]


def test_a_chain_grows_by_what_runs_again():
    """Nothing hides it where no layer communicates: with one chunk on each stage the longest chain is the step."""
    chance, found = random.Random(1), []
    for _ in range(examples(12, 200)):
        num_stages, num_chunks = chance.choice((2, 3, 4)), chance.choice((1, 2))
        model = small_model(num_stages * num_chunks * 2, num_stages, num_stages * 2, GENERIC, num_chunks)
        own = collect_bound_inputs(model, model.simulate(Policy())).passes
        again = [layer for layer in range(model.captured.num_layers) if chance.random() < 0.5]
        timeline = model.simulate(Policy(layer_recompute=Layers(tuple(again)))).timeline
        ops, starts = timeline.program.ops, timeline.program.stage_starts
        again_ns = np.add.reduceat(np.where(ops.kind == OpKind.RECOMPUTE, ops.duration_ns, 0), starts[:-1])
        again_ns = (again_ns // model.layout.num_micro_batches).tolist()
        chain = own.longest_chain(again_ns)
        least_ns = chain.length_ns + sum(n * ns for n, ns in zip(chain.num_backward, again_ns, strict=True))
        assert own.longest.length_ns <= least_ns <= timeline.step_time_ns
        found.append((num_chunks, least_ns == timeline.step_time_ns))
    assert all(is_equal for num_chunks, is_equal in found if num_chunks == 1)


def communicating(name: str, is_before: bool = False, **costs) -> StepModel:
    """The small model of two layers with an AllGather of 200 MB over two ranks behind an operator: 1 ms.

    Of an AllReduce the partial sum would be the peak.
    """
    model = small_model(2)
    step = replace(model.captured, collectives={name: (Collective("AllGather", 200 * MB, 2, is_before),)})
    return StepModel(step, CostTable(device(**costs)), model.settings)


@pytest.mark.parametrize(
    ("name", "layer", "ops"),
    [
        ("dloss", 1, {0, 1, 2, 3}),  # tanh may run again before its gradient, and all that it is made of
        ("dtanh1", 1, {0, 1, 2}),  # so may relu before its own
        ("drelu1", 1, {0}),
        ("dmul1", 1, None),  # what reads it needs exp, too, but that has been read before
        ("dexp1", 0, {0, 1, 2, 3}),
        ("tanh1", 1, None),  # forward
    ],
)
def test_what_may_run_again_while_backward_waits_for_communication(name, layer, ops):
    gaps = [tensor_graph.gaps for tensor_graph in build_tensor_graphs(communicating(name))]
    assert gaps[1 - layer] == ()
    assert [(each.idle_ns, set(each.ops)) for each in gaps[layer]] == ([(10**6, ops)] if ops else [])


@pytest.mark.parametrize(("is_before", "overlapping_ops"), [(False, set()), (True, {0, 1})])
def test_what_may_run_while_a_copy_communicates(is_before, overlapping_ops):
    """relu reads what mul made and nothing else; before mul communicates, what it is made of may be there or not."""
    tensor_graph, _ = build_tensor_graphs(communicating("mul0", is_before))
    assert tensor_graph.overlapping_ops == {1: overlapping_ops}


@pytest.mark.parametrize(
    ("name", "window_ns", "of_forward"), [("mul0", 1_021_000, (0, 10**6, 0, 0)), ("dtanh1", 21_000, (0, 0, 0, 0))]
)
def test_waits_of_a_stage_for_its_own_communication_are_work_and_no_idle_time(name, window_ns, of_forward):
    model = communicating(name)
    known = collect_bound_inputs(model, model.simulate(Policy()))
    (stage,) = known.stages
    assert (stage.work_ns, stage.idle_ns, stage.window_ns) == (47_000 + 10**6, 0, window_ns)
    assert stage.backward_ns == 25_000
    assert [tensor_graph.communication_ns for tensor_graph in known.tensor_graphs] == [of_forward, (0, 0, 0, 0)]


@pytest.mark.parametrize("name", ["dloss", "dtanh1"])
def test_what_backward_begins_with_may_wait_for_its_own_communication(name):
    model = communicating(name, is_before=True)
    (stage,) = collect_bound_inputs(model, model.simulate(Policy())).stages
    assert (stage.work_ns, stage.idle_ns) == (47_000 + 10**6, 0)


def test_a_gradient_that_comes_last_hides_behind_nothing():
    """The one weight is before the layers: what a longer backward would hide of its exchange is nothing."""
    own = steps.model(data_parallel=2)
    keep = own.simulate(Policy())
    assert own.exposed_reduction_ns(keep.timeline) > 0
    assert collect_bound_inputs(own, keep).gradients_ns == 0


def test_tensors_take_whole_blocks_of_the_pool():
    """1 MB in pieces of 768 KiB: two."""
    tensor_graph, _ = build_tensor_graphs(communicating("mul0", pool_alignment_bytes=768 * KIB))
    assert tensor_graph.sizes_bytes == (2 * 768 * KIB,) * 4
