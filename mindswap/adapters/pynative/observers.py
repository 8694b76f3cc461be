"""Observers of the events of a step in PyNative mode."""

from typing import Any, Protocol

from mindswap.adapters.pynative.saved_tensors import SavedTensor
from mindswap.pynative.trace import EventKind


class Observer(Protocol):
    """Interface of an observer for `Watch`."""

    def begin(self, inputs) -> None:
        """Observe the start of forward of the network."""

    def end_forward(self, outputs) -> None:
        """Observe the end of forward of the network."""

    def pass_boundary(self, kind: EventKind, layer_index: int, tensors=()) -> None:
        """Observe a layer that begins forward with some inputs, ends it with some outputs, or begins backward."""

    def between_operators(self) -> None:
        """Observe the end of a cell in a layer."""

    def save(self, tensor, layer_index: int) -> Any:
        """Return the object that autograd saves in place of a tensor."""

    def read(self, kept):
        """Return the tensor for a result of `save`, when backward reads it."""


class UnobservedSaves:
    """Handles the saved tensors of a thread that is not observed."""

    def save(self, tensor, layer_index: int) -> SavedTensor:
        """See `Observer`."""
        return SavedTensor(tensor)

    def read(self, kept: SavedTensor):
        """See `Observer`."""
        kept.require_unmodified()
        return kept.tensor


UNOBSERVED = UnobservedSaves()


class UnobservedPass(UnobservedSaves):
    """Observer of a pass that is neither recorded nor swapped, next to others in flight.

    Attributes:
        has_backward: whether backward began.
    """

    has_backward = False

    def begin(self, inputs) -> None:
        """Do nothing."""

    def end_forward(self, outputs) -> None:
        """Do nothing."""

    def between_operators(self) -> None:
        """Do nothing."""

    def pass_boundary(self, kind: EventKind, layer_index: int, tensors=()) -> None:
        """Note the begin of backward."""
        self.has_backward = self.has_backward or kind is EventKind.BACKWARD_BEGIN


def read_saved(packed: tuple[Any, Any]) -> Any:
    """Return the tensor for what autograd saved; the observer of a save receives its reads, even if replaced since."""
    return packed[0].read(packed[1])
