"""Saved tensors, and detection of functions that are differentiated."""

import sys
from collections.abc import Iterator
from types import FrameType

import mindspore as ms
from mindspore.ops import composite

from mindswap.adapters.versions import pynative_executor
from mindswap.errors import ApplyError

# Functions of MindSpore in which forward runs: for a gradient (ops/composite/base.py), for a cell with `set_grad()`
# (nn/cell.py).
_GRADIENT, _GRADIENT_CELL = "_pynative_func_grad_forward", "_complex_call"


class SavedTensor:
    """Replacement of a tensor that autograd saves; the tensor is None while its memory is offloaded."""

    __slots__ = ("dtype", "is_copy", "layout", "size_bytes", "storage", "tensor", "version")

    def __init__(self, tensor):
        self.tensor = tensor
        self.storage = tensor.untyped_storage()  # stays the same object when the tensor gets other memory
        self.size_bytes = self.storage.size()
        self.version = tensor._version
        self.is_copy = False  # prefetched: autograd does not know how it was computed
        self.dtype = tensor.dtype
        self.layout = (tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()))

    def drop(self) -> None:
        """Drop all references."""
        self.tensor = self.storage = None

    def move_to(self, storage) -> None:
        """Replace the tensor with one in other memory."""
        tensor = ms.mint.empty((0,), dtype=self.dtype)
        tensor.set_(storage, *self.layout)
        self.tensor, self.storage, self.version, self.is_copy = tensor, storage, tensor._version, True

    @property
    def is_unmodified(self) -> bool:
        """Return whether no change in place was counted and the tensor has its original memory; values may differ."""
        if self.storage.size() != self.size_bytes:
            return False
        address = self.storage.data_ptr() + self.layout[0] * self.tensor.itemsize
        return self.tensor._version == self.version and (self.tensor.data_ptr() == address or not self.tensor.size)

    def require_unmodified(self) -> None:
        """Require that the tensor was not changed in place; MindSpore checks that only without hooks.

        Raises:
            ApplyError: if backward would read other values than without swap.
        """
        if not self.is_unmodified:
            raise ApplyError(
                f"a tensor of shape {tuple(self.tensor.shape)} was changed in place (`t[...] = x`, `copy_`, `set_`, "
                "`resize_`) after autograd saved it in a layer that swaps: gradients would not be those without swap\n"
                "    fix:     change a copy of it, or take the layer out of the policy"
            )


def frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a Python frame and its callers."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_nested() -> bool:
    """Return whether the network runs for a gradient that is itself differentiated, so that it must not be swapped."""
    return sum(frame.f_code.co_name == _GRADIENT for frame in frames(sys._getframe())) > 1


def is_differentiated() -> bool:
    """Return whether the running backward pass belongs to a function that is itself differentiated.

    MindSpore's own answer stays true after an exception in a differentiated function, because it does not end such a
    function. The running functions are therefore inspected; a cell with `set_grad()` is one of them.
    """
    return pynative_executor.requires_grad() and any(
        frame.f_code.co_name == _GRADIENT
        or (frame.f_code.co_name == _GRADIENT_CELL and getattr(frame.f_locals.get("self"), "is_top_cell", False))
        for frame in frames(sys._getframe())
    )


def require_known_gradients() -> None:
    """Require that this MindSpore differentiates by the known functions.

    Raises:
        ApplyError: it does not.
    """
    if not hasattr(composite.base, _GRADIENT) or not hasattr(ms.nn.Cell, _GRADIENT_CELL):
        raise ApplyError(f"mindspore {ms.__version__} differentiates by other functions: swap would be unsafe")
