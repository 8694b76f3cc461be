from dataclasses import replace

import numpy as np
import pytest

from mindswap.config.pipeline_layout import Pipeline
from mindswap.planner.catalog import build_catalog, find_unheld_roles
from mindswap.planner.evaluate import short_model
from mindswap.planner.layer_assignments import LayerAssignments, _assignment_cost
from mindswap.planner.solver.fast import forward_time_ns, hiding_time_ns
from mindswap.planner.stage_problem import AssignmentCost
from mindswap.planner.step_problem import PipelineProblem, SingleStageProblem, _short_run, idle_times_ns
from mindswap.policy.model import ALL_LAYERS, OpRecompute, Policy
from mindswap.simulator.layer_block import CopySetting
from mindswap.simulator.layout import build_stage_layout
from mindswap.simulator.program import OpKind
from mindswap.simulator.step_model import StepModel
from tests.planner.builders import Tensor, ToySpace
from tests.planner.models import MB, small_model
from tests.planner.test_budget_search import with_links
from tests.planner.test_candidates import model_with_a_function

PLENTY = 10**12


def test_a_layer_on_the_clock():
    """One tensor of 10 bytes, made in 5 ns, copied in 4 ns, read in backward in 7 ns.

    Operators: end 0-1, t0 1-6, end 6-7, then backward end 7-8, g0 8-15, end 15-16.
    """
    case = ToySpace(((Tensor(10, 5, 7),),))
    timeline = case.timeline(np.array([[0, 0]]))
    assert timeline.op_start_ns.tolist() == [0, 1, 6, 7, 8, 15]
    assert case.evaluate(np.array([[0, 0]])).step_time_ns == 16
    assert case.evaluate(np.array([[0, -1]])).step_time_ns == 16 + 5


def test_a_swap_close_to_its_use_waits():
    """Out 6-16, in 16-26. Order: end t0 out end in end g0 end; three places behind `out` stands the `end` of backward.

    So that one runs, 7-8, and g0 waits for both copies.
    """
    case = ToySpace(((Tensor(10, 5, 7),),))
    timeline = case.timeline(np.array([[0, 1]]))
    assert (timeline.out_start_ns.tolist(), timeline.out_end_ns.tolist()) == ([6], [16])
    assert timeline.op_start_ns.tolist() == [0, 1, 6, 7, 26, 33]


def test_the_smallest_distances_delay_nothing_where_copies_have_time():
    """Four layers of 100 ns forward; each copy takes 40 ns, so one layer of distance is enough for all but the last."""
    layers = ((Tensor(40, 50, 100), Tensor(1, 50, 100, can_swap=False)),) * 4
    case = ToySpace(layers)
    assignment = np.zeros((4, 3), np.int64)
    assignment[:3, 1] = 20
    loose = case.timeline(assignment)
    needed = case.min_distances(loose)
    assert (needed[:3, 1] > 0).all()
    assert (needed[:3, 1] < 20).all()
    assert not needed[3].any()
    tight = case.timeline(np.where(assignment > 0, needed, 0))
    assert tight.step_time_ns == loose.step_time_ns == case.evaluate(np.zeros((4, 3), np.int64)).step_time_ns


def test_bytes_in_flight_at_the_peak():
    """The peak is behind the last layer: the first tensor is away by then if it goes three operators behind its copy.

    Far ahead of its use it stays until the end of forward, and is back before: it is there twice. Others are kept.
    """
    case = ToySpace(((Tensor(10, 50, 100),),) * 4 + ((Tensor(90, 50, 100, can_swap=False),),))
    assignment = np.zeros((5, 2), np.int64)
    for distance, size_bytes in ((1, 0), (50, 20)):
        assignment[0, 1] = distance
        found = case.memory_at_peaks(case.timeline(assignment))
        assert found.excess_bytes.tolist() == [0]
        assert found.in_flight_bytes[0, :, 1].tolist() == [size_bytes, 0, 0, 0, 0]
        assert found.kept_bytes[0, :, 1].tolist() == [0, 10, 10, 10, 90]


def test_a_cell_holds_at_the_peak_what_operators_in_it_made():
    """No operator of `attn` has a name: the group of `exp` offers nothing, the cell around it frees its 1 MB."""
    model = model_with_a_function()
    stage = SingleStageProblem(LayerAssignments(model, build_catalog(model)), 0, 0, PLENTY)
    attn = dict(stage.cells)["attn"]
    assignment = np.zeros(stage.costs.copy_ns.shape, np.int64)
    assignment[0, attn] = -1 if stage.costs.freed_bytes[0, attn, 1] else 0
    assignment[1, attn] = -1
    kept_bytes = stage.memory_at_peaks(stage.timeline(assignment)).kept_bytes[0]
    assert kept_bytes[:, attn].tolist() == [MB, 0, MB, MB]  # made again in layer 1; impossible in layer 0
    assert kept_bytes[:, 0].tolist() == [3 * MB, 2 * MB, 3 * MB, 3 * MB]


def test_each_stage_over_its_budget_has_a_peak():
    """Stage 0 keeps two micro-batches of its two layers, stage 1 one."""
    model = small_model(4, 2, 4)
    pipeline = PipelineProblem(LayerAssignments(model, build_catalog(model)), model, 0, PLENTY)
    timeline = pipeline.timeline(np.zeros(pipeline.costs.copy_ns.shape, np.int64))
    peaks_bytes = pipeline.excess_bytes_of_stages(timeline)
    found = pipeline.memory_at_peaks(timeline)
    assert found.excess_bytes.tolist() == peaks_bytes.tolist()
    assert (found.kept_bytes[:, :, 0] > 0).tolist() == [[True, True, False, False], [False, False, True, True]]
    pipeline.budget_bytes = int(peaks_bytes[1])  # of two stages the first alone is over it
    found = pipeline.memory_at_peaks(timeline)
    assert found.excess_bytes.tolist() == [peaks_bytes[0] - peaks_bytes[1]]


def test_what_a_program_copies_besides_is_no_cell_of_the_space():
    """Two layers of two tensors, all swapped; `t1`, then layer 1, are not of the space, and so none of its last."""
    case = ToySpace(((Tensor(10, 5, 7), Tensor(10, 5, 7)),) * 2)
    timeline = case.timeline(np.array([[0, 1, 1]] * 2))
    assert case.min_distances(timeline)[:, 1:].all()
    for layers, groups, own in (((0, 1), {"t0": 1}, np.s_[:, 1]), ((0,), {"t0": 1, "t1": 2}, np.s_[0, 1:])):
        case.layers, case.groups = layers, groups
        found = case.min_distances(timeline)
        assert found[own].all() and np.count_nonzero(found) == 2


def test_memory_over_either_budget_is_excess():
    case = ToySpace(((Tensor(10, 5, 7),),), budget_bytes=4)
    assert case.evaluate(np.array([[0, 0]])).excess_bytes == 6
    full_host = ToySpace(((Tensor(10, 5, 7),),), budget_bytes=100, host_budget_bytes=3)
    assert full_host.evaluate(np.array([[0, 2]])).excess_bytes == 7


@pytest.mark.parametrize(
    ("num_sequences", "expected"),
    [
        # 1F1B: in flight are a micro-batch of each stage behind it and one more; the run is four micro-batches longer.
        (1, [(8, 4), (7, 3), (6, 2), (5, 1)]),
        # In halves of sequences one piece more: 5, 4, 3, 2 pieces are 3, 2, 2, 1 micro-batches.
        (2, [(7, 5), (6, 4), (6, 3), (5, 2)]),
    ],
)
def test_a_short_run_is_four_micro_batches_longer_than_what_is_in_flight(num_sequences, expected):
    layout = build_stage_layout(Pipeline(4), 8, 16, num_sequences)
    assert [_short_run(layout, stage) for stage in range(4)] == expected


def test_a_short_run_of_two_chunks_is_whole_rounds():
    """In flight are 5 and 3 passes; with one more for each chunk 2 rounds of 2 stages x 2 chunks."""
    layout = build_stage_layout(Pipeline(2, num_chunks=2), 8, 16)
    assert [_short_run(layout, stage) for stage in range(2)] == [(4, 3), (4, 2)]


@pytest.mark.parametrize(
    ("num_copies", "is_resident", "assignment_cost"),
    [
        (1, False, AssignmentCost(MB, 0, 100_000, MB)),  # 1 MB, over a link of 10 GB/s
        (2, False, AssignmentCost(MB, 0, 200_000, 2 * MB)),  # under two names
        (1, True, AssignmentCost(0, 0, 100_000, MB)),  # under one of two names: it stays all the same
    ],
)
def test_what_a_swap_is_worth(num_copies, is_resident, assignment_cost):
    model = small_model(2)
    plain = model.layer_block(Policy(), 0)
    assert _assignment_cost(model, frozenset(), plain, plain) == AssignmentCost(0, 0, 0, 0)
    (label,) = (tensor.label for tensor in plain.tensors if str(tensor.label) == "attn.exp")
    assert (
        _assignment_cost(model, frozenset(), plain, plain.with_copies({label: CopySetting(8, num_copies, is_resident)}))
        == assignment_cost
    )


def test_what_recompute_is_worth():
    model = small_model(2)
    again = model.layer_block(Policy(True, select_recompute=(OpRecompute(r"attn\.exp", ALL_LAYERS),)), 0)
    plain = model.layer_block(Policy(), 0)
    assert _assignment_cost(model, frozenset(), plain, again) == AssignmentCost(MB, 2000, 0, 0)


def test_recompute_of_what_reads_the_layer_before_is_worth_less_where_that_would_hold_nothing():
    """Only the copy of `exp` reads in backward what the block before hands on; a layer holds its own for backward."""
    model = small_model(2)
    again = model.layer_block(Policy(True, select_recompute=(OpRecompute(r"attn\.exp", ALL_LAYERS),)), 0)
    plain, left = model.layer_block(Policy(), 0), find_unheld_roles(model, 0)
    (read,) = (read for read in again.reads if read.role in left)
    assert _assignment_cost(model, left, plain, again) == AssignmentCost(MB - read.size_bytes, 2000, 0, 0)
    assert find_unheld_roles(model, 1) == frozenset()


def slow_copies(num_micro_batches: int) -> StepModel:
    """Two stages; a copy takes 20 us, forward of a layer 9 us."""
    return small_model(4, 2, num_micro_batches, with_links(5 * 10**10))


def test_a_stage_alone_waits_before_its_first_backward_as_it_does_in_the_pipeline():
    model = slow_copies(8)
    whole = model.simulate(Policy()).timeline
    idle_ns = idle_times_ns(whole)
    assert idle_ns[1] == 0 < idle_ns[0]
    rows = LayerAssignments(model, build_catalog(model))
    for stage in range(2):
        plain, waiting = (SingleStageProblem(rows, stage, PLENTY, PLENTY, ns) for ns in (0, idle_ns[stage]))
        nothing = np.zeros((2, plain.costs.num_groups), np.int64)
        times = [stage_problem.timeline(nothing).step_time_ns for stage_problem in (plain, waiting)]
        assert times[1] - times[0] == idle_ns[stage] == waiting.idle_ns


def test_a_score_is_carried_on_to_all_micro_batches_by_the_last_turns():
    """What is swapped keeps each turn waiting, in the first ones less; so for a stage alone, and for all together."""
    model = slow_copies(40)
    rows = LayerAssignments(model, build_catalog(model))
    whole = PipelineProblem(rows, short_model(model)[0], PLENTY, PLENTY)
    assert whole.num_unsimulated == 40 - whole.layout.num_micro_batches > 20
    for value in (0, 4):
        assignment = np.full((4, rows.catalog.copy_ns.shape[1]), value)
        assignment[:, 0] = 0
        found, exact = whole.score(whole.timeline(assignment)), model.simulate(rows.policy(assignment)).timeline
        assert abs(found.step_time_ns - exact.step_time_ns) <= exact.step_time_ns // 100
        alone = SingleStageProblem(rows, 0, PLENTY, PLENTY)
        shown = alone.score(alone.timeline(assignment[:2])).step_time_ns
        alone.layout, alone.num_unsimulated = replace(alone.layout, num_micro_batches=40), 0
        exact_ns = alone.score(alone.timeline(assignment[:2])).step_time_ns
        assert abs(shown - exact_ns) <= exact_ns // 100


def test_copies_have_the_time_before_the_fullest_moment_to_be_out():
    """Forward of 9 us in each of four layers; the fullest moment is the begin of the loss, or in backward."""
    timeline = small_model(4).simulate(Policy()).timeline
    ops = timeline.program.ops
    forward = ops.kind == OpKind.FORWARD
    all_ns = int(ops.duration_ns[forward].sum())
    assert forward_time_ns(timeline) == all_ns
    is_layer = forward & (ops.layer >= 0)
    behind_ns = all_ns - int(ops.duration_ns[is_layer].sum()) - int(ops.duration_ns[forward & (ops.layer < 0)][0])
    assert all_ns - behind_ns <= hiding_time_ns(timeline) <= all_ns
