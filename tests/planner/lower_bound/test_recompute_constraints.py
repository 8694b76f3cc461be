"""What the lower bound lets a layer recompute: inputs, cells, functions, communication; times worked out by hand."""

from dataclasses import replace

import pytest

from mindswap.planner.lower_bound import BoundInputs, least_budget_bytes
from mindswap.planner.lower_bound.communication_gaps import CommunicationGap
from mindswap.planner.lower_bound.inputs import StageLayers
from mindswap.planner.lower_bound.recomputed_cells import RecomputedCell
from mindswap.planner.lower_bound.tensor_graph import TensorGraph
from mindswap.planner.problem import Allow
from tests.planner.lower_bound.builders import (
    FLOW,
    PLENTY,
    bound,
    bound_inputs,
)


def test_the_cheaper_byte_runs_again():
    """100 bytes over: the first tensor takes 10 ns for 100 bytes, the second 20 ns for 50; one of two layers does."""
    assert bound(bound_inputs(), 200, Allow(swap=False)) == 1010


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


def test_functions_of_a_cell_run_again_in_the_same_layers():
    """50 bytes have to go: half of the second tensor runs again in both layers, and reads the first, which is kept.

    If both run again with their cell, a sixth of each layer does, in 12 ns.
    """
    tensor_graph = TensorGraph(**{**vars(FLOW), "recompute_ns": (10, 2)})
    assert bound(bound_inputs(tensor_graph), 250, Allow(swap=False)) == 1000 + 2
    cell = RecomputedCell(frozenset({1}), frozenset({0, 1}), frozenset({0, 1}))
    swapped_together = TensorGraph(**{**vars(tensor_graph), "recomputed_cells": (cell,)})
    assert bound(bound_inputs(swapped_together), 250, Allow(swap=False)) == 1000 + 2 * 12 // 6


def test_a_layer_that_runs_again_holds_what_it_hands_on():
    """The first tensor goes only if the layer runs again, and then the second one stays: it is read by others."""
    known = {**vars(FLOW), "outputs": frozenset({1}), "unswappable_tensors": frozenset({0})}
    for path, least_bytes in (("", 2 * 50), ("mlp", 0)):
        cell = RecomputedCell(frozenset({0}), frozenset({0}), frozenset({0}), path=path)
        inputs = bound_inputs(TensorGraph(**{**known, "recomputed_cells": (cell,)}), window_ns=PLENTY)
        assert least_budget_bytes(inputs, PLENTY, Allow()) == least_bytes


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


def test_communication_and_compute_that_run_again_hide_each_other_at_most():
    """Two thirds of each tensor: 20 ns of communication beside 6.7 + 13.3 ns of compute."""
    gathered = TensorGraph(**{**vars(FLOW), "communication_ns": (30, 0), "overlapping_ops": {0: frozenset({0, 1})}})
    assert bound(bound_inputs(gathered), 200, Allow(swap=False)) == 1020
    # What stands nowhere else waits for all of it.
    alone = TensorGraph(**{**vars(gathered), "overlapping_ops": {0: frozenset()}})
    assert bound(bound_inputs(alone), 200, Allow(swap=False)) == 1040


def test_what_is_held_under_no_name_is_kept_or_runs_again_with_its_cell():
    """The first tensor of both layers has 100 bytes; without recompute it stays, with it the cell frees all."""
    cell = RecomputedCell(frozenset(), frozenset({0, 1}), frozenset({0, 1}), held=frozenset({0}), path="mlp")
    inputs = bound_inputs(TensorGraph(**{**vars(FLOW), "recomputed_cells": (cell,)}), window_ns=PLENTY)
    assert least_budget_bytes(inputs, PLENTY, Allow()) == 0
    assert least_budget_bytes(inputs, PLENTY, Allow(recompute=False)) == 2 * 100
    free = replace(cell, held=frozenset())
    inputs = bound_inputs(TensorGraph(**{**vars(FLOW), "recomputed_cells": (free,)}), window_ns=PLENTY)
    assert least_budget_bytes(inputs, PLENTY, Allow(recompute=False)) == 0


@pytest.mark.parametrize(("inputs", "least_bytes"), [(frozenset(), 0), (frozenset({(1, 0)}), 2 * 50)])
def test_what_a_recomputed_cell_reads_under_no_name_is_kept(inputs, least_bytes):
    """The second tensor, of 50 bytes, is recomputed with its cell alone, from the first, of 100, which never is.

    If nothing can name the first one outside of the cell, it is kept for that: so it is swapped, and the second kept.
    """
    cell = RecomputedCell(frozenset({1}), frozenset({1}), frozenset({1}), inputs=inputs, path="mlp")
    limits = {"unswappable_tensors": frozenset({1}), "never_recomputed": frozenset({0})}
    known = bound_inputs(TensorGraph(**{**vars(FLOW), **limits, "recomputed_cells": (cell,)}), window_ns=PLENTY)
    assert least_budget_bytes(known, PLENTY, Allow()) == least_bytes
