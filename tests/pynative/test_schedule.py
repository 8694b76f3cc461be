"""When storages go and come back, worked out by hand on three layers of four operators.

Events (number of operators that had begun), position first:

    0 f0<(0)  1 save 0(3)  2 f0>(4)  3 f1<(4)  4 save 1(7)  5 f1>(8)  6 f2<(8)  7 save 2(11)  8 f2>(12)
    9 b2<(12) 10 read 2(12) 11 b1<(16) 12 read 1(16) 13 b0<(20) 14 read 0(20)
"""

from dataclasses import replace

import pytest

from mindswap.pynative.ledger import Ledger, predict
from mindswap.pynative.schedule import ActionKind, Distance, StorageAction, Unit, make_schedule
from mindswap.pynative.trace import EventKind, TracedStorage
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
