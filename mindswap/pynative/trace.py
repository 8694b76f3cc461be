"""One step in PyNative mode as it ran: operators, what autograd saved, and when it was read again. Plain data.

Recorded by `adapters.pynative.record`. A trace is made on one device, and says which: on CPU an operator copies a
strided input first, so views are storages of their own there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

__all__ = ["Event", "EventKind", "Operator", "Save", "TracedStorage", "Trace", "Value"]


class EventKind(Enum):
    """What an executor is told while a step runs."""

    FORWARD_BEGIN = "forward begin"  # of a layer
    SAVE = "save"  # autograd keeps a tensor
    FORWARD_END = "forward end"
    BACKWARD_BEGIN = "backward begin"
    READ = "read"  # backward takes a saved tensor


@dataclass(frozen=True)
class Event:
    """One moment of a step.

    Attributes:
        kind: what happens.
        index: of the layer, or of the save, in the order of a step.
        num_operators: operators that had begun before, those of backward included; the clock of
            `backward_prefetch`.
    """

    kind: EventKind
    index: int
    num_operators: int


@dataclass(frozen=True)
class Value:
    """A tensor that an operator takes or gives.

    Attributes:
        memory: number of its piece of memory, in order of first sight; tensors that share one have the same.
        size_bytes: of the whole piece.
        shape, dtype: of the tensor.
        weight: name of the parameter; "" for no weight.
        copy_of: memory of the view that it is a kernel's own copy of; None for what an operator made.
    """

    memory: int
    size_bytes: int
    shape: tuple[int, ...]
    dtype: str
    weight: str = ""
    copy_of: int | None = None


@dataclass(frozen=True)
class Operator:
    """One operator of a step.

    Attributes:
        name: primitive name, e.g. `MatMul`.
        layer_index: None outside the layers.
        path: below the layer: names of cells, then that of the primitive; its primitive name if no cell holds it.
        is_forward: forward or backward.
        inputs, outputs: its tensors; empty where the trace was recorded to be executed only.
        also: other names of its cell for primitives of this type: which of them ran is not known.
    """

    name: str
    layer_index: int | None
    path: tuple[str, ...]
    is_forward: bool
    inputs: tuple[Value, ...] = ()
    outputs: tuple[Value, ...] = ()
    also: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[tuple[str, ...], ...]:
        """All that may be its path."""
        return (self.path, *((*self.path[:-1], name) for name in self.also))


@dataclass(frozen=True)
class Save:
    """A tensor that autograd keeps, once for each operator that needs it.

    Attributes:
        storage: index in `Trace.storages`.
        layer_index: layer that runs at that moment.
        operator: index of the operator that saves it.
        shape, dtype: of the tensor, which may be a part of its storage.
    """

    storage: int
    layer_index: int
    operator: int
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class TracedStorage:
    """A piece of device memory that backward needs.

    Attributes:
        size_bytes: of the whole storage.
        maker: index of the operator that made it; None for what the caller owns, and copies that kernels make of views.
        last_use: index of the last operator of forward that may read it. Of what has a view, or goes in or out of
            a layer, that is the last one of the layer: uses of a view cannot be told.
        protection: why it may not leave the device: "weight", "input", "output"; "" if it may.
        memory: its number in the values of operators; None where these were not recorded.
    """

    size_bytes: int
    maker: int | None
    last_use: int
    protection: str = ""
    memory: int | None = None


@dataclass(frozen=True)
class Trace:
    """One forward and backward pass.

    Attributes:
        num_layers: layers of the network.
        operators: in the order in which they began, forward before backward.
        storages: in order of their first save.
        saves: in order.
        events: in order.
        device: where it was recorded, e.g. `CPU`.
    """

    num_layers: int
    operators: tuple[Operator, ...]
    storages: tuple[TracedStorage, ...]
    saves: tuple[Save, ...]
    events: tuple[Event, ...]
    device: str = "CPU"

    def events_of(self, layers: Sequence[int]) -> tuple[Event, ...]:
        """What an executor sees that has its hooks in some layers only: begins and ends
        of all layers, saves and reads of these."""
        chosen = frozenset(layers)
        return tuple(
            event
            for event in self.events
            if event.kind not in (EventKind.SAVE, EventKind.READ) or self.saves[event.index].layer_index in chosen
        )
