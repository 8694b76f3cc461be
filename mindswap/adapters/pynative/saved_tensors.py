"""A tensor that autograd keeps, and whether anybody else can reach its memory.

MindSpore does not say who holds a piece of memory, so the counts of its shared pointers are read. An object of Python
points to a tensor of C++, that to an address, that to the memory. The user's object points to the same tensor as the
one that autograd keeps; a view is another tensor on the same address, and so are an array of numpy and a storage;
`set_` makes another address on the same memory. What nobody else points to, nobody can read or write any more.
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

# Functions of MindSpore: in that of ops/composite/base.py every gradient runs its forward, in that of nn/cell.py a cell
# with `set_grad()`.
_GRADIENT, _GRADIENT_CELL = "_pynative_func_grad_forward", "_complex_call"
_NUM_WORDS = 64  # of an object, in which a pointer is looked for


class SavedTensor:
    """Stands for a tensor that autograd keeps; the tensor itself is None while its memory is away."""

    __slots__ = ("dtype", "is_copy", "layout", "size_bytes", "storage", "tensor", "version")

    def __init__(self, tensor):
        self.tensor = tensor
        self.storage = tensor.untyped_storage()  # stays what it is where other memory is given to the tensor
        self.size_bytes = self.storage.size()
        self.version = tensor._version
        self.is_copy = False  # it came back: autograd does not know how it was made
        self.dtype = tensor.dtype
        self.layout = (tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()))

    def drop(self) -> None:
        """Hold nothing any more."""
        self.tensor = self.storage = None

    def move_to(self, storage) -> None:
        """The same tensor in other memory."""
        tensor = ms.mint.empty((0,), dtype=self.dtype)
        tensor.set_(storage, *self.layout)
        self.tensor, self.storage, self.version, self.is_copy = tensor, storage, tensor._version, True

    @property
    def is_unmodified(self) -> bool:
        """Nothing counted as a change in place, and it has its memory; values may have been written into that."""
        if self.storage.size() != self.size_bytes:
            return False
        address = self.storage.data_ptr() + self.layout[0] * self.tensor.itemsize
        return self.tensor._version == self.version and (self.tensor.data_ptr() == address or not self.tensor.size)

    def require_unmodified(self) -> None:
        """For what is not told of a change in place of what it saved: MindSpore looks only where there are no hooks.

        Raises:
            ApplyError: backward would read other values than without swap.
        """
        if not self.is_unmodified:
            raise ApplyError(
                f"a tensor of shape {tuple(self.tensor.shape)} was changed in place (`t[...] = x`, `copy_`, `set_`, "
                "`resize_`) after autograd saved it in a layer that swaps: gradients would not be those without swap\n"
                "    fix:     change a copy of it, or take the layer out of the policy"
            )


def frames(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame of Python, and those that called it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_nested() -> bool:
    """Return whether the network runs for a gradient that itself is differentiated: it must not be swapped."""
    return sum(frame.f_code.co_name == _GRADIENT for frame in frames(sys._getframe())) > 1


def is_differentiated() -> bool:
    """Return whether the backward pass that runs is a part of a function that is differentiated.

    MindSpore says so, too, but for good after an exception in a function that is differentiated: it does not end such
    a function. So the functions that run are looked at; a cell with `set_grad()` is one.
    """
    return pynative_executor.requires_grad() and any(
        frame.f_code.co_name == _GRADIENT
        or (frame.f_code.co_name == _GRADIENT_CELL and getattr(frame.f_locals.get("self"), "is_top_cell", False))
        for frame in frames(sys._getframe())
    )


def is_exclusively_held(tensors: Sequence[ms.Tensor]) -> bool:
    """No one but these objects, which have all been asked for their storage, can reach their memory."""
    return _has_expected_counts(tensors, pointer_offsets(), _words)


def _has_expected_counts(
    tensors: Sequence[ms.Tensor], where: Sequence[int], words: Callable[[int, int], tuple[int, ...]]
) -> bool:
    at = [id(tensor) for tensor in tensors]
    for offset, num_storages in zip(where, (0, len(tensors), 0), strict=True):
        found = Counter(words(each + offset, 2) for each in at)
        if any(not counts or words(counts + 8, 1)[0] & 0xFFFFFFFF != number + num_storages
               for (_, counts), number in found.items()):  # fmt: skip
            return False
        at = [target for target, _ in found]
    return True


def _words(address: int, number: int) -> tuple[int, ...]:
    return struct.unpack(f"{number}Q", ctypes.string_at(address, 8 * number))


def _require_known_gradients() -> None:
    """Raise ApplyError where this MindSpore differentiates by other functions than those that are watched."""
    if not hasattr(composite.base, _GRADIENT) or not hasattr(ms.nn.Cell, _GRADIENT_CELL):
        raise ApplyError(f"mindspore {ms.__version__} differentiates by other functions: swap would be unsafe")


@functools.cache
def pointer_offsets() -> tuple[int, ...]:
    """How far from the begin of an object of Python, a tensor of C++, and an address the pointers to the next are.

    Raises:
        ApplyError: this MindSpore has them elsewhere, or other functions that differentiate.
    """
    _require_known_gradients()
    tensor = ms.Tensor(ms.mint.ones((8,)) * 2)
    data = tensor.untyped_storage().data_ptr()
    with Path("/proc/self/mem").open("rb", 0) as memory:  # reads what is no memory, too

        def words(address: int, number: int) -> tuple[int, ...]:
            try:
                memory.seek(address)
                return struct.unpack(f"{number}Q", memory.read(8 * number))
            except (OSError, ValueError, OverflowError, struct.error):
                return (0,) * number

        def targets(address: int) -> list[tuple[int, int]]:
            return [(8 * k, word) for k, word in enumerate(words(address, _NUM_WORDS)) if word > data % 8 + _NUM_WORDS]

        def paths():
            for first, of_tensor in targets(id(tensor))[: type(tensor).__basicsize__ // 8]:
                for second, of_address in targets(of_tensor):
                    for third, of_memory in targets(of_address):
                        if words(of_memory, 1)[0] == data:
                            yield first, second, third

        def is_right(where) -> bool:
            """True for a tensor that nobody else holds, false with each of four others, which come and go."""
            others = (
                lambda: tensor.reshape((2, 4)), tensor.asnumpy,
                lambda: ms.mint.empty((0,), dtype=tensor.dtype).set_(tensor.untyped_storage(), 0, (8,), (1,)),
            )  # fmt: skip
            seen = []
            for other in others:
                held = other()
                pynative_executor.sync()
                seen += [_has_expected_counts([tensor], where, words)]
                del held
                seen += [_has_expected_counts([tensor], where, words)]
            return seen == [False, True] * len(others)

        found = next(filter(is_right, itertools.islice(paths(), 100)), None)
    if found is None:
        raise ApplyError(
            f"mindspore {ms.__version__} does not show who else holds a tensor: a swap could change gradients\n"
            "    fix:     mindspore 2.9.0"
        )
    return found
