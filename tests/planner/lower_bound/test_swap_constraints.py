"""What the lower bound lets a layer swap: names, copies, windows, the host; times worked out by hand."""

from dataclasses import replace

from mindswap.planner.lower_bound.communication_gaps import CommunicationGap
from mindswap.planner.lower_bound.tensor_graph import TensorGraph
from mindswap.planner.problem import Allow
from tests.planner.lower_bound.builders import (
    FLOW,
    PLENTY,
    bound,
    bound_inputs,
)


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
    assert window.only_for(tensor_graph.producers, tensor_graph.reads) == {1: {1}, 2: {1, 2}}
    assert bound(bound_inputs(tensor_graph), 50, Allow(swap=False)) == 1000 + 2 * (20 - 10) // 2


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
