"""Schedule of a step: prefetch distances of storages in, actions at events out.

`backward_prefetch` p of the graph form counts operators, as MindSpore's Ascend backend does (acl_stream_assign.cc,
insert_pre_fetch_depend.cc): the memory is given back behind the operator p places after the copy began, and taken
again behind the operator p + 1 places before the first that needs it. MindFormers 2.x counts layers: the memory is
given back when layer i + p has run forward, and taken again when it begins backward.

    forward  .. make . save [OFFLOAD] . . p . . [RELEASE] ....
    backward .................. [PREFETCH] . . p . . [WAIT] read . last read [DROP]

An executor learns of a step only at its events (a save, a read, the end of a layer), so an action falls on the first
event behind the moment that is meant, for a prefetch on the last one before it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from mindswap.policy.resolve import LayerDecisions
from mindswap.pynative.trace import BACKWARD_KINDS, Event, EventKind, Operator, Trace, TracedStorage


class Unit(Enum):
    """Unit of a prefetch distance."""

    OPERATORS = "operators"
    LAYERS = "layers"


@dataclass(frozen=True)
class Distance:
    """Distance of a storage: it comes back so long before its first use, and goes so long after it was made."""

    count: int  # operators or layers
    unit: Unit = Unit.OPERATORS  # which of them


class ActionKind(Enum):
    """One step in the life of a saved storage; the order is that of actions at one event."""

    ADD = "saved"  # it counts as live from here
    WAIT = "wait"  # until the copy from the host has ended; its host memory is free then
    DROP = "drop"  # backward has read it for the last time
    OFFLOAD = "offload"  # the copy to the host starts
    RELEASE = "release"  # wait for that copy, then give the device memory back
    PREFETCH = "prefetch"  # take device memory, then start the copy from the host


@dataclass(frozen=True)
class StorageAction:
    """Action on one storage at one event."""

    kind: ActionKind
    storage: int


@dataclass(frozen=True)
class StepSchedule:
    """All that an executor needs of a step."""

    hooked_layers: tuple[int, ...]  # layers whose saves it has to see
    events: tuple[Event, ...]  # what it will see, in order; `index` of a save or a read counts the saves of the trace
    actions: tuple[tuple[StorageAction, ...], ...]  # for each event, what is done there
    moved: tuple[int, ...]  # storages that leave the device, in order of their first save

    @property
    def first_event(self) -> tuple[EventKind, int]:
        """Begin of forward: there again where several micro-batches have one backward pass together."""
        return self.events[0].kind, self.events[0].index


def make_schedule(trace: Trace, decisions: Mapping[int, Distance], hooked_layers: Sequence[int] = ()) -> StepSchedule:
    """Actions of one step; `decisions` has the prefetch distance of each storage that moves.

    A storage that may not leave the device, or would be fetched before it is released, stays. `hooked_layers` are
    watched besides those that have something to move.
    """
    wanted = {
        index: distance
        for index, distance in decisions.items()
        if not trace.storages[index].protection and trace.storages[index].size_bytes
    }
    watched = {save.layer_index for save in trace.saves if save.storage in wanted}
    hooked = tuple(sorted(watched | set(hooked_layers)))
    events = trace.events_for_layers(hooked)
    clock = _Clock(trace, events)
    actions: list[list[StorageAction]] = [[] for _ in events]
    moved = []
    for index in sorted(clock.saves):
        storage = trace.storages[index]
        # It is gone with the event behind its last read, or with the step.
        reads = clock.reads.get(index, [len(events)])
        if storage.size_bytes and not storage.protection:
            actions[clock.saves[index][0]].append(StorageAction(ActionKind.ADD, index))
            actions[min(reads[-1] + 1, len(events) - 1)].append(StorageAction(ActionKind.DROP, index))
        moments = _transfer_events(clock, trace, index, storage, wanted[index]) if index in wanted else None
        if moments is None or not moments[0] <= moments[1] < moments[2] < reads[0]:
            continue
        moved.append(index)
        kinds = (ActionKind.OFFLOAD, ActionKind.RELEASE, ActionKind.PREFETCH, ActionKind.WAIT)
        for kind, moment in zip(kinds, (*moments, reads[0]), strict=True):
            actions[moment].append(StorageAction(kind, index))
    order = list(ActionKind)
    in_order = (tuple(sorted(found, key=lambda a: (order.index(a.kind), a.storage))) for found in actions)
    return StepSchedule(hooked, events, tuple(in_order), tuple(moved))


class _Clock:
    """Positions of events, by what they are."""

    def __init__(self, trace: Trace, events: Sequence[Event]):
        self.events = events
        self.times = [event.num_operators for event in events]
        self.ends: dict[tuple[EventKind, int], list[int]] = {}
        self.saves: dict[int, list[int]] = {}
        self.reads: dict[int, list[int]] = {}
        self.forward_end = 0  # the last event of forward; a recomputed layer begins, saves and ends in backward again
        is_forward = True
        for position, event in enumerate(events):
            if event.kind is EventKind.SAVE:
                self.saves.setdefault(trace.saves[event.index].storage, []).append(position)
            elif event.kind is EventKind.READ:
                self.reads.setdefault(trace.saves[event.index].storage, []).append(position)
            else:
                self.ends.setdefault((event.kind, event.index), []).append(position)
            is_forward = is_forward and event.kind not in BACKWARD_KINDS
            if is_forward:
                self.forward_end = position

    def first_event_after(self, num_operators: int) -> int:
        """The first event at which so many operators have begun; the last one of forward if there is none."""
        return min(bisect_left(self.times, num_operators), self.forward_end)

    def last_event_before(self, num_operators: int) -> int:
        """The last event at which no more than so many operators have begun, in backward."""
        return max(bisect_right(self.times, num_operators) - 1, self.forward_end + 1)


def _transfer_events(
    clock: _Clock, trace: Trace, index: int, storage: TracedStorage, distance: Distance
) -> tuple[int, int, int] | None:
    """Moments at which a storage is offloaded, released and prefetched; None if there are no such moments."""
    reads = clock.reads.get(index)
    if reads is None or clock.saves[index][0] > clock.forward_end:  # nobody needs it again, or only backward does
        return None
    last_save = clock.saves[index][-1]
    saved = [trace.saves[clock.events[position].index] for position in clock.saves[index]]
    # It cannot go before the last operator of forward that reads it has run, which is sure when the next one has
    # begun (some operators have their inputs saved before they run), nor before all saves of it are known.
    earliest = max(clock.first_event_after(storage.last_use + 2), last_save + 1)
    if distance.unit is Unit.LAYERS:
        layer = max(save.layer_index for save in saved)
        ahead = layer + distance.count
        if ahead >= trace.num_layers:  # no layer behind it whose end would release it
            return None
        # Of several micro-batches in one pass, those of its own.
        ended = [next(at for at in clock.ends[EventKind.FORWARD_END, i] if at > last_save) for i in (layer, ahead)]
        begun = [at for at in clock.ends.get((EventKind.BACKWARD_BEGIN, ahead), ()) if at <= reads[0]]
        return (ended[0], max(ended[1], earliest), begun[-1]) if begun else None
    made = saved[0].operator if storage.maker is None else storage.maker
    release = max(clock.first_event_after(made + distance.count + 1), earliest)
    first_read = clock.times[reads[0]]
    return clock.saves[index][0], release, clock.last_event_before(first_read - distance.count - 1)


# Policy -> which storages of a trace leave the device.


def find_distances(trace: Trace, layers: Sequence[LayerDecisions], unit: Unit = Unit.OPERATORS) -> dict[int, Distance]:
    """Prefetch distance of each storage that a policy names, in this unit.

    As in graph mode a storage goes with the operator that makes it: an entry that names the operator, or a cell around
    it, takes it along. Functions that no cell holds (`x + y`, `mint.matmul`) go with their cell. What no operator was
    seen to make (on CPU a kernel copies a view before it uses it) goes with the operator that saves it.
    """
    found = {}
    for save in trace.saves:
        maker = trace.storages[save.storage].maker
        operator = trace.operators[save.operator if maker is None else maker]
        if operator.layer_index is None or save.storage in found:
            continue
        count = _prefetch(layers[operator.layer_index], operator)
        if count is not None:
            found[save.storage] = Distance(count, unit)
    return found


def _prefetch(layer: LayerDecisions, operator: Operator) -> int | None:
    """Distance that a policy asks of an operator; of several that cannot be told apart, all must be named.

    Recompute does not count: in PyNative mode the layer that runs again is recorded as it runs.
    """
    distances = [layer.decision_for(path).requested_prefetch for path in operator.paths]
    known = [distance for distance in distances if distance is not None]
    return min(known) if len(known) == len(distances) else None
