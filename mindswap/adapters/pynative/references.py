"""Detection of Python objects that reference the memory of saved tensors.

MindSpore does not expose how many references the memory of a tensor has. Code can reach memory only through Python
objects: tensors (also views, and tensors that `set_` made), storages, and on a CPU arrays of numpy, which share it. The
garbage collector lists tensors and storages; arrays are noted when `asnumpy` returns them. Operators that are queued or
saved by autograd elsewhere keep the memory themselves: it is freed later, and its values are right.
"""

import functools
import gc
import weakref
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import mindspore as ms
import numpy as np
from mindspore.common.storage import UntypedStorage

_arrays: list["weakref.ref[np.ndarray]"] = []  # arrays that `asnumpy` returned


class _Marker:
    """Object that shows to which generation of the collector the objects made after it have moved at most."""


class MemoryReferences:
    """References to memory during a pass; tensors that are made in it are young objects of the garbage collector.

    An object is never in an older generation than one that was made before it. While a marker is young, the tensors
    made after it are, too, and those from before are listed once.
    """

    def __init__(self) -> None:
        if ms.get_context("device_target") == "CPU":
            _note_arrays()
        self.begin()

    def begin(self) -> None:
        """Start a pass."""
        self._is_blind = False  # objects were frozen during the pass (`gc.freeze`), so the collector does not list them
        _arrays[:] = [reference for reference in _arrays if reference() is not None]
        self._list_older()

    def find_referenced(self, memories: Mapping[int, tuple[int, int]], own: Collection[int]) -> set[int]:
        """Return the keys of memory that any other object references; all keys if that is unknown.

        Args:
            memories: address and size in bytes of each memory, by key.
            own: `id` of tensors and storages that do not count.
        """
        by_address = sorted((address, size, key) for key, (address, size) in memories.items())
        starts = [address for address, _, _ in by_address]
        referenced = set()
        for address in self._addresses(own):
            position = bisect_right(starts, address) - 1
            if position >= 0 and address < starts[position] + by_address[position][1]:
                referenced.add(by_address[position][2])
        return set(memories) if self._is_blind else referenced

    def _addresses(self, own: Collection[int]) -> Iterator[int]:
        for item in self._objects():
            if id(item) not in own and (address := _address(item)):
                yield address
        for reference in _arrays:
            array = reference()
            if array is not None:
                yield array.ctypes.data

    def _objects(self) -> list[Any]:
        """Return all tensors and storages."""
        # Plain names: a list that is built meanwhile would be in the lists, and one that contains itself keeps all.
        youngest = gc.get_objects(generation=0)
        young = gc.get_objects(generation=1)
        marker = self._marker
        if not any(item is marker for items in (youngest, young) for item in items):
            youngest = young = []
            self._is_blind = not self._list_older(marker) or self._is_blind
        found = [*_select(youngest, self._types), *_select(young, self._types)]
        return [*found, *(item for reference in self._older if (item := reference()) is not None)]

    def _list_older(self, marker: _Marker | None = None) -> bool:
        """List all tensors and storages; return whether the collector lists the marker as well."""
        self._types = frozenset(_with_subclasses(ms.Tensor)) | frozenset(_with_subclasses(UntypedStorage))
        items = gc.get_objects()
        self._older = [weakref.ref(item) for item in _select(items, self._types)]
        self._marker = _Marker()
        return marker is None or any(item is marker for item in items)


def _select(items: list[Any], types: Collection[type]) -> list[Any]:
    return [item for item in items if type(item) in types]


def _with_subclasses(kind: Any) -> Iterator[type]:
    yield kind
    for subclass in type.__subclasses__(kind):
        yield from _with_subclasses(subclass)


def _address(item: Any) -> int:
    """Return the address of a tensor or a storage; 0 if it was never on the device."""
    try:
        return int(item.data_ptr() or 0)
    except (RuntimeError, TypeError, ValueError):
        return 0


@functools.cache
def _note_arrays() -> None:
    """Note the arrays that `asnumpy` returns, in this process; all functions that share memory with numpy call it."""
    original = ms.Tensor.asnumpy

    @functools.wraps(original)
    def asnumpy(self: ms.Tensor) -> np.ndarray:
        array = original(self)
        _arrays.append(weakref.ref(array))
        return array

    ms.Tensor.asnumpy = asnumpy
