"""One step in PyNative mode as it ran: operators, what autograd saved, and when it was read again. Plain data.

Recorded by `adapters.pynative.record`. A trace is made on one device, and says which: on CPU an operator copies a
strided input first, so views are storages of their own there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class EventKind(Enum):
    """What an executor is told while a step runs."""

    FORWARD_BEGIN = "forward begin"  # of a layer
    SAVE = "save"  # autograd keeps a tensor
    FORWARD_END = "forward end"
    BACKWARD_BEGIN = "backward begin"
    READ = "read"  # backward takes a saved tensor


@dataclass(frozen=True)
class Event:
    """One moment of a step."""

    kind: EventKind  # what happens
    index: int  # of the layer, or of the save, in the order of a step
    num_operators: int  # operators that had begun before, those of backward included; the clock of `backward_prefetch`


@dataclass(frozen=True)
class Value:
    """A tensor that an operator takes or gives."""

    memory: int  # number of its piece of memory, in order of first sight; tensors that share one have the same
    size_bytes: int  # of the whole piece
    shape: tuple[int, ...]  # of the tensor
    dtype: str
    weight: str = ""  # name of the parameter; "" for no weight
    copy_of: int | None = None  # memory of the view that it is a kernel's own copy of; None for what an operator made


@dataclass(frozen=True)
class Operator:
    """One operator of a step."""

    name: str  # primitive name, e.g. `MatMul`
    layer_index: int | None  # None outside the layers
    # below the layer: names of cells, then that of the primitive; its primitive name if no cell holds it
    path: tuple[str, ...]
    is_forward: bool  # forward or backward
    inputs: tuple[Value, ...] = ()  # empty where the trace was recorded to be executed only
    outputs: tuple[Value, ...] = ()
    also: tuple[str, ...] = ()  # other names of its cell for primitives of this type: which of them ran is not known

    @property
    def paths(self) -> tuple[tuple[str, ...], ...]:
        """All that may be its path."""
        return (self.path, *((*self.path[:-1], name) for name in self.also))


@dataclass(frozen=True)
class Save:
    """A tensor that autograd keeps, once for each operator that needs it."""

    storage: int  # index in `Trace.storages`
    layer_index: int  # layer that runs at that moment
    operator: int  # index of the operator that saves it
    shape: tuple[int, ...]  # of the tensor, which may be a part of its storage
    dtype: str


@dataclass(frozen=True)
class TracedStorage:
    """A piece of device memory that backward needs."""

    size_bytes: int  # of the whole storage
    # index of the operator that made it; None for what the caller owns, and copies that kernels make of views
    maker: int | None
    # index of the last operator of forward that may read it. Of what has a view, or goes in or out of a layer, that is
    # the last one of the layer: uses of a view cannot be told
    last_use: int
    # why it may not leave the device: "weight", "input", "output", "held" (user code still shows it); "" if it may
    protection: str = ""
    memory: int | None = None  # its number in the values of operators; None where these were not recorded


@dataclass(frozen=True)
class Trace:
    """One forward and backward pass."""

    num_layers: int  # layers of the network
    operators: tuple[Operator, ...]  # in the order in which they began, forward before backward
    storages: tuple[TracedStorage, ...]  # in order of their first save
    saves: tuple[Save, ...]  # in order
    events: tuple[Event, ...]  # in order
    device: str = "CPU"  # where it was recorded, e.g. `CPU`

    def events_of(self, layers: Sequence[int]) -> tuple[Event, ...]:
        """What an executor sees that has its hooks in some layers only: begins and ends
        of all layers, saves and reads of these."""
        chosen = frozenset(layers)
        return tuple(
            event
            for event in self.events
            if event.kind not in (EventKind.SAVE, EventKind.READ) or self.saves[event.index].layer_index in chosen
        )
