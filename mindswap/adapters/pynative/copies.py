"""Copies between device and host; the only module that depends on the kind of device.

`ThreadCopies` is for CPU: a worker thread, and host memory that the kernel counts separately (`RssShmem`), so that
offloaded memory leaves `RssAnon`. `StreamCopies` is for Ascend: a copy stream, events, pinned memory. **It has never
run on a device**, only in dry runs, and must be requested by name.
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

from mindswap.adapters.versions import pynative_executor
from mindswap.errors import ApplyError

POISON = 0xFF  # NaN in every floating point type


@dataclass
class PendingCopy:
    """A storage during its copy."""

    storage: Any  # device memory (`UntypedStorage`); None while it is offloaded
    size_bytes: int  # size of the storage
    host: Any  # host memory
    pending: Any = None  # handle to wait for the last copy
    is_final: bool = False  # nobody could write into the storage since the copy to the host began


class CopyEngine(ABC):
    """Copies of one kind of device, as an executor requests them.

    Attributes:
        host_bytes: offloaded bytes on the host, of all passes in flight.
        peak_host_bytes: its maximum.
        allocated_host_bytes: host memory taken so far; it is kept, and reused for tensors of the same size.
    """

    def __init__(self) -> None:
        self.host_bytes = self.peak_host_bytes = self.allocated_host_bytes = 0
        self._free: dict[int, list[Any]] = {}

    def offload(self, storage, size_bytes: int) -> PendingCopy:
        """Start the copy to the host.

        If the storage is empty at this time, `release` copies its content when it is available.
        """
        self.host_bytes += size_bytes
        self.peak_host_bytes = max(self.peak_host_bytes, self.host_bytes)
        pool = self._free.get(size_bytes)
        if not pool:
            self.allocated_host_bytes += size_bytes
        copy = PendingCopy(storage, size_bytes, pool.pop() if pool else self._new_host(size_bytes))
        if storage.size() == size_bytes:
            self._copy_out(copy)
        return copy

    def release(self, copy: PendingCopy) -> None:
        """Wait for the copy to the host, update it if the values may have changed, and drop the device memory."""
        self._finish(copy)
        self._update(copy)
        copy.storage = None

    @abstractmethod
    def prefetch(self, copy: PendingCopy, storage, poison: bool = False) -> None:
        """Start the copy from the host into new device memory; with `poison` fill that with NaN first."""

    def wait(self, copy: PendingCopy) -> None:
        """Wait for the last copy in either direction, and free the host memory."""
        self._finish(copy)
        self.host_bytes -= copy.size_bytes
        self._free.setdefault(copy.size_bytes, []).append(copy.host)
        copy.host = None

    @abstractmethod
    def _new_host(self, size: int) -> Any: ...

    @abstractmethod
    def _copy_out(self, copy: PendingCopy) -> None: ...

    @abstractmethod
    def _update(self, copy: PendingCopy) -> None:
        """Repeat the copy to the host if the storage was written since."""

    @abstractmethod
    def _finish(self, copy: PendingCopy) -> None: ...


def default_copies(device_target: str) -> CopyEngine:
    """Return the copy engine for a device on which one has been tested: a thread on CPU.

    It accesses device memory by address, which is possible only on a CPU.

    Raises:
        ApplyError: if there is none for this device.
    """
    if device_target != "CPU":
        raise ApplyError(
            f"swap in PyNative mode was never run on {device_target}: its copies have to be asked for\n"
            "    fix:     mindswap: {stream_copies: True} in the YAML, or mindswap.apply(..., copies=StreamCopies());\n"
            "             copies=HyperParallel() leaves it to the engine of MindFormers 2.x"
        )
    return ThreadCopies()


class ThreadCopies(CopyEngine):
    """Copies by a thread; `np.copyto` releases the GIL.

    Memory that the user's code frees during a copy stays mapped, because MindSpore's pool returns none to the system.
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
        # Reading the address here waits for the kernel that produces the data.
        copy.pending = self._pool.submit(np.copyto, _host_view(copy), _device_view(copy.storage))

    def _update(self, copy: PendingCopy) -> None:
        pynative_executor.sync()  # queued operators may write
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
    """Return the bytes of a storage: uint8, shape (size,)."""
    size = storage.size()
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(storage.data_ptr()))


class StreamCopies(CopyEngine):
    """Copies to pinned memory on a separate stream, written for Ascend and never run on a device.

    Device memory is allocated and freed on the compute stream, after that has waited for the copy to the host, because
    MindSpore's memory pool is ordered by stream.

    Args:
        runtime: module with the streams of `mindspore.runtime`.
        pinned: function from a size in bytes to a tensor in pinned memory.
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

    def _update(self, copy: PendingCopy) -> None:
        """Repeat the copy if other code reached the storage since: detecting a write is expensive on a device."""
        if not copy.is_final:
            self._copy_out(copy)
            self._finish(copy)

    def _copy_out(self, copy: PendingCopy) -> None:
        self._run(lambda: copy.host.untyped_storage().copy_(copy.storage, True), copy)

    def _run(self, start: Callable[[], object], copy: PendingCopy) -> None:
        """Run on the copy stream, after the work that the compute stream has so far."""
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
