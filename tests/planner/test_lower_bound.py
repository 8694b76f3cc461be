"""The lower bound: by hand, and never above what a simulated policy takes."""

import math
import random
from collections.abc import Collection, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from reference.exact import count_choices, enumerate_all

from mindswap.graph.analysis.collectives import Collective
from mindswap.graph.analysis.saved_tensors import Names
from mindswap.graph.analysis.work import measure_work
from mindswap.graph.model import Node, TensorType
from mindswap.graph.passes.fusion import readers_of_saved
from mindswap.planner.catalog import Catalog, build_catalog
from mindswap.planner.evaluate import evaluate
from mindswap.planner.layer_assignments import LayerAssignments
from mindswap.planner.linear import UnsolvedError
from mindswap.planner.lower_bound import BoundInputs, collect_bound_inputs, least_budget_bytes, min_step_ns, relaxation
from mindswap.planner.lower_bound.inputs import Stage, StageLayers
from mindswap.planner.lower_bound.liveness_points import (
    Liveness,
    LivenessPoint,
    _fixed_bytes,
    _unmoved,
    compute_liveness,
    upper_hull,
)
from mindswap.planner.lower_bound.tensor_graph import (
    CommunicationGap,
    RecomputedCell,
    TensorGraph,
    build_tensor_graphs,
    fusion_saving_ns,
)
from mindswap.planner.problem import DEFAULT_ALLOW, Allow, PlanProblem
from mindswap.policy.cell_tree import exact_pattern
from mindswap.policy.model import Layers, OpRecompute, OpSwap, Policy
from mindswap.simulator.cost.cost_table import CostTable
from mindswap.simulator.layer_block import Block, BlockTensor, Consumers
from mindswap.simulator.memory import interval_times
from mindswap.simulator.placing import TransferCosts
from mindswap.simulator.program import MemoryKind, OpKind
from mindswap.simulator.step_model import StepModel
from mindswap.simulator.timeline import Timeline
from tests.graph.builders import KIB, graph, node
from tests.planner.builders import ToySpace, random_space
from tests.planner.loading import capture_apart, capture_experts
from tests.planner.models import MB, small_model
from tests.planner.test_plan_cache import with_links
from tests.simulator import steps
from tests.simulator.builders import Span, program_of
from tests.simulator.cost.builders import GENERIC, device
from tests.strength import examples

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "llama2_7b" / "cpu" / "case3_op_swap.yaml"

PLENTY = 10**12
DISTANCES = (1, 2, 4)
# Two tensors of 100 and 50 bytes; the second is made from the first in 20 ns.
FLOW = TensorGraph(
    sizes_bytes=(100, 50),
    producers=(0, 1),
    saved=frozenset({0, 1}),
    outputs=frozenset(),
    reads=((1, 0),),
    recompute_ns=(10, 20),
    communication_ns=(0, 0),
)


def bound_inputs(
    tensor_graph: TensorGraph = FLOW, ns_per_byte: int = 1, window_ns: int = 0, num_layers: int = 2, **options
) -> BoundInputs:
    """A step of 1000 ns; all that the layers save is there at the fullest moment."""
    costs = TransferCosts(lambda size: size * ns_per_byte, lambda size: size * ns_per_byte)
    stage = Stage(num_layers * tensor_graph.saved_bytes, {StageLayers(0): num_layers}, window_ns, work_ns=1000)
    return BoundInputs((tensor_graph,), (stage,), costs, **options)


def bound(known: BoundInputs, budget_bytes: int, allow: Allow = DEFAULT_ALLOW, host_bytes: int = PLENTY) -> int | None:
    return min_step_ns(known, budget_bytes, host_bytes, allow)


def test_what_fits_takes_its_time():
    assert bound(bound_inputs(), 300) == 1000
    once = replace(bound_inputs().stages[0], first_pass_extra_ns=40, idle_ns=3)
    assert bound(BoundInputs((FLOW,), (once,), bound_inputs().transfers), 300) == 1043


@pytest.mark.parametrize(("solved_by", "expected_ns"), [("choose", 1010), ("ipm", 1010), (None, 0)])
def test_a_programme_that_a_method_of_highs_gives_up_on_goes_to_the_next(monkeypatch, solved_by, expected_ns):
    """HiGHS answers "Unknown" to one of ten thousand; where nothing solves it, 0 is below any time."""
    solve = relaxation.solve_linear

    def give_up(*args, solver, **options):
        if solver != solved_by:
            raise UnsolvedError
        return solve(*args, solver=solver, **options)

    monkeypatch.setattr(relaxation, "solve_linear", give_up)
    assert bound(bound_inputs(), 200, Allow(swap=False)) == expected_ns


def test_the_cheaper_byte_runs_again():
    """100 bytes over: the first tensor takes 10 ns for 100 bytes, the second 20 ns for 50; one of two layers does."""
    assert bound(bound_inputs(), 200, Allow(swap=False)) == 1010


def test_parts_of_tensors_count():
    assert bound(bound_inputs(), 250, Allow(swap=False)) == 1005


def test_copies_that_have_time_cost_nothing():
    """60 bytes leave in 60 ns of forward, the other 40 wait 40 ns; or 40 bytes run again in 4 ns."""
    assert bound(bound_inputs(window_ns=60), 200, Allow(recompute=False)) == 1040
    assert bound(bound_inputs(window_ns=60), 200) == 1004
    # Alone a stage waits in each micro-batch, one of several may do so in its first one only.
    assert bound(bound_inputs(window_ns=60, num_micro_batches=3), 200, Allow(recompute=False)) == 3 * 1040
    two = replace(bound_inputs(window_ns=60, num_micro_batches=3), stages=bound_inputs(window_ns=60).stages * 2)
    assert bound(two, 200, Allow(recompute=False)) == 3 * 1000 + 40


def test_all_copies_go_over_the_link():
    """100 bytes away in each of 12 micro-batches: 12 times 100 bytes of 11 ns each way."""
    known = bound_inputs(ns_per_byte=11, window_ns=PLENTY, num_micro_batches=12)
    assert bound(known, 200, Allow(recompute=False)) == 13_200
    # Where each direction is half as fast beside the other one, both take as long as one after the other.
    slowed = replace(known, transfers=replace(known.transfers, contended_permille=500))
    assert bound(slowed, 200, Allow(recompute=False)) == 2 * 13_200


def test_host_memory_is_a_limit():
    assert bound(bound_inputs(window_ns=PLENTY), 200, host_bytes=40) == 1006
    assert bound(bound_inputs(window_ns=PLENTY), 200, Allow(recompute=False), host_bytes=40) is None


def test_what_runs_again_may_read_what_is_swapped():
    """Nothing may stay: the second tensor runs again, the first is swapped."""
    known = bound_inputs(window_ns=PLENTY, tensor_graph=TensorGraph(**{**vars(FLOW), "outputs": frozenset({0})}))
    assert bound(known, 0) == 1000  # both are swapped
    assert bound(known, 0, host_bytes=200) == 1040


def test_what_runs_again_needs_what_it_reads():
    """The second tensor runs again in both layers: the first is there, or runs again too."""
    dear = TensorGraph(**{**vars(FLOW), "recompute_ns": (1000, 20)})
    assert bound(bound_inputs(dear), 200, Allow(swap=False)) == 1040
    assert bound(bound_inputs(dear), 0, Allow(swap=False)) == 1000 + 2 * 1020


def test_a_gathered_weight_stays_for_what_runs_again():
    """The 50 bytes are a cast of 40 that were gathered: made again they leave 10 a layer, and nothing swaps the 40.

    So 2 * 40 can be free without swap in 2 * 10 ns of the first tensor, and 10 more a layer in 20 ns each; where the
    gathered weights are there in any case, as before the end of forward, all 50 count.
    """
    cast = TensorGraph((100, 50, 40), (0, 1, 2), frozenset({0, 1}), frozenset({2}), ((1, 2),), (10, 20, 0), (0, 0, 0))
    held = TensorGraph(**{**vars(cast), "gathered": frozenset({2})})
    past, before = (
        BoundInputs(
            (tensor_graph,),
            (replace(bound_inputs(tensor_graph).stages[0], is_past_forward=is_past),),
            bound_inputs(tensor_graph).transfers,
        )
        for tensor_graph, is_past in ((held, True), (held, False))
    )
    without_swap = Allow(swap=False)
    assert bound(past, 100, without_swap) == bound(before, 100, without_swap) == 1000 + 2 * 10
    assert bound(past, 80, without_swap) == 1000 + 2 * 10 + 2 * 20
    assert bound(past, 79, without_swap) is None
    assert bound(before, 0, without_swap) == 1000 + 2 * 10 + 2 * 20
    # Of three micro-batches, one of which has begun backward, two in each of both layers: 4 * 40.
    three = replace(past.stages[0], peak_bytes=900, layers={StageLayers(0, in_flight=3, num_begun=1): 2})
    assert least_budget_bytes(replace(past, stages=(three,)), PLENTY, without_swap) == 160
    # On the host: 100 ns on the link before the fullest moment, beside 10 ns a layer for the first tensor.
    assert bound(past, 0, host_bytes=100) == 1000 + 2 * 10 + 2 * 50
    assert bound(past, 0, host_bytes=99) is None


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


def test_waits_for_communication_hide_what_runs_again():
    waiting = TensorGraph(**{**vars(FLOW), "gaps": (CommunicationGap(7, (0,), frozenset({0})),)})
    assert bound(bound_inputs(waiting), 100, Allow(swap=False)) == 1000 + 2 * (10 - 7)


@pytest.mark.parametrize(("read_before", "hidden_ns"), [(set(), 7), ({0}, 0)])
def test_what_backward_has_read_does_not_run_again_later(read_before, hidden_ns):
    window = CommunicationGap(7, (0,), frozenset({0}), frozenset(read_before))
    assert (
        bound(bound_inputs(TensorGraph(**{**vars(FLOW), "gaps": (window,)})), 100, Allow(swap=False))
        == 1020 - 2 * hidden_ns
    )


def test_nothing_is_left_of_what_runs_again():
    """An operator makes 100 bytes and 1, which backward has read before the window: it is not kept beside the copy.

    In 1 byte a layer it could be. But where nothing runs again in 1 of 101 parts, it is kept with the 100 there.
    """
    window = CommunicationGap(10, (0,), frozenset({0}), frozenset({1}))
    tensor_graph = TensorGraph((100, 1), (0, 0), frozenset({0, 1}), frozenset(), (), (10,), (0,), gaps=(window,))
    assert bound(bound_inputs(tensor_graph), 2, Allow(swap=False)) == 1000
    freed_by_recompute = TensorGraph(**{**vars(tensor_graph), "freed_by_recompute": frozenset({1})})
    assert bound(bound_inputs(freed_by_recompute), 2, Allow(swap=False)) == 1000 + math.floor(2 * 10 * (1 - 1 / 101))


def test_functions_of_a_cell_run_again_in_the_same_layers():
    """50 bytes have to go: half of the second tensor runs again in both layers, and reads the first, which is kept.

    If both run again with their cell, a sixth of each layer does, in 12 ns.
    """
    tensor_graph = TensorGraph(**{**vars(FLOW), "recompute_ns": (10, 2)})
    assert bound(bound_inputs(tensor_graph), 250, Allow(swap=False)) == 1000 + 2
    cell = RecomputedCell(frozenset({1}), frozenset({0, 1}), frozenset({0, 1}))
    swapped_together = TensorGraph(**{**vars(tensor_graph), "recomputed_cells": (cell,)})
    assert bound(bound_inputs(swapped_together), 250, Allow(swap=False)) == 1000 + 2 * 12 // 6


def test_a_function_reads_what_runs_again_in_its_own_layers():
    """Backward reads the third tensor, of 100 bytes, made from the second, of none, and that from the first, of 1.

    In one of two layers it runs again. The second may be kept, but for what runs again with its cell.
    """
    tensor_graph = TensorGraph(
        (1, 0, 100), (0, 1, 2), frozenset({2}), frozenset(), ((1, 0), (2, 1)), (100, 10, 10), (0, 0, 0)
    )
    assert bound(bound_inputs(tensor_graph), 100, Allow(swap=False)) == 1000 + 10
    cell = RecomputedCell(frozenset({2}), frozenset({0, 1, 2}), frozenset({0, 1, 2}))
    swapped_together = TensorGraph(**{**vars(tensor_graph), "recomputed_cells": (cell,)})
    assert bound(bound_inputs(swapped_together), 100, Allow(swap=False)) == 1000 + 120


def test_what_is_read_as_a_function_is_kept_or_runs_again_with_its_cell():
    """The second tensor is made again from the first, which it reads as a reshape of a function: that stays as it is.

    In 200 bytes of host memory the first may be swapped in both layers, and the second made again in 20 ns. With the
    reshape in between that is for a copy of the cell alone: then the first runs again, too, in 1000 ns. Least then has
    4 of 3 layers all of both on the host, 200 bytes, and the others run both again.
    """
    known = TensorGraph(**{**vars(FLOW), "recompute_ns": (1000, 20)})
    assert bound(bound_inputs(known, window_ns=PLENTY), 0, host_bytes=200) == 1000 + 2 * 20
    cell = RecomputedCell(frozenset(), frozenset({0, 1}), frozenset({0, 1}), views=frozenset({(1, 0)}))
    viewed = TensorGraph(**{**vars(known), "recomputed_cells": (cell,)})
    assert bound(bound_inputs(viewed, window_ns=PLENTY), 0, host_bytes=200) == 1000 + 2 * 1020 // 3
    # What is kept is read as anything.
    assert (
        bound(bound_inputs(viewed), 200, Allow(swap=False))
        == bound(bound_inputs(known), 200, Allow(swap=False))
        == 1000 + 2 * 20
    )


def test_what_runs_again_with_a_cell_stands_before_what_backward_has_read_of_it():
    """The second tensor, of 50 bytes, is made of the first, of 100, and of the third, a cast of a weight, of 20.

    All run again with their cell, in 30 and 10 ns, to make half of 340 bytes free. Backward reads the second before a
    window of 7 ns, so in half of the layers all three stand before it; the third cannot be kept there for the second,
    and made again in the window for the others. Without it, 170 of 300 bytes run again in 34 ns.
    """
    window = CommunicationGap(7, (2,), frozenset({2}), frozenset({1}))
    every, reads = frozenset({0, 1, 2}), ((1, 0), (1, 2))
    tensor_graph = TensorGraph(
        (100, 50, 20), (0, 1, 2), every, frozenset(), reads, (10, 20, 10), (0,) * 3, gaps=(window,)
    )
    cell = RecomputedCell(every, every, frozenset({0, 1}))
    loose = TensorGraph(**{**vars(tensor_graph), "recomputed_cells": (cell,)})
    assert bound(bound_inputs(loose), 170, Allow(swap=False)) == 1000 + 40 - 7
    known = replace(cell, of_weights=frozenset({2}))
    strict = TensorGraph(**{**vars(tensor_graph), "recomputed_cells": (known,)})
    assert bound(bound_inputs(strict), 170, Allow(swap=False)) == 1000 + 34
    assert (known.recomputed_before(frozenset({1}), strict), known.recomputed_before(frozenset({0, 2}), strict)) == (
        every,
        {0},
    )
    assert cell.recomputed_before(frozenset({1}), loose) == {0, 1}


def test_no_copy_stands_in_a_window_where_backward_asks_for_none():
    """Each layer frees 25 bytes. The first operator would hide 5 ns wherever the second runs again a little."""
    window = CommunicationGap(5, (0, 1), frozenset({1}))
    tensor_graph = TensorGraph(**{**vars(FLOW), "gaps": (window,)})
    assert bound(bound_inputs(tensor_graph), 250, Allow(swap=False)) == 1000 + 2 * 5 // 2


def test_what_stands_in_a_window_for_a_copy_alone_stands_there_where_that_does():
    """50 bytes have to go: half of the second tensor of each layer, or a quarter of the third in place of it.

    The third runs again in no time, reads the second, and is what backward asks for in the window. So all of it runs
    again, and the window is there in all of both layers; but the second hides in it in a half of them alone.
    """
    window = CommunicationGap(10, (1, 2), frozenset({2}))
    tensor_graph = TensorGraph((1, 50, 0), (0, 1, 2), frozenset({1, 2}), frozenset(), ((2, 1),), (0, 20, 0), (0, 0, 0))
    tensor_graph = TensorGraph(**{**vars(tensor_graph), "unswappable_tensors": frozenset({0, 1, 2}), "gaps": (window,)})
    assert window.only_for(tensor_graph) == {1: {1}, 2: {1, 2}}
    assert bound(bound_inputs(tensor_graph), 50, Allow(swap=False)) == 1000 + 2 * (20 - 10) // 2


def test_what_hides_beside_communication_hides_where_it_runs_again():
    """All of the first tensor runs again, in 5 ns of communication, beside which a half of the second does: 10 ns.

    Where the second runs again 5 of its 20 ns hide, in the other layers none.
    """
    tensor_graph = TensorGraph(
        (100, 50), (0, 1), frozenset({0, 1}), frozenset(), (), (0, 20), (5, 0), {0: frozenset({1})}
    )
    assert bound(bound_inputs(tensor_graph), 50, Allow(swap=False)) == 1000 + 2 * (5 + 10) - 5


def test_operators_of_one_name_run_again_together():
    """50 bytes have to go: a half of the second tensor runs again in 10 ns; and with it the operator of the first."""
    tensor_graph = TensorGraph((100, 50), (0, 1), frozenset({0, 1}), frozenset({0}), (), (40, 20), (0, 0))
    assert bound(bound_inputs(tensor_graph), 250, Allow(swap=False)) == 1000 + 20
    swapped_together = TensorGraph(**{**vars(tensor_graph), "implied_recomputes": ((1, 0),)})
    assert bound(bound_inputs(swapped_together), 250, Allow(swap=False)) == 1000 + 20 + 40


def test_what_reads_weights_alone_does_not_run_again():
    """100 bytes would run again in 10 ns: the others do, in 20 ns for 50."""
    once = TensorGraph(**{**vars(FLOW), "computed_once": frozenset({0})})
    assert bound(bound_inputs(once), 200, Allow(swap=False)) == 1000 + 40
    assert bound(bound_inputs(once), 199, Allow(swap=False)) is None


def test_later_micro_batches_have_less_time_for_copies():
    """100 bytes leave; the first micro-batch has 60 ns for it, as it waits for weights, the two others 30 and 20."""
    known = bound_inputs(window_ns=60, num_micro_batches=3)
    stage = replace(known.stages[0], later_windows_ns=(30, 20))
    later = replace(known, stages=(stage,))
    assert bound(later, 200, Allow(recompute=False)) == 3000 + 40 + 70 + 80
    assert bound(known, 200, Allow(recompute=False)) == 3000 + 3 * 40


def test_what_has_no_name_is_not_swapped():
    unswappable_tensors = TensorGraph(**{**vars(FLOW), "unswappable_tensors": frozenset({0})})
    assert bound(bound_inputs(unswappable_tensors, window_ns=PLENTY), 200) == 1000  # both of 50 bytes
    assert bound(bound_inputs(unswappable_tensors, window_ns=PLENTY), 100) == 1010
    assert bound(bound_inputs(window_ns=PLENTY), 100) == 1000


def test_a_copy_back_of_a_tuple_is_not_for_what_runs_again():
    """All has to leave, 200 of 300 bytes in no time: the second tensor runs again, if it may read the first."""
    tensor_graph = TensorGraph(**{**vars(FLOW), "recompute_ns": (1000, 20)})
    assert bound(bound_inputs(tensor_graph, window_ns=200), 0) == 1000 + 2 * 20
    member = TensorGraph(**{**vars(tensor_graph), "tuple_members": frozenset({0})})
    assert bound(bound_inputs(member, window_ns=200), 0) == 1000 + 100
    assert bound(bound_inputs(member, window_ns=200), 200) == 1000


def test_what_one_name_swaps_moves_together():
    """An operator makes 100 bytes and 50; the third tensor of 50 runs again where the first is kept.

    Half has to leave, 100 bytes in no time. If the second leaves alone, the third runs again in both layers; else in
    2/3 of them, and of what is left all leaves.
    """
    tensor_graph = TensorGraph(
        (100, 50, 50), (0, 0, 1), frozenset({0, 1, 2}), frozenset(), ((1, 0),), (1000, 20), (0, 0)
    )
    tensor_graph = TensorGraph(**{**vars(tensor_graph), "tuple_members": frozenset({0, 1})})
    assert bound(bound_inputs(tensor_graph, window_ns=100), 200) == 1000 + 2 * 20
    swapped_together = TensorGraph(**{**vars(tensor_graph), "swapped_together": ((0, 1),)})
    assert bound(bound_inputs(swapped_together, window_ns=100), 200) == 1000 + 60


def test_what_a_name_swaps_does_not_run_again():
    """The first tensor takes long to run again, the second does not: 200 of 300 bytes may leave in no time."""
    tensor_graph = TensorGraph(**{**vars(FLOW), "reads": (), "recompute_ns": (100, 1)})
    assert bound(bound_inputs(tensor_graph, window_ns=200), 0) == 1000 + 2
    mutually_exclusive = TensorGraph(
        **{**vars(tensor_graph), "mutually_exclusive": ((0, 1),)}
    )  # in a third of the layers both run again
    assert bound(bound_inputs(mutually_exclusive, window_ns=200), 0) == 1000 + math.floor(2 * 101 / 3)


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


def boundary_inputs(*backward):
    """What a reader of `silu` and `cast` saves if it gets `silu` in registers; 10 ns per KiB, 1 ns in the cache."""
    forward = [node("start", "MatMul", "x w"), node("silu", "SiLU", "start"), node("cast", "Cast", "start")]
    step = graph(forward, list(backward), "silu cast start")

    def operator_ns(_, work):
        moved = (work.read_bytes + work.written_bytes) // KIB
        return moved * (1 if moved <= 2 else 10) + (0 if work.is_fused else 100)

    return fusion_saving_ns(step, measure_work(step)[1], readers_of_saved(step), operator_ns).tolist()


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
    unwritten = TensorGraph(**{**vars(FLOW), "avoided_store_ns": 30})
    first = Stage(150, {StageLayers(0, in_flight=1): 1}, 0, work_ns=300, idle_ns=200)
    second = Stage(150, {StageLayers(0, in_flight=2): 1}, 0, work_ns=100)
    assert bound(BoundInputs((FLOW,), (first, second), costs), 150) == 500
    assert bound(BoundInputs((unwritten,), (first, second), costs), 150) == 500 - 2 * 30


def test_what_runs_again_apart_hides_behind_communication_too():
    """Alone the first takes no time; with the second 5 ns, all of which are behind 7 ns of waiting."""
    hidden = TensorGraph(
        **{
            **vars(FLOW),
            "recompute_ns": (0, 20),
            "unfused_extra_ns": (5, 0),
            "gaps": (CommunicationGap(7, (0,), frozenset({0})),),
        }
    )
    assert bound(bound_inputs(hidden), 0, Allow(swap=False)) == 1000 + 2 * 20


def test_what_forward_need_not_write_is_gained():
    """The first takes 10 ns less than nothing; with the second 10 ns are left, and no step is faster than any work."""
    gained = TensorGraph(**{**vars(FLOW), "recompute_ns": (-10, 20)})
    assert bound(bound_inputs(gained), 0, Allow(swap=False)) == 1000 + 2 * 10
    assert bound(bound_inputs(gained), 100, Allow(swap=False)) == 1000


def test_what_forward_holds_in_any_case_must_fit():
    floor = replace(bound_inputs().stages[0], floor_bytes=120)
    known = BoundInputs((FLOW,), (floor,), bound_inputs().transfers)
    assert least_budget_bytes(known, PLENTY, Allow()) == 120
    assert bound(known, 119) is None
    assert bound(known, 120, Allow(swap=False)) == bound(bound_inputs(), 120, Allow(swap=False))


def test_another_moment_has_less_room_for_what_is_kept():
    """120 bytes are there in any case while both layers wait, so 80 of their 300 are kept in 200 bytes.

    The first tensors run again in 20 ns, and 20 of the 100 bytes of the second ones in 20 / 50 of 20 ns. Where not all
    of the layers wait, those that do may be the ones that keep nothing.
    """
    for num_waiting, step_ns in ((1, 1028), (0, 1010)):
        moment = LivenessPoint(fixed_bytes=120, waiting={StageLayers(0): num_waiting})
        known = BoundInputs(
            (FLOW,), (replace(bound_inputs().stages[0], liveness_points=(moment,)),), bound_inputs().transfers
        )
        assert bound(known, 200, Allow(swap=False)) == step_ns


def test_what_is_swapped_late_is_away_at_another_moment():
    """In 300 bytes all fits at the fullest moment, before which no copy has time; 100 leave later, and cost nothing."""
    moment = LivenessPoint(fixed_bytes=100, waiting={StageLayers(0): 1})
    known = BoundInputs(
        (FLOW,), (replace(bound_inputs().stages[0], liveness_points=(moment,)),), bound_inputs().transfers
    )
    assert bound(known, 300, Allow(recompute=False)) == 1000
    assert bound(known, 300, Allow(swap=False)) == 1010


def test_the_upper_hull_has_what_can_be_most():
    """(0, 9) at share 0; from 1/2 on (8, 5), as 9 = 4 + 5; (9, 4) ties at 1; (4, 6) is below, (10, 0) never most."""
    points = [(0, 9), (4, 6), (8, 5), (9, 4), (10, 0)]
    found = [points[at] for at in upper_hull(*np.array(points).T)]
    assert found == [(0, 9), (8, 5)]


def test_the_upper_hull_is_most_at_every_share_and_has_nothing_else():
    """Shares at which two points give the same are enough to try, with both ends."""
    chance = random.Random(25)
    for _ in range(100):
        points = [(chance.randrange(12), chance.randrange(12)) for _ in range(chance.randrange(1, 7))]
        shares = {Fraction(y - y2, x2 - x) for x, y in points for x2, y2 in points if x2 != x} | {0, 1}
        shares = {share for share in shares if 0 <= share <= 1}
        hull = [points[at] for at in upper_hull(*np.array(points).T)]
        most = {share: max(share * x + y for x, y in points) for share in shares}
        assert most == {share: max(share * x + y for x, y in hull) for share in shares}, points
        assert all(any(share * x + y == most[share] for share in shares) for x, y in hull), points
        assert len(set(hull)) == len(hull) and hull == sorted(hull), points


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([(0, 10), (2, 9), (4, 8)], [0, 1, 2]),  # in a line
        ([(0, 20), (3, 19), (5, 16), (9, 15)], [0, 1, 3]),
        ([(0, 10), (4, 9), (8, 3)], [0, 1]),  # less at any share
        ([(5, 5), (5, 5), (7, 5)], [2]),
    ],
)
def test_positions_of_the_upper_hull(points, expected):
    assert upper_hull(*np.array(points).T) == expected


@pytest.mark.parametrize(
    ("position", "is_past_forward", "late"), [(2, False, 0), (6, False, 0), (6, False, 8), (9, True, 0), (14, True, 0)]
)
def test_whether_forward_of_all_layers_has_ended_at_the_fullest_moment(position, is_past_forward, late):
    """One operator makes 100 MB: in a layer what forward alone reads (`mul`), the loss, or backward.

    Operators: embedding, 4 of each layer, loss; its gradient, 4 of each layer. The last one of layer 1 is `late`.
    """
    model = small_model(2)
    step = model.captured.graph
    ops = [made for made in (*step.forward, *step.backward) if made.outputs and made.op != "Load"]
    large = ops[position].name
    outputs = tuple(replace(known, size_bytes=100 * MB) for known in ops[position].outputs)

    def changed(made):
        made = replace(made, outputs=outputs) if made.name == large else made
        return replace(made, inputs=(*made.inputs, large)) if late and made.name == ops[late].name else made

    step = replace(step, forward=tuple(map(changed, step.forward)), backward=tuple(map(changed, step.backward)))
    own = StepModel(replace(model.captured, graph=step), CostTable(GENERIC), model.settings)
    (stage,) = collect_bound_inputs(own, own.simulate(Policy())).stages
    assert stage.is_past_forward is is_past_forward


def test_communication_and_compute_that_run_again_hide_each_other_at_most():
    """Two thirds of each tensor: 20 ns of communication beside 6.7 + 13.3 ns of compute."""
    gathered = TensorGraph(**{**vars(FLOW), "communication_ns": (30, 0), "overlapping_ops": {0: frozenset({0, 1})}})
    assert bound(bound_inputs(gathered), 200, Allow(swap=False)) == 1020
    # What stands nowhere else waits for all of it.
    alone = TensorGraph(**{**vars(gathered), "overlapping_ops": {0: frozenset()}})
    assert bound(bound_inputs(alone), 200, Allow(swap=False)) == 1040


def test_stages_before_go_on_with_backward():
    """Both stages run 10 ns again per micro-batch; behind the last of the second there are 100 + 10 of the first."""
    costs = TransferCosts(lambda size: size, lambda size: size)
    layers = {StageLayers(0): 1}
    first = Stage(150, layers, 0, work_ns=300, backward_ns=100)
    second = Stage(150, layers, 0, work_ns=300, idle_ns=200)
    known = BoundInputs((FLOW,), (first, second), costs, num_micro_batches=4)
    assert bound(known, 50, Allow(swap=False)) == 200 + 4 * (300 + 10) + 100 + 10


def test_gradients_hide_behind_what_runs_again():
    known = bound_inputs(step_overhead_ns=60, gradients_ns=4)
    assert bound(known, 200, Allow(swap=False)) == 1060 + 10 - 4


def test_the_least_budget_is_what_nobody_can_move():
    stuck = TensorGraph(**{**vars(FLOW), "outputs": frozenset({0})})
    assert least_budget_bytes(bound_inputs(stuck), PLENTY, Allow(swap=False)) == 200
    assert least_budget_bytes(bound_inputs(stuck), PLENTY, Allow()) == 0
    assert bound(bound_inputs(stuck), 199, Allow(swap=False)) is None


def test_the_facts_of_one_stage():
    """Most is there when backward of layer 1 begins: 3 MB of each layer, the gradient and what is made of it.

    Then the embedding (2 us), both layers (9 each), loss (2) and its gradient (1) have run; the window begins behind
    the embedding. In backward of layer 1 layer 0 alone waits, and three tensors are there whatever a policy does.
    """
    model = small_model(2)
    (stage,) = collect_bound_inputs(model, model.simulate(Policy())).stages
    first, second = StageLayers(0, 1, 0, num_waiting=1), StageLayers(1, 1, 1)
    assert stage.layers == {first: 1, second: 1}
    assert (stage.peak_bytes, stage.floor_bytes, model.static[0].total_bytes) == (8 * MB, 3 * MB, 0)
    assert (stage.window_ns, stage.idle_ns, stage.first_pass_extra_ns, stage.work_ns) == (21_000, 0, 0, 23_000 + 24_000)
    assert [(each.fixed_bytes, each.waiting, each.is_past_forward) for each in stage.liveness_points] == [
        (3 * MB, {first: 1, second: 0}, True),
        (1 * MB, {first: 1, second: 1}, True),
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
    assert first.layers == {StageLayers(0, 2, 0, 2): 1, StageLayers(1, 2, 0, 2): 1, StageLayers(2, 2, 1, 1): 1}
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
        found.append((stage.work_ns, stage.first_pass_extra_ns))
    assert found == [(47_000 - 500 + 1500, 0), (47_000 - 500, 1500)]


def test_the_fullest_moment_may_be_the_last_operator_of_backward():
    """The gradient of the table is 10 MB and is made of 1 MB, which is more than the 6 MB that both layers keep.

    Before it are 2 us for the embedding, 9 for each layer, 2 + 1 for the loss, 12 for each layer again.
    """
    model = small_model(2)
    graph = model.captured.graph
    gradient = node("gradient", "UnsortedSegmentSum", graph.backward[-1].name, 10 * MB, layer=None)
    backward = (*graph.backward, gradient, node("out", "MakeTuple", "gradient", 0, layer=None))
    step = replace(model.captured, graph=replace(graph, backward=backward))
    own = StepModel(step, CostTable(GENERIC), model.settings)
    (stage,) = collect_bound_inputs(own, own.simulate(Policy())).stages
    assert stage.peak_bytes - own.static[0].total_bytes == 11 * MB
    assert stage.window_ns == 1000 * (2 + 2 * 9 + 3 + 2 * 12)


def test_what_is_there_with_every_policy():
    """Between two operators of a layer is what nobody keeps; an operator of backward reads two tensors and makes one.

    While layer 1 runs forward the three tensors of layer 0 wait, then those of both, then those of layer 0 again.
    """
    found = compute_liveness(small_model(2), 1)
    # Operators: embedding, 4 of each layer, loss; its gradient, 4 of each layer.
    assert (found.fixed_bytes[[3, 7]] // MB).tolist() == [2, 2]  # relu reads what mul made
    assert (found.fixed_bytes[10:] // MB).tolist() == [1, 3, 3, 3, 3, 3, 3, 3, 2]  # nobody reads the last gradient
    assert (found.waiting_bytes // MB).tolist() == [0] * 5 + [3] * 4 + [6] * 2 + [3] * 4 + [0] * 4


def toy_facts(case: ToySpace) -> BoundInputs:
    """All tensors of a toy model are there when forward has ended."""
    tensor_graphs = [
        TensorGraph(
            sizes_bytes=tuple(tensor.size_bytes for tensor in tensors),
            producers=tuple(range(len(tensors))),
            saved=frozenset(range(len(tensors))),
            outputs=frozenset(i for i, tensor in enumerate(tensors) if not tensor.can_recompute),
            reads=tuple((i, i - 1) for i in range(1, len(tensors))),
            recompute_ns=tuple(tensor.forward_ns for tensor in tensors),
            communication_ns=(0,) * len(tensors),
        )
        for tensors in case.tensors
    ]
    forward_ns = sum(tensor.forward_ns for tensors in case.tensors for tensor in tensors) + 2
    backward_ns = sum(tensor.backward_ns for tensors in case.tensors for tensor in tensors) + 2
    saved_bytes = sum(tensor_graph.saved_bytes for tensor_graph in tensor_graphs)
    layers = {StageLayers(kind): 1 for kind in range(len(tensor_graphs))}
    stage = Stage(saved_bytes, layers, window_ns=forward_ns, work_ns=forward_ns + backward_ns)
    return BoundInputs(tuple(tensor_graphs), (stage,), case.transfers)


@pytest.mark.long
def test_no_choice_beats_the_bound():
    """All choices of small random problems; often enough the bound is more than the step that keeps everything."""
    num_binding = 0
    for seed in range(examples(150, 1200)):
        case = random_space(seed)
        if count_choices(case.costs, DISTANCES) > examples(120, 300):
            continue
        exact = enumerate_all(case, distances=DISTANCES).best_score
        known = toy_facts(case)
        least_ns = min_step_ns(known, case.budget_bytes, PLENTY, DEFAULT_ALLOW)
        if least_ns is None:
            assert not exact.fits, seed
        elif exact.fits:
            assert least_ns <= exact.step_time_ns, seed
            num_binding += least_ns > known.stages[0].work_ns
    assert num_binding >= examples(1, 10)


@pytest.fixture(scope="module")
def model():
    """On one card: gradients that other ranks get stay twice until the optimizer, and one of single operators makes
    their products. In so small a model that is the peak, which no policy moves.
    """
    captured = capture_apart(CONFIG)
    return captured.with_settings(replace(captured.settings, data_parallel=1, optimizer="FusedAdamW"))


@pytest.mark.mindspore
def test_no_policy_of_experts_beats_the_bound(tmp_path):
    model = capture_experts(tmp_path)
    keep = evaluate(problem(model, PLENTY), Policy())
    known, catalog = collect_bound_inputs(model, keep.step), build_catalog(model.with_swap())
    assert any(tensor_graph.recomputed_cells for tensor_graph in known.tensor_graphs)
    rows, chance, num_binding = LayerAssignments(model.with_swap(), catalog), random.Random(0), 0
    for _ in range(examples(40, 200)):
        policy = rows.policy(random_choice(catalog, chance))
        evaluation = evaluate(problem(model, PLENTY), policy)
        least_ns = min_step_ns(known, evaluation.peak_bytes, PLENTY, DEFAULT_ALLOW)
        assert least_ns is not None and least_ns <= evaluation.step_time_ns, policy
        num_binding += least_ns > keep.step_time_ns
    assert num_binding >= examples(5, 10)


@pytest.mark.mindspore
def test_no_policy_of_a_real_model_beats_the_bound(model):
    """Random policies, each at the budget of its own peak; distances from too short to far."""
    keep = evaluate(problem(model, PLENTY), Policy())
    known = collect_bound_inputs(model, keep.step)
    assert all(tensor_graph.mutually_exclusive for tensor_graph in known.tensor_graphs) and any(
        tensor_graph.swapped_together for tensor_graph in known.tensor_graphs
    )
    assert min_step_ns(known, keep.peak_bytes, PLENTY, DEFAULT_ALLOW) <= keep.step_time_ns
    catalog = build_catalog(model)
    rows = LayerAssignments(model, catalog)
    chance = random.Random(0)
    present = compute_liveness(model, model.layout.num_micro_batches)
    num_binding = 0
    for _ in range(examples(90, 200)):
        policy = rows.policy(random_choice(catalog, chance))
        evaluation = evaluate(problem(model, PLENTY), policy)
        least_ns = min_step_ns(known, evaluation.peak_bytes, PLENTY, DEFAULT_ALLOW)
        assert least_ns is not None and least_ns <= evaluation.step_time_ns, policy
        assert least_budget_bytes(known, PLENTY, DEFAULT_ALLOW) <= evaluation.peak_bytes
        num_binding += least_ns > keep.step_time_ns
        least_alive_bytes = spare_bytes(present, evaluation.step.timeline)
        assert least_alive_bytes.min() == 0, policy  # never less, and at the begin nothing else is there
    assert num_binding >= examples(5, 10)


def pipelined(chance: random.Random) -> StepModel:
    """The small model on stages, with communication in the layers, some of it an operator of its own."""
    num_stages, num_chunks = chance.choice((2, 3)), chance.choice((1, 2, 2))
    num_layers = num_stages * num_chunks * chance.choice((1, 2))
    links = with_links(chance.choice((10**10, 2 * 10**11)))
    model = small_model(num_layers, num_stages, num_stages * chance.choice((1, 2)), links, num_chunks)
    scheduler = chance.choice(("1f1b", "1f1b_less_memory", "gpipe", "seqpipe"))
    settings = replace(model.settings, pipeline=replace(model.settings.pipeline, scheduler=scheduler))
    names, backward, collectives = chance.sample(("exp", "relu", "dtanh", "dmul", "dexp"), 2), [], {}
    for made in model.captured.graph.backward:
        if "dtanh" in names and made.name.startswith("dtanh"):
            saved, gradient = made.inputs
            reduced = node(f"reduced{made.layer_index}", "AllReduce", gradient, MB, layer=made.layer_index)
            backward.append(reduced)
            made = replace(made, inputs=(saved, reduced.name))
        backward.append(made)
    for i in range(num_layers):
        for name in names:
            known = Collective("AllReduce", MB * chance.choice((1, 4)), 2, name != "dtanh" and chance.random() < 0.5)
            collectives[f"reduced{i}" if name == "dtanh" else f"{name}{i}"] = (known,)
    graph = replace(model.captured.graph, backward=tuple(backward))
    return StepModel(replace(model.captured, graph=graph, collectives=collectives), model.costs, settings)


def test_no_policy_of_a_pipeline_beats_the_bound():
    """Random policies of small pipelines, each at the budget of its own peak, those that do not swap without it."""
    chance, num_binding = random.Random(0), 0
    for seed in range(examples(12, 100)):
        model = pipelined(chance)
        keep = evaluate(problem(model, PLENTY), Policy())
        known, catalog = collect_bound_inputs(model, keep.step), build_catalog(model)
        rows = LayerAssignments(model, catalog)
        assert min_step_ns(known, keep.peak_bytes, PLENTY, DEFAULT_ALLOW) == keep.step_time_ns, seed
        for _ in range(examples(6, 30)):
            policy = rows.policy(random_choice(catalog, chance))
            evaluation = evaluate(problem(model, PLENTY), policy)
            for allow in (DEFAULT_ALLOW, Allow(swap=bool(policy.op_swap))):
                least_ns = min_step_ns(known, evaluation.peak_bytes, PLENTY, allow)
                assert least_ns is not None and least_ns <= evaluation.step_time_ns, (seed, policy)
                num_binding += least_ns > keep.step_time_ns
    assert num_binding >= examples(5, 50)


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


def spare_bytes(present: Liveness, timeline: Timeline) -> np.ndarray:
    """What a policy has on the device besides what every policy has, while each operator of all of them runs."""
    of_every = np.flatnonzero(present.program.ops.kind <= OpKind.BACKWARD)
    own = np.flatnonzero(timeline.program.ops.kind <= OpKind.BACKWARD)
    assert len(own) == len(of_every)
    begin_ns, end_ns = interval_times(timeline)
    size_bytes = timeline.program.intervals.size_bytes
    moments_ns = timeline.op_start_ns[own][:, None]
    alive_bytes = ((begin_ns <= moments_ns) & (moments_ns < end_ns)) @ size_bytes
    takes_time = timeline.program.ops.duration_ns[own] > 0
    return (alive_bytes - present.fixed_bytes[of_every])[takes_time]


def problem(model, budget_bytes: int) -> PlanProblem:
    return PlanProblem(model, budget_bytes, PLENTY, 8)


def random_choice(catalog: Catalog, chance: random.Random) -> np.ndarray:
    """Each item of the first layers, as many as chance will have it, is kept, swapped or made again."""
    freed = catalog.freed_bytes[list(catalog.layer_classes)]
    assignment = np.zeros(freed.shape[:2], np.int64)
    for group in range(1, freed.shape[1]):
        ways = np.flatnonzero(freed[0, group] > 0).tolist()
        way = chance.choice([None, *ways])
        if way is not None:
            assignment[: chance.randint(0, len(assignment)), group] = -way or chance.choice((1, 3, 33))
    if chance.random() < 0.3:
        whole = chance.randint(0, len(assignment))
        assignment[whole:, 0], assignment[whole:, 1:] = -1, 0
    return assignment


def test_the_flow_of_a_layer_of_four_operators():
    """exp -> mul -> relu -> tanh of 1 MB each: 2, 3, 2 and 2 us; mul reads exp twice, and tanh is what the layer gives.

    Backward needs all but what mul makes. The next layer, or the loss, reads tanh.
    """
    for tensor_graph in build_tensor_graphs(small_model(2)):
        assert (tensor_graph.sizes_bytes, tensor_graph.producers) == ((MB,) * 4, (0, 1, 2, 3))
        assert (tensor_graph.saved, tensor_graph.outputs, tensor_graph.gathered) == ({0, 2, 3}, {3}, set())
        assert tensor_graph.reads == ((1, 0), (2, 1), (3, 2))
        assert (tensor_graph.recompute_ns, tensor_graph.communication_ns) == ((2000, 3000, 2000, 2000), (0,) * 4)
        assert (tensor_graph.gaps, set(tensor_graph.unfused_extra_ns), tensor_graph.avoided_store_ns) == ((), {0}, 0)
        # Each is an attribute of the model; what leaves its cell may be kept where the cell runs again.
        assert (tensor_graph.unswappable_tensors, tensor_graph.freed_by_recompute) == (set(), {0, 2})
        assert tensor_graph.saved_bytes == 3 * MB


def changed(
    model: StepModel, change, more: Sequence[tuple[str, Node]] = (), unsaved: Collection[str] = ()
) -> StepModel:
    """The model with operators of forward changed, others put behind some, and values that backward does not read."""
    behind, of = dict(more), model.captured.graph
    forward = [one for node in map(change, of.forward) for one in (node, behind.get(node.name)) if one is not None]
    gone = {f"{name}_b" for name in unsaved}
    backward = tuple(replace(n, inputs=tuple(name for name in n.inputs if name not in gone)) for n in of.backward)
    saved = tuple(one for one in of.saved if one.forward_name not in unsaved)
    step = replace(of, forward=tuple(forward), backward=backward, saved=saved)
    return StepModel(replace(model.captured, graph=step), model.costs, model.settings)


def test_what_a_layer_hands_on_that_nobody_holds():
    """Backward does not read tanh; exp of the next layer does, and runs again from it alone."""
    first, second = build_tensor_graphs(changed(small_model(2), lambda node: node, unsaved=("tanh0", "tanh1")))
    assert (first.boundary_inputs, len(first.sizes_bytes)) == (set(), 4)
    assert (second.boundary_inputs, second.sizes_bytes, second.producers) == ({4}, (MB,) * 5, (0, 1, 2, 3, 4))
    assert second.reads == ((0, 4), (1, 0), (2, 1), (3, 2)) and {4} <= second.outputs
    assert second.recompute_ns[4] == second.communication_ns[4] == second.unfused_extra_ns[4] == 0
    # tanh is an attribute, so a swap of it has a name. As a reshape of a function it has none.
    assert second.unswappable_tensors == set()
    view = changed_view("tanh0", "exp1")
    _, second = build_tensor_graphs(changed(small_model(2), view[0], view[1], ("tanh0", "tanh1")))
    assert (second.boundary_inputs, second.unswappable_tensors) == ({4}, {4})
    # What backward holds is there, or swapped, in any case.
    assert all(tensor_graph.boundary_inputs == set() for tensor_graph in build_tensor_graphs(small_model(2)))


def changed_view(maker: str, reader: str):
    """A change, and what is put in: a reshape of a function in the cell of the maker, for one of its readers."""

    def change(node: Node) -> Node:
        return (
            replace(node, inputs=tuple("view" if n == maker else n for n in node.inputs))
            if node.name == reader
            else node
        )

    of = next(node for node in small_model(2).captured.graph.forward if node.name == maker)
    return change, [(maker, replace(of, name="view", op="Reshape", inputs=(maker,), scope=f"{of.scope}_view"))]


def test_what_is_read_as_a_view_that_is_a_function():
    """mul reads exp as a reshape that is no attribute: without its cell a copy of mul finds exp kept."""
    first, second = build_tensor_graphs(changed(small_model(2), *changed_view("exp0", "mul0")))
    (cell,) = first.recomputed_cells
    assert (cell.functions, cell.views) == (set(), {(1, 0)})
    assert second.recomputed_cells == ()


def test_what_backward_runs_again_in_any_case_takes_no_more_time():
    """Backward reads what mul makes from a copy of mul, without any policy; a policy that names both has relu, 2 us."""
    plain = small_model(2)
    backward: list[Node] = []
    for gradient in plain.captured.graph.backward:
        if gradient.name.startswith("drelu"):
            layer = gradient.name[-1]
            mul = plain.captured.graph.index.forward_nodes[f"mul{layer}"]
            read = (f"exp{layer}_b",) * 2
            again = replace(mul, name=f"again{layer}", inputs=read, is_duplicate=True, origin=mul.name)
            backward.append(again)
            gradient = replace(gradient, inputs=(*gradient.inputs, again.name))
        backward.append(gradient)
    graph = replace(plain.captured.graph, backward=tuple(backward))
    model = StepModel(replace(plain.captured, graph=graph), plain.costs, plain.settings)
    assert [tensor_graph.recompute_ns for tensor_graph in build_tensor_graphs(model)] == [(2000, 0, 2000, 2000)] * 2
    keep = evaluate(problem(model, PLENTY), Policy())
    named = tuple(OpRecompute(exact_pattern(name), Layers(0)) for name in ("attn.mul", "mlp.relu"))
    evaluation = evaluate(problem(model, PLENTY), Policy(select_recompute=named))
    assert (evaluation.step_time_ns, evaluation.peak_bytes) == (keep.step_time_ns + 2000, keep.peak_bytes - MB)
    known = collect_bound_inputs(model, keep.step)
    assert min_step_ns(known, evaluation.peak_bytes, PLENTY, Allow(swap=False)) == evaluation.step_time_ns


def test_what_a_function_alone_reads_runs_again_with_its_cell():
    """All that reads exp is a reshape of a function, and backward reads that: exp runs again only with it."""
    change, more = changed_view("exp0", "mul0")
    held = changed(small_model(2), change, more)
    graph = held.captured.graph
    saved = tuple(replace(one, forward_name="view") if one.forward_name == "exp0" else one for one in graph.saved)
    model = StepModel(replace(held.captured, graph=replace(graph, saved=saved)), held.costs, held.settings)
    (cell,) = build_tensor_graphs(model)[0].recomputed_cells
    assert (cell.functions, cell.views) == ({0}, {(1, 0)})


@pytest.mark.parametrize("num_stages", [1, 2])
@pytest.mark.parametrize("num_micro_batches", [1, 3])
@pytest.mark.parametrize("has_view", [False, True])
def test_no_policy_beats_the_bound_where_layers_hand_on_what_nobody_holds(num_stages, num_micro_batches, has_view):
    """Names swapped and run again at random; each policy at the budget of its own peak."""
    plain = small_model(4, num_stages, num_micro_batches)
    change, more = changed_view("tanh1", "exp2") if has_view else (lambda node: node, ())
    model = changed(plain, change, more, [f"tanh{layer}" for layer in range(4)])
    keep = model.simulate(Policy())
    known, chance, num_binding = collect_bound_inputs(model, keep), random.Random(0), 0
    assert sum(map(len, (tensor_graph.boundary_inputs for tensor_graph in known.tensor_graphs))) == 3
    cells, names = ("attn", "mlp"), ("attn.exp", "attn.mul", "mlp.relu", "mlp.tanh")
    for _ in range(examples(60, 1000)):
        where = {name: Layers(tuple(layer for layer in range(4) if chance.random() < 0.7)) for name in (*cells, *names)}
        # A copy of tanh would run for the next layer: nothing simulates that.
        again = tuple(
            OpRecompute(exact_pattern(name), where[name]) for name in (*cells, *names[:3]) if chance.random() < 0.5
        )
        swaps = tuple(
            OpSwap(exact_pattern(name), where[name], chance.choice((1, 4))) for name in names if chance.random() < 0.2
        )
        policy = Policy(True, op_swap=swaps, select_recompute=again)
        evaluation = evaluate(problem(model, PLENTY), policy)
        least_ns = min_step_ns(known, evaluation.peak_bytes, PLENTY, DEFAULT_ALLOW)
        assert least_ns is not None and least_ns <= evaluation.step_time_ns, policy
        num_binding += least_ns > keep.timeline.step_time_ns
    assert num_binding


def communicating(name: str, is_before: bool = False, **costs) -> StepModel:
    """The small model of two layers with an AllReduce of 100 MB over two ranks behind an operator: 1 ms."""
    model = small_model(2)
    step = replace(model.captured, collectives={name: (Collective("AllReduce", 100 * MB, 2, is_before),)})
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


def test_what_nobody_reads_is_there_for_a_moment():
    """8 MB that the first operator of the step makes."""
    model = small_model(2)
    step = model.captured.graph
    table, embed, *others = step.forward
    unread = replace(embed, name="unread", outputs=(TensorType((2 * MB,), "float32", 8 * MB),))
    captured = replace(model.captured, graph=replace(step, forward=(table, unread, embed, *others)))
    found = compute_liveness(StepModel(captured, CostTable(GENERIC), model.settings), 1)
    assert (found.fixed_bytes[:5] // MB).tolist() == [8, 1, 2, 1, 2]


@pytest.mark.parametrize(("layer", "counted"), [(0, 2), (-1, 2 + 1 + 16)])
def test_memory_that_no_policy_moves(layer, counted):
    """In a layer what it leaves may go, and what equal operators make together may be made one by one.

    What runs again is of one policy, and what ends before it begins is nothing.
    """
    kinds = (MemoryKind.KEPT, MemoryKind.TRANSIENT, MemoryKind.RECOMPUTED, MemoryKind.TRANSIENT, MemoryKind.TRANSIENT)
    spans = [Span(2**i, 0, 1, kind) for i, kind in enumerate(kinds)]
    program = program_of("F1 F1 B1", spans=spans)
    intervals = replace(program.intervals, layer=np.full(5, layer), label=np.array([0, 0, 0, 0, 1]))
    program = replace(program, intervals=intervals, labels=[Names(("a",)), Names(("a", "b")), Names(("c",))])
    found = _fixed_bytes(np.array([0, 0, 0, 2, 0]), np.array([1, 1, 1, 1, 1]), program)
    assert found.tolist() == [counted, counted, 0]


def test_what_nothing_names_and_no_recompute_makes_again_is_there_all_the_time():
    """Two intervals of a layer; of one the label is known not to move."""
    program = program_of("F1 F1 B1", spans=[Span(1, 0, 2, MemoryKind.KEPT), Span(2, 0, 2, MemoryKind.KEPT)])
    intervals = replace(program.intervals, layer=np.zeros(2), label=np.array([0, 1]))
    program = replace(program, intervals=intervals, labels=["weight", Names(("a",))])
    first, last = np.array([0, 0]), np.array([2, 2])
    assert _fixed_bytes(first, last, program).tolist() == [0, 0, 0]
    assert _fixed_bytes(first, last, program, {"weight"}).tolist() == [1, 1, 1]


def test_copies_of_weights_that_micro_batches_hold_do_not_move():
    """With several micro-batches in flight each holds its copy of a weight; all else of the layer may leave it."""
    model = small_model(4, 2, 4)
    assert _unmoved(model) == frozenset()
    plain = model._layer_block
    weight = BlockTensor("copy", MB, True, False, 0, Consumers(1, 1, 1, 1, 1), None)

    def with_weight(policy: Policy, layer_index: int, is_swapping: bool) -> Block:
        block = plain(policy, layer_index, is_swapping)
        return Block(block.forward, block.backward, (*block.tensors, weight), block.reads, block.per_step_operators)

    model._layer_block = with_weight
    assert _unmoved(model) == {"copy"}
    known = compute_liveness(model, 4)
    model._layer_block = plain
    other = compute_liveness(model, 4)
    # Stage 0 has 2 layers, and up to 2 micro-batches in flight.
    assert (known.fixed_bytes - other.fixed_bytes).max() == 2 * 2 * MB


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
