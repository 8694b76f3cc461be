"""Copies of mindswap's own executor in a step of MindFormers 2.x, by layer and by entry of the file."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mindswap.policy.formats.mindformers2.effect import SettingsEffect
from mindswap.pynative.by_tensor import find_distances_2x
from mindswap.pynative.schedule import ActionKind, StepSchedule, make_schedule
from mindswap.pynative.trace import EventKind, Trace


@dataclass(frozen=True)
class LayerCopies:
    """Copies of a layer in a step, each storage once.

    Attributes:
        layer: index of the layer that saves the storages.
        out_bytes: copied to the host.
        back_bytes: copied back.
        num_out: copies to the host.
        num_back: copies to the device.
        released_by: last layer at the end of whose forward device memory is freed; None if at another event.
        fetched_by: last layer at the begin of whose backward copies back start; None if at another event.
    """

    layer: int
    out_bytes: int
    back_bytes: int
    num_out: int
    num_back: int
    released_by: int | None
    fetched_by: int | None


def find_own_copies(
    trace: Trace, effect: SettingsEffect, layer_indices: Sequence[int]
) -> tuple[tuple[LayerCopies, ...], Mapping[str, Sequence[int]]]:
    """Return the copies of each layer, and the layers in which each entry of the file moves something.

    Args:
        trace: the step that the executor follows.
        effect: the settings, and the paths in each layer.
        layer_indices: index in the model of each layer of the trace, which is of a pipeline stage or of all layers.
    """
    schedule = make_schedule(trace, find_distances_2x(trace, effect, layer_indices))
    layer_of = {save.storage: layer_indices[save.layer_index] for save in trace.saves}  # of several layers the last one
    by_layer: dict[int, list[int]] = {}
    for storage in schedule.moved:
        by_layer.setdefault(layer_of[storage], []).append(storage)
    released, fetched = (
        dict(_layers_of_actions(schedule, *kinds))
        for kinds in ((ActionKind.RELEASE, EventKind.FORWARD_END), (ActionKind.PREFETCH, EventKind.BACKWARD_BEGIN))
    )
    copies = []
    for layer, storages in sorted(by_layer.items()):
        size_bytes, count = sum(trace.storages[storage].size_bytes for storage in storages), len(storages)
        release = max((layer_indices[released[s]] for s in storages if s in released), default=None)
        fetch = max((layer_indices[fetched[s]] for s in storages if s in fetched), default=None)
        copies.append(LayerCopies(layer, size_bytes, size_bytes, count, count, release, fetch))
    moved = frozenset(schedule.moved)
    settings, targets = effect.settings, {}
    for target in (*settings.of("layer_swap"), *settings.of("op_swap")):
        alone = replace(effect, settings=replace(settings, targets=(target,)))
        targets[target.path] = sorted(
            {layer_of[s] for s in find_distances_2x(trace, alone, layer_indices) if s in moved}
        )
    return tuple(copies), targets


def _layers_of_actions(schedule: StepSchedule, action: ActionKind, event_kind: EventKind) -> Iterator[tuple[int, int]]:
    """Yield the storages with an action at an event of a kind, and the layer of the event."""
    for event, actions in zip(schedule.events, schedule.actions, strict=True):
        if event.kind is event_kind:
            yield from ((each.storage, event.index) for each in actions if each.kind is action)
