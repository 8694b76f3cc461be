"""When storages go and come back, worked out by hand on three layers of four operators.

Events (number of operators that had begun), position first:

    0 f0<(0)  1 save 0(3)  2 f0>(4)  3 f1<(4)  4 save 1(7)  5 f1>(8)  6 f2<(8)  7 save 2(11)  8 f2>(12)
    9 b2<(12) 10 read 2(12) 11 b1<(16) 12 read 1(16) 13 b0<(20) 14 read 0(20)
"""

from dataclasses import asdict, replace

import pytest

from mindswap.policy.cell_tree import CellNode
from mindswap.policy.model import ALL_LAYERS, Layers, LayerSwap, OpSwap, Policy
from mindswap.policy.resolve import resolve_layer
from mindswap.pynative.ledger import JointPeak, Ledger, SwapReport, Totals, predict
from mindswap.pynative.schedule import (
    ActionKind,
    Distance,
    StorageAction,
    Unit,
    _prefetch,
    find_distances,
    make_schedule,
)
from mindswap.pynative.trace import EventKind, Operator, TracedStorage
from mindswap.report.pynative import format_swap_report
from tests.pynative.builders import chain


def moments(schedule, storage):
    """Position of each action on a storage."""
    return {
        action.kind.name: position
        for position, actions in enumerate(schedule.actions)
        for action in actions
        if action.storage == storage
    }


def test_a_storage_goes_when_its_last_reader_has_run_and_comes_back_just_before_its_first():
    """Layer 0: made by operator 1, last read by 2; the next event with 4 operators begun is f0> (2). First read at 20
    operators: with p = 0 the last event with at most 19 begun is read 1 (12)."""
    schedule = make_schedule(chain(), {0: Distance(0)})
    # Saves and reads of other layers are not seen: f0< save f0> f1< f1> f2< f2> b2< b1< b0< read.
    assert schedule.hooked_layers == (0,)
    assert [event.kind for event in schedule.events].count(EventKind.READ) == 1
    assert moments(schedule, 0) == {"ADD": 1, "OFFLOAD": 1, "RELEASE": 2, "PREFETCH": 8, "WAIT": 10, "DROP": 10}


def test_a_longer_distance_releases_later_and_fetches_earlier():
    """p = 4: released when 1 + 4 + 1 = 6 operators have begun: save 1 (7), as layer 1 is watched. Fetched with at most
    20 - 4 - 1 = 15 begun: read 2 (12) of position 10."""
    schedule = make_schedule(chain(), {0: Distance(4)}, hooked_layers=range(3))
    assert moments(schedule, 0) == {"ADD": 1, "OFFLOAD": 1, "RELEASE": 4, "PREFETCH": 10, "WAIT": 14, "DROP": 14}


def test_a_storage_stays_until_the_operator_behind_the_distance_has_run():
    """p = 6: operator 1 + 6 = 7 has run when 8 have begun, at f1> (5); at save 1 (4) only 7 had."""
    assert moments(make_schedule(chain(), {0: Distance(6)}, hooked_layers=range(3)), 0)["RELEASE"] == 5


def test_a_storage_stays_until_the_operator_behind_its_last_reader_has_begun():
    """Operator 6 of layer 1 reads it, too. At save 1 (4) 7 had begun, so 6 may still run; at f1> (5) 8 had."""
    trace = chain()
    storages = (replace(trace.storages[0], last_use=6), *trace.storages[1:])
    schedule = make_schedule(replace(trace, storages=storages), {0: Distance(0)}, hooked_layers=range(3))
    assert moments(schedule, 0)["RELEASE"] == 5


def test_what_is_needed_at_once_is_away_between_forward_and_backward():
    """Layer 2: released with the last event of forward, f2> (8), taken again with the first of backward, b2< (9)."""
    found = moments(make_schedule(chain(), {2: Distance(9)}, hooked_layers=range(3)), 2)
    assert (found["RELEASE"], found["PREFETCH"], found["WAIT"]) == (8, 9, 10)


def test_what_a_recomputed_layer_saves_in_backward_stays():
    """Its save stands behind the first event of backward."""
    trace = chain()
    events = list(trace.events)
    save = events.pop(1)
    events.insert(13, replace(save, num_operators=20))
    trace = replace(trace, events=tuple(events))
    assert make_schedule(trace, {0: Distance(0)}).moved == ()


@pytest.mark.parametrize(("count", "moved"), [(1, (0, 1)), (2, (0,)), (3, ())])
def test_the_last_layers_stay_where_distances_count_layers(count, moved):
    schedule = make_schedule(chain(), dict.fromkeys(range(3), Distance(count, Unit.LAYERS)))
    assert schedule.moved == moved


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_last_layers_move_where_that_is_asked_for(count):
    """They go at f2> (8) and are fetched at b2< (9); layer 2 itself has no event before its read at 10."""
    distance = Distance(count, Unit.LAYERS, moves_last_layers=True)
    schedule = make_schedule(chain(), dict.fromkeys(range(3), distance))
    assert schedule.moved == (0, 1, 2)
    last = moments(schedule, 2)
    assert last["OFFLOAD"] == last["RELEASE"] == 8 and last["PREFETCH"] == 9 < last["WAIT"]
    assert moments(schedule, 0)["RELEASE"] == {1: 5, 2: 8, 3: 8}[count]


def test_distances_in_layers_follow_the_ends_of_layers():
    """p = 1: offload at f0>, release at f1>, prefetch at b1<."""
    schedule = make_schedule(chain(), {0: Distance(1, Unit.LAYERS)}, hooked_layers=range(3))
    assert moments(schedule, 0) == {"ADD": 1, "OFFLOAD": 2, "RELEASE": 5, "PREFETCH": 11, "WAIT": 14, "DROP": 14}


def test_what_is_protected_is_neither_moved_nor_counted():
    trace = chain()
    weight = TracedStorage(100, None, 2, "weight")
    trace = type(trace)(3, trace.operators, (weight, *trace.storages[1:]), trace.saves, trace.events)
    schedule = make_schedule(trace, {0: Distance(0)}, hooked_layers=range(3))
    assert moments(schedule, 0) == {}


def test_live_bytes_over_time():
    """All three saved, none moved: 100, 200, 300 bytes; each dropped with the event behind its read."""
    trace = chain()
    totals = predict(trace, make_schedule(trace, {}, hooked_layers=range(3)))
    assert totals.device_bytes == (0, 100, 100, 100, 200, 200, 200, 300, 300, 300, 300, 200, 200, 100, 0)
    assert (totals.peak_device_bytes, totals.peak_host_bytes, totals.offloaded_bytes) == (300, 0, 0)


def test_live_bytes_where_layers_move():
    """p = 1 layer: 0 goes at f1>, 1 at f2>; 1 is back at b2<, 0 at b1<. Three are there at save 2 and at b2<."""
    trace = chain()
    schedule = make_schedule(trace, dict.fromkeys(range(3), Distance(1, Unit.LAYERS)), hooked_layers=range(3))
    totals = predict(trace, schedule)
    assert totals.device_bytes == (0, 100, 100, 100, 200, 100, 100, 200, 100, 200, 200, 200, 200, 100, 0)
    assert (totals.peak_device_bytes, totals.peak_host_bytes) == (200, 200)
    assert (totals.offloaded_bytes, totals.prefetched_bytes) == (200, 200)


def test_host_memory_is_free_when_a_storage_is_back():
    """Storage 1 goes when 0 is back: never two on the host."""
    ledger = Ledger()
    ledger.book(ActionKind.ADD, 1, 100)
    for kind in (ActionKind.ADD, ActionKind.OFFLOAD, ActionKind.RELEASE, ActionKind.PREFETCH, ActionKind.WAIT):
        ledger.book(kind, 0, 100)
    assert ledger.host == {}
    ledger.book(ActionKind.OFFLOAD, 1, 100)
    assert ledger.host == {1: 100}
    assert ledger.totals.peak_host_bytes == 100


def test_the_ledger_refuses_what_cannot_be():
    ledger = Ledger()
    with pytest.raises(ValueError, match="storage 0: release in the wrong state"):
        ledger.book(ActionKind.RELEASE, 0, 100)
    ledger.book(ActionKind.ADD, 0, 100)
    with pytest.raises(ValueError, match="storage 0: saved in the wrong state"):
        ledger.book(ActionKind.ADD, 0, 100)


def test_the_ledger_refuses_a_copy_of_what_is_away_or_on_the_host():
    ledger = Ledger()
    with pytest.raises(ValueError, match="storage 0: offload in the wrong state"):
        ledger.book(ActionKind.OFFLOAD, 0, 100)
    ledger.book(ActionKind.ADD, 0, 100)
    ledger.book(ActionKind.OFFLOAD, 0, 100)
    with pytest.raises(ValueError, match="storage 0: offload in the wrong state"):
        ledger.book(ActionKind.OFFLOAD, 0, 100)


def test_the_ledger_refuses_to_wait_for_what_is_not_coming_back():
    ledger = Ledger()
    ledger.book(ActionKind.ADD, 0, 100)
    with pytest.raises(ValueError, match="storage 0: wait in the wrong state"):  # it is on the device alone
        ledger.book(ActionKind.WAIT, 0, 100)
    ledger.book(ActionKind.OFFLOAD, 0, 100)
    ledger.book(ActionKind.RELEASE, 0, 100)
    with pytest.raises(ValueError, match="storage 0: wait in the wrong state"):  # on the host alone
        ledger.book(ActionKind.WAIT, 0, 100)


@pytest.mark.parametrize(("distances", "found"), [((5, 2), 2), ((2, 5), 2), ((5, None), None)])
def test_of_operators_that_cannot_be_told_apart_the_shortest_distance_counts_if_all_are_named(distances, found):
    tree = CellNode("", "Layer", children=(CellNode("mul", "Mul", True), CellNode("mul2", "Mul", True)))
    named = zip(("mul", "mul2"), distances, strict=True)
    swaps = tuple(OpSwap(name, ALL_LAYERS, distance) for name, distance in named if distance is not None)
    decided = resolve_layer(Policy(is_swap_enabled=True, op_swap=swaps), 0, tree)
    assert _prefetch(decided, Operator("Mul", 0, ("mul",), True, alternative_names=("mul2",))) == found


def test_what_backward_never_reads_stays():
    trace = chain()
    events = tuple(e for e in trace.events if (e.kind, e.index) != (EventKind.READ, 0))
    schedule = make_schedule(replace(trace, events=events), {0: Distance(0)})
    assert schedule.moved == ()
    assert schedule.first_event == (EventKind.FORWARD_BEGIN, 0)


def test_actions_of_one_event_come_in_the_order_of_a_life():
    """At b1< (11) layer 2 is dropped before layer 0 takes memory."""
    trace = chain()
    schedule = make_schedule(trace, {0: Distance(1, Unit.LAYERS)}, hooked_layers=range(3))
    assert schedule.actions[11] == (StorageAction(ActionKind.DROP, 2), StorageAction(ActionKind.PREFETCH, 0))


def test_a_storage_stays_until_all_its_saves_are_known():
    """Layer 1 saves it too, at position 4; by its readers alone it could go at f0> (2)."""
    trace = chain()
    events = list(trace.events)
    events.insert(5, replace(events[1], num_operators=7))  # save 0 once more, behind save 1
    saves = (*trace.saves, replace(trace.saves[0], layer_index=1))
    found = moments(make_schedule(replace(trace, events=tuple(events), saves=saves), {0: Distance(0)}, range(3)), 0)
    assert found["RELEASE"] == 6


# Which storages a policy names.


TREE = CellNode("", "Layer", children=(CellNode("cell", "Cell", children=(CellNode("op1", "Op", is_primitive=True),)),))


def decisions(unit=Unit.OPERATORS, trace=None, **settings):
    """What a policy makes of the chain, whose storages are made by `cell.op1`."""
    policy = Policy(is_swap_enabled=True, **settings)
    return find_distances(trace or chain(), [resolve_layer(policy, index, TREE) for index in range(3)], unit)


def test_an_operator_by_its_path():
    swap = OpSwap(r"cell\.op1", Layers((0, 2)), 7)
    assert decisions(op_swap=(swap,)) == {0: Distance(7), 2: Distance(7)}


def test_a_cell_names_all_below_it():
    assert decisions(op_swap=(OpSwap("cell", Layers((1,)), 3),)) == {1: Distance(3)}


def test_another_operator_names_nothing():
    tree = CellNode("", "Layer", children=(CellNode("other", "Op", is_primitive=True),))
    policy = Policy(is_swap_enabled=True, op_swap=(OpSwap("other", ALL_LAYERS, 3),))
    assert find_distances(chain(), [resolve_layer(policy, index, tree) for index in range(3)]) == {}


def test_an_operator_overrides_its_layer():
    found = decisions(
        layer_swap=(LayerSwap(ALL_LAYERS, 1),), op_swap=(OpSwap("cell", Layers((1,)), 5),), unit=Unit.LAYERS
    )
    assert found == {0: Distance(1, Unit.LAYERS), 1: Distance(5, Unit.LAYERS), 2: Distance(1, Unit.LAYERS)}


def test_what_no_operator_made_goes_with_the_one_that_saves_it():
    """The saver is `cell.op2`, which only the cell names."""
    trace = chain()
    trace = replace(trace, storages=tuple(replace(storage, producer=None) for storage in trace.storages))
    assert decisions(trace=trace, op_swap=(OpSwap(r"cell\.op1", ALL_LAYERS, 2),)) == {}
    assert len(decisions(trace=trace, op_swap=(OpSwap("cell", ALL_LAYERS, 2),))) == 3


def test_one_of_two_names_that_cannot_be_told_apart_is_not_enough():
    trace = chain()
    operators = tuple(replace(op, path=("cell", "op1"), alternative_names=("op9",)) for op in trace.operators)
    trace = replace(trace, operators=operators)
    assert decisions(trace=trace, op_swap=(OpSwap(r"cell\.op1", ALL_LAYERS, 2),)) == {}
    assert len(decisions(trace=trace, op_swap=(OpSwap("cell", ALL_LAYERS, 2),))) == 3


# Report.


# A pass: 64 bytes go and come back, at most 100 on the device and 64 on the host, nothing left.
PREDICTED = Totals((40, 100, 36, 100, 0), 100, 64, 64, 64)
OTHER = Totals((40, 120, 56, 120, 0), 120, 64, 64, 64)


def test_passes_are_summed_up_and_held_against_the_prediction():
    report = SwapReport("CPU").with_pass(PREDICTED, PREDICTED).with_pass(PREDICTED, PREDICTED)
    assert (report.num_passes, report.num_as_predicted, report.is_as_predicted) == (2, 2, True)
    assert (report.offloaded_bytes, report.prefetched_bytes) == (128, 128)
    assert (report.peak_device_bytes, report.predicted_peak_bytes, report.peak_host_bytes) == (100, 100, 64)


def test_one_pass_that_held_more_is_seen():
    report = SwapReport("CPU").with_pass(PREDICTED, PREDICTED).with_pass(OTHER, PREDICTED)
    assert (report.num_as_predicted, report.is_as_predicted, report.peak_device_bytes) == (1, False, 120)
    assert "1 NOT as predicted" in format_swap_report(report)[0]


def test_what_is_left_behind_is_not_as_predicted():
    assert not SwapReport("CPU", left_bytes=1).with_pass(PREDICTED, PREDICTED).is_as_predicted


def test_a_training_of_one_step_swapped_nothing():
    assert not SwapReport("CPU", num_recorded=1).is_as_predicted
    assert format_swap_report(SwapReport("CPU", num_recorded=1)) == [
        "swap in PyNative mode: no pass swapped; 1 recorded"
    ]


def test_what_other_code_holds_is_said_to_stay():
    report = SwapReport("CPU", held_bytes=3 << 10).with_pass(PREDICTED, PREDICTED)
    assert format_swap_report(report)[2:] == [
        "3.0 KiB of the policy stay on the device: other code holds them after forward"
    ]
    assert len(format_swap_report(SwapReport("CPU").with_pass(PREDICTED, PREDICTED))) == 2


def test_the_json_has_a_schema():
    data = SwapReport("CPU").with_pass(PREDICTED, PREDICTED).to_json()
    assert (data["schema"], data["version"], data["is_as_predicted"]) == ("mindswap-swap-report", 1, True)


def test_a_report_of_nothing_counts_nothing():
    numbers = [value for value in asdict(SwapReport("CPU")).values() if isinstance(value, int)]
    assert len(numbers) == 14 and not any(numbers)


def test_the_peak_of_passes_in_flight_is_the_highest_sum_after_any_event():
    """A pass keeps 100, 20 and 90 bytes by its schedule, 100 after each event without swap.

    Events: first pass 1, 2; second pass 1; first pass 3 (its end); second pass 2, 3. Sums: 100, 20, 120, 190, and
    behind the end of the first 20, 90. Without swap 100, 100, 200, 200, 100, 100.
    """
    peak = JointPeak(Totals((100, 20, 90), 100, 80, 80, 80), Totals((100, 100, 100), 100, 0, 0, 0))
    for key, num_events, device_bytes in ((7, 1, 100), (7, 2, 20), (8, 1, 100), (7, 3, 90), (8, 2, 30), (8, 3, 90)):
        peak.update(key, num_events, device_bytes)
    assert (peak.device_bytes, peak.predicted_bytes, peak.without_swap_bytes) == (190, 190, 200)
    assert peak.num_in_flight == 2
    report = SwapReport("CPU").with_pass(PREDICTED, PREDICTED).with_joint_peak(peak)
    assert (report.peak_device_bytes, report.peak_without_swap_bytes, report.num_in_flight) == (190, 200, 2)
    peak.update(9, 1, 50)
    peak.end(9)
    peak.update(10, 1, 60)
    assert peak.device_bytes == 190 and peak.num_in_flight == 2
