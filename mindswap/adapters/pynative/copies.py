"""Copies between device and host: the only file that differs between devices.

`ThreadCopies` is for a CPU: a worker thread, and host memory that the kernel counts apart (`RssShmem`), so that
what leaves the device leaves `RssAnon`. `StreamCopies` is for Ascend: a copy stream, events, pinned memory. **No
device was there to run the second**; it is chosen only if asked for by name.
"""

import ctypes
import mmap
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import mindspore as ms
import numpy as np

from mindswap.errors import ApplyError

POISON = 0xFF  # NaN in every floating point type


@dataclass
class PendingCopy:
    """A storage on its way."""

    storage: Any  # its memory on the device (`UntypedStorage`); None while it is away
    size_bytes: int  # of it
    host: Any  # its memory on the host
    pending: Any = None  # what the last copy is waited for with


class CopyEngine(ABC):
    """Copies of a device, as an executor asks for them.

    Attributes:
        host_bytes: on the host at this moment; memory that was given back is used again.
    """

    def __init__(self) -> None:
        self.host_bytes = 0
        self._free: dict[int, list[Any]] = {}

    def offload(self, storage, size_bytes: int) -> PendingCopy:
        """Start the copy to the host; of memory that is gone now `release` copies what is there when it is back."""
        self.host_bytes += size_bytes
        pool = self._free.get(size_bytes)
        copy = PendingCopy(storage, size_bytes, pool.pop() if pool else self._new_host(size_bytes))
        if storage.size() == size_bytes:
            self._copy_out(copy)
        return copy

    def release(self, copy: PendingCopy) -> None:
        """Wait for the copy to the host, see that it has the values of now, and let go of the device memory."""
        self._finish(copy)
        self._renew(copy)
        copy.storage = None

    @abstractmethod
    def prefetch(self, copy: PendingCopy, storage, poison: bool = False) -> None:
        """Start the copy from the host into other memory of the device, with `poison` filled with NaN before."""

    def wait(self, copy: PendingCopy) -> None:
        """Wait for the last copy, whichever way it goes, and give the host memory back."""
        self._finish(copy)
        self.host_bytes -= copy.size_bytes
        self._free.setdefault(copy.size_bytes, []).append(copy.host)
        copy.host = None

    @abstractmethod
    def _new_host(self, size: int) -> Any: ...

    @abstractmethod
    def _copy_out(self, copy: PendingCopy) -> None: ...

    @abstractmethod
    def _renew(self, copy: PendingCopy) -> None:
        """Copy to the host again what was written since."""

    @abstractmethod
    def _finish(self, copy: PendingCopy) -> None: ...


def default_copies(device_target: str) -> CopyEngine:
    """Copies that were run on a device: on a CPU, a thread. It reads device memory by its address, as only a CPU can.

    Raises:
        ApplyError: there are none for this device.
    """
    if device_target != "CPU":
        raise ApplyError(
            f"swap in PyNative mode was never run on {device_target}: its copies have to be asked for\n"
            "    fix:     mindswap: {stream_copies: True} in the YAML, or mindswap.apply(..., copies=StreamCopies());\n"
            "             copies=HyperParallel() leaves it to the engine of MindFormers 2.x"
        )
    return ThreadCopies()


class ThreadCopies(CopyEngine):
    """Copies by a thread; `np.copyto` lets Python go on meanwhile.

    Memory that user code frees meanwhile stays mapped, as MindSpore's pool gives none back to the system.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="mindswap-copy")

    def prefetch(self, copy: PendingCopy, storage, poison: bool = False) -> None:
        """See `CopyEngine`."""
        copy.storage = storage
        if poison:
            _device_view(storage)[:] = POISON
        copy.pending = self._pool.submit(np.copyto, _device_view(copy.storage), _host_view(copy))

    def _new_host(self, size: int) -> mmap.mmap:
        return mmap.mmap(-1, size)  # anonymous and shared

    def _copy_out(self, copy: PendingCopy) -> None:
        # The address is asked for here, which waits for the kernel that makes the data.
        copy.pending = self._pool.submit(np.copyto, _host_view(copy), _device_view(copy.storage))

    def _renew(self, copy: PendingCopy) -> None:
        host, device = _host_view(copy), _device_view(copy.storage)
        if _compare(host.ctypes.data, device.ctypes.data, copy.size_bytes):
            np.copyto(host, device)

    def _finish(self, copy: PendingCopy) -> None:
        if isinstance(copy.pending, Future):
            copy.pending.result()
            copy.pending = None


_compare = ctypes.CDLL(None).memcmp
_compare.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def _host_view(copy: PendingCopy) -> np.ndarray:
    return np.frombuffer(copy.host, np.uint8, copy.size_bytes)


def _device_view(storage) -> np.ndarray:
    """The bytes of a storage: uint8, shape (size,)."""
    size = storage.size()
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(storage.data_ptr()))


class StreamCopies(CopyEngine):
    """Copies on a stream of their own, to pinned memory. Written for Ascend, and never run: there was no device.

    Memory is taken and given back on the compute stream, which has waited for the copy to the host by then, as the pool
    of MindSpore is ordered by stream.

    Args:
        runtime: has streams as `mindspore.runtime` has them.
        pinned: gives so many bytes of pinned memory as a tensor.
    """

    def __init__(self, runtime: Any = None, pinned: Callable[[int], Any] | None = None) -> None:
        super().__init__()
        self._runtime = runtime or ms.runtime
        self._pinned = pinned or _pinned_tensor
        self._stream = self._runtime.Stream()

    def prefetch(self, copy: PendingCopy, storage, poison: bool = False) -> None:
        """See `CopyEngine`."""
        copy.storage = storage
        self._run(lambda: copy.storage.copy_(copy.host.untyped_storage(), True), copy)

    def _new_host(self, size: int) -> Any:
        return self._pinned(size)

    def _renew(self, copy: PendingCopy) -> None:
        """Nothing on a device tells cheaply whether something was written: all is copied again."""
        self._copy_out(copy)
        self._finish(copy)

    def _copy_out(self, copy: PendingCopy) -> None:
        self._run(lambda: copy.host.untyped_storage().copy_(copy.storage, True), copy)

    def _run(self, start: Callable[[], object], copy: PendingCopy) -> None:
        """On the copy stream, behind what compute has been given so far."""
        self._stream.wait_stream(self._runtime.current_stream())
        with self._runtime.StreamCtx(self._stream):
            start()
            copy.pending = self._stream.record_event()

    def _finish(self, copy: PendingCopy) -> None:
        if copy.pending is not None:
            self._runtime.current_stream().wait_event(copy.pending)
            copy.pending = None


def _pinned_tensor(size: int) -> ms.Tensor:
    return ms.mint.empty((size,), dtype=ms.uint8, device="CPU", pin_memory=True)
