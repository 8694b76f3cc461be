"""Swap schedule of a step: from prefetch distances of storages to actions at events.

In the graph form, `backward_prefetch` p counts operators, as MindSpore's Ascend backend does (acl_stream_assign.cc,
insert_pre_fetch_depend.cc): device memory is released p operators after the copy to the host started, and allocated p +
1 operators before the first reader in backward. MindFormers 2.x counts layers: the memory of layer i is released at the
end of forward of layer i + p, and allocated when backward of that layer begins.

    forward  .. produce . save [OFFLOAD] . . p . . [RELEASE] ....
    backward ..................... [PREFETCH] . . p . . [WAIT] read . last read [DROP]

An executor acts only at events (a save, a read, the end of a layer). An action is therefore executed at the first event
after its intended time, and a prefetch at the last event before it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from mindswap.policy.resolve import LayerDecisions
from mindswap.pynative.trace import BACKWARD_KINDS, Event, EventKind, Operator, Trace, TracedStorage


class Unit(Enum):
    """Unit of a prefetch distance."""

    OPERATORS = "operators"
    LAYERS = "layers"


@dataclass(frozen=True)
class Distance:
    """Prefetch distance: a storage is released so long after its production, and fetched so long before its use."""

    count: int  # number of operators or layers
    unit: Unit = Unit.OPERATORS
    # In layers: the last `count` layers, which have no layer so far behind them, are released at the end of the last
    # one, and fetched when its backward begins. MindFormers 2.x does not swap them.
    moves_last_layers: bool = False


class ActionKind(Enum):
    """Action on a saved storage; actions at one event are executed in this order."""

    ADD = "saved"  # live from here on
    WAIT = "wait"  # wait for the copy from the host, then free the host memory
    DROP = "drop"  # after the last read of backward
    OFFLOAD = "offload"  # start the copy to the host
    RELEASE = "release"  # wait for that copy, then free the device memory
    PREFETCH = "prefetch"  # allocate device memory, then start the copy from the host


@dataclass(frozen=True)
class StorageAction:
    """Action on one storage at one event."""

    kind: ActionKind
    storage: int


@dataclass(frozen=True)
class StepSchedule:
    """Everything that an executor needs for a step."""

    hooked_layers: tuple[int, ...]  # layers whose saves it must observe
    events: tuple[Event, ...]  # expected events in order; `index` of a save or a read counts the saves of the trace
    actions: tuple[tuple[StorageAction, ...], ...]  # actions at each event
    moved: tuple[int, ...]  # swapped storages, in order of their first save

    @property
    def first_event(self) -> tuple[EventKind, int]:
        """Start of forward; it occurs once for each micro-batch if several share one backward pass."""
        return self.events[0].kind, self.events[0].index


def make_schedule(trace: Trace, decisions: Mapping[int, Distance], hooked_layers: Sequence[int] = ()) -> StepSchedule:
    """Return the actions of one step.

    A storage that must stay on the device, or would be prefetched before it is released, is not swapped.

    Args:
        trace: the step.
        decisions: prefetch distance of each storage to swap, by index.
        hooked_layers: layers to observe in addition to those with swapped storages.
    """
    swappable = {
        index: distance
        for index, distance in decisions.items()
        if not trace.storages[index].protection and trace.storages[index].size_bytes
    }
    watched = {save.layer_index for save in trace.saves if save.storage in swappable}
    hooked = tuple(sorted(watched | set(hooked_layers)))
    events = trace.events_for_layers(hooked)
    clock = _Clock(trace, events)
    actions: list[list[StorageAction]] = [[] for _ in events]
    moved = []
    for index in sorted(clock.saves):
        storage = trace.storages[index]
        # It is dropped at the event after its last read, or at the end of the step.
        reads = clock.reads.get(index, [len(events)])
        if storage.size_bytes and not storage.protection:
            actions[clock.saves[index][0]].append(StorageAction(ActionKind.ADD, index))
            actions[min(reads[-1] + 1, len(events) - 1)].append(StorageAction(ActionKind.DROP, index))
        transfer = _transfer_events(clock, trace, index, storage, swappable[index]) if index in swappable else None
        if transfer is None or not transfer.offload <= transfer.release < transfer.prefetch < reads[0]:
            continue
        moved.append(index)
        actions[transfer.offload].append(StorageAction(ActionKind.OFFLOAD, index))
        actions[transfer.release].append(StorageAction(ActionKind.RELEASE, index))
        actions[transfer.prefetch].append(StorageAction(ActionKind.PREFETCH, index))
        actions[reads[0]].append(StorageAction(ActionKind.WAIT, index))
    order = list(ActionKind)
    in_order = (
        tuple(sorted(event_actions, key=lambda a: (order.index(a.kind), a.storage))) for event_actions in actions
    )
    return StepSchedule(hooked, events, tuple(in_order), tuple(moved))


class _Clock:
    """Positions of events by kind."""

    def __init__(self, trace: Trace, events: Sequence[Event]):
        self.events = events
        self.times = [event.num_operators for event in events]
        self.ends: dict[tuple[EventKind, int], list[int]] = {}
        self.saves: dict[int, list[int]] = {}
        self.reads: dict[int, list[int]] = {}
        self.forward_end = 0  # last event of forward; recomputed layers have forward events in backward
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
        """Return the first event by which so many operators have started; the last one of forward if there is none."""
        return min(bisect_left(self.times, num_operators), self.forward_end)

    def end_after(self, layer_index: int, position: int) -> int:
        """Return the first end of forward of a layer after a position."""
        return next(end for end in self.ends[EventKind.FORWARD_END, layer_index] if end > position)

    def last_event_before(self, num_operators: int) -> int:
        """Return the last event of backward at which at most so many operators have started."""
        return max(bisect_right(self.times, num_operators) - 1, self.forward_end + 1)


class _TransferEvents(NamedTuple):
    """Positions of the events at which a storage is swapped."""

    offload: int
    release: int
    prefetch: int


def _transfer_events(
    clock: _Clock, trace: Trace, index: int, storage: TracedStorage, distance: Distance
) -> _TransferEvents | None:
    """Return the events at which a storage is swapped; None if it cannot be swapped."""
    reads = clock.reads.get(index)
    if reads is None or clock.saves[index][0] > clock.forward_end:  # never read, or saved in backward only
        return None
    last_save = clock.saves[index][-1]
    saved = [trace.saves[clock.events[position].index] for position in clock.saves[index]]
    # It cannot be released before its last reader in forward has run, which is certain once the next operator has
    # started (some operators save their inputs before they run), nor before all saves of it are known.
    earliest = max(clock.first_event_after(storage.last_use + 2), last_save + 1)
    if distance.unit is Unit.LAYERS:
        layer = max(save.layer_index for save in saved)
        ahead = layer + distance.count
        if distance.moves_last_layers:
            ahead = min(ahead, trace.num_layers - 1)
        if ahead >= trace.num_layers:  # no later layer releases it
            return None
        # Of several micro-batches in one pass, use the events of its own.
        own_end, ahead_end = clock.end_after(layer, last_save), clock.end_after(ahead, last_save)
        begun = [at for at in clock.ends.get((EventKind.BACKWARD_BEGIN, ahead), ()) if at <= reads[0]]
        return _TransferEvents(own_end, max(ahead_end, earliest), begun[-1]) if begun else None
    producer = saved[0].operator if storage.producer is None else storage.producer
    release = max(clock.first_event_after(producer + distance.count + 1), earliest)
    first_read = clock.times[reads[0]]
    return _TransferEvents(
        offload=clock.saves[index][0],
        release=release,
        prefetch=clock.last_event_before(first_read - distance.count - 1),
    )


# Storages of a trace that a policy swaps.


def find_distances(trace: Trace, layers: Sequence[LayerDecisions], unit: Unit = Unit.OPERATORS) -> dict[int, Distance]:
    """Return the prefetch distance of each storage that a policy names.

    As in graph mode, a storage belongs to its producer: an entry that names the operator or an enclosing cell includes
    it. Functions outside any cell (`x + y`, `mint.matmul`) belong to the calling cell. A storage without a recorded
    producer (on CPU, a kernel's copy of a view) belongs to the operator that saves it.

    Args:
        trace: the step.
        layers: decisions for each layer.
        unit: unit of the prefetch distances in the policy.
    """
    distances = {}
    for save in trace.saves:
        producer = trace.storages[save.storage].producer
        operator = trace.operators[save.operator if producer is None else producer]
        if operator.layer_index is None or save.storage in distances:
            continue
        count = _prefetch(layers[operator.layer_index], operator)
        if count is not None:
            distances[save.storage] = Distance(count, unit)
    return distances


def _prefetch(layer: LayerDecisions, operator: Operator) -> int | None:
    """Return the requested distance of an operator; if its path is ambiguous, all candidates must be named.

    Recompute is ignored, because a trace of PyNative mode records recomputed layers as executed.
    """
    distances = [layer.decision_for(path).requested_prefetch for path in operator.paths]
    named = [distance for distance in distances if distance is not None]
    return min(named) if len(named) == len(distances) else None
