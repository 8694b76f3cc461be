"""Saved tensors, and detection of other references to their memory.

MindSpore does not tell who references memory, so the reference counts of its shared pointers are read. A Python object
points to a C++ tensor, which points to an address object, which points to the memory. The user's object points to the
same C++ tensor as the one saved by autograd; a view is another tensor with the same address object, and so are numpy
arrays and storages; `set_` creates another address object on the same memory. Memory without other pointers can neither
be read nor written any more.
"""

import ctypes
import functools
import itertools
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

import mindspore as ms
from mindspore.ops import composite

from mindswap.adapters.versions import pynative_executor
from mindswap.errors import ApplyError

# Functions of MindSpore in which forward runs: for a gradient (ops/composite/base.py), for a cell with `set_grad()`
# (nn/cell.py).
_GRADIENT, _GRADIENT_CELL = "_pynative_func_grad_forward", "_complex_call"
_NUM_WORDS = 64  # searched size of an object, in words


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


def is_exclusively_held(tensors: Sequence[ms.Tensor]) -> bool:
    """Return whether no other object references the memory of these tensors, whose storages have all been read."""
    return _has_expected_counts(tensors, pointer_offsets(), _words)


def _has_expected_counts(
    tensors: Sequence[ms.Tensor], where: Sequence[int], words: Callable[[int, int], tuple[int, ...]]
) -> bool:
    addresses = [id(tensor) for tensor in tensors]
    for offset, num_storages in zip(where, (0, len(tensors), 0), strict=True):
        counts_by_pointer = Counter(words(address + offset, 2) for address in addresses)
        if any(not counts or words(counts + 8, 1)[0] & 0xFFFFFFFF != number + num_storages
               for (_, counts), number in counts_by_pointer.items()):  # fmt: skip
            return False
        addresses = [target for target, _ in counts_by_pointer]
    return True


def _words(address: int, number: int) -> tuple[int, ...]:
    return struct.unpack(f"{number}Q", ctypes.string_at(address, 8 * number))


def _check_gradients() -> None:
    """Raise ApplyError if this MindSpore differentiates by functions other than the known ones."""
    if not hasattr(composite.base, _GRADIENT) or not hasattr(ms.nn.Cell, _GRADIENT_CELL):
        raise ApplyError(f"mindspore {ms.__version__} differentiates by other functions: swap would be unsafe")


def _pointer_paths(tensor, data: int, words: Callable[[int, int], tuple[int, ...]]) -> Iterator[tuple[int, int, int]]:
    """Yield offsets of pointers that lead from a Python object to the data of its tensor.

    Args:
        tensor: the tensor.
        data: address of its data.
        words: (address, number) -> 8-byte words at an address.
    """

    def targets(address: int) -> list[tuple[int, int]]:
        return [(8 * k, word) for k, word in enumerate(words(address, _NUM_WORDS)) if word > data % 8 + _NUM_WORDS]

    for first, of_tensor in targets(id(tensor))[: type(tensor).__basicsize__ // 8]:
        for second, of_address in targets(of_tensor):
            for third, of_memory in targets(of_address):
                if words(of_memory, 1)[0] == data:
                    yield first, second, third


@functools.cache
def pointer_offsets() -> tuple[int, ...]:
    """Find the offsets of the pointers in a Python object, a C++ tensor and an address object.

    Raises:
        ApplyError: if this MindSpore has another layout, or differentiates by other functions.
    """
    _check_gradients()
    tensor = ms.Tensor(ms.mint.ones((8,)) * 2)
    data = tensor.untyped_storage().data_ptr()
    with Path("/proc/self/mem").open("rb", 0) as memory:  # reading unmapped memory fails without a crash

        def words(address: int, number: int) -> tuple[int, ...]:
            try:
                memory.seek(address)
                return struct.unpack(f"{number}Q", memory.read(8 * number))
            except (OSError, ValueError, OverflowError, struct.error):
                return (0,) * number

        def is_right(where) -> bool:
            """Return whether the offsets detect each of four temporary references, and their absence."""
            references = (
                lambda: tensor.reshape((2, 4)), tensor.asnumpy,
                lambda: ms.mint.empty((0,), dtype=tensor.dtype).set_(tensor.untyped_storage(), 0, (8,), (1,)),
            )  # fmt: skip
            seen = []
            for reference in references:
                held = reference()
                pynative_executor.sync()
                seen += [_has_expected_counts([tensor], where, words)]
                del held
                seen += [_has_expected_counts([tensor], where, words)]
            return seen == [False, True] * len(references)

        offsets = next(filter(is_right, itertools.islice(_pointer_paths(tensor, data, words), 100)), None)
    if offsets is None:
        raise ApplyError(
            f"mindspore {ms.__version__} does not show who else holds a tensor: a swap could change gradients\n"
            "    fix:     mindspore 2.9.0"
        )
    return offsets
