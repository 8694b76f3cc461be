"""The form of the copies for Ascend, which never ran, with objects that only note what is asked of them."""

import contextlib
from pathlib import Path

import pytest

from mindswap.errors import ApplyError

pytestmark = pytest.mark.mindspore

SIZE = 64


class Noted:
    """A runtime with one compute and one copy stream, a storage, and pinned memory; all note into one list."""

    def __init__(self):
        self.calls = []
        self.num_pinned = 0
        self.current = Stream(self, "compute")

    def Stream(self):  # noqa: N802 named as in MindSpore
        return Stream(self, "copy")

    def current_stream(self):
        return self.current

    @contextlib.contextmanager
    def StreamCtx(self, stream):  # noqa: N802 named as in MindSpore
        before, self.current = self.current, stream
        yield
        self.current = before

    def pinned(self, size):
        self.num_pinned += 1
        return Storage(self, "host", size)


class Stream:
    def __init__(self, runtime, name):
        self.runtime, self.name = runtime, name

    def wait_stream(self, other):
        self.runtime.calls.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event):
        self.runtime.calls.append(f"{self.name} waits for {event}")

    def record_event(self):
        return f"what is on {self.name}"


class Storage:
    def __init__(self, runtime, name, size):
        self.runtime, self.name, self.size_bytes = runtime, name, size

    def untyped_storage(self):
        return self

    def size(self):
        return self.size_bytes

    def resize_(self, size):
        self.size_bytes = size
        self.runtime.calls.append(f"{self.runtime.current.name}: {self.name} has {size}")

    def copy_(self, other, non_blocking):
        assert non_blocking and self.size_bytes == other.size_bytes
        self.runtime.calls.append(f"{self.runtime.current.name}: {other.name} to {self.name}")


def test_each_copy_waits_for_what_makes_its_data_and_each_use_for_its_copy():
    from mindswap.adapters.pynative.copies import StreamCopies

    runtime = Noted()
    copies, device = StreamCopies(runtime, runtime.pinned), Storage(runtime, "device", SIZE)
    for _ in range(2):
        copy = copies.offload(device, SIZE)
        assert copies.host_bytes == SIZE
        copies.release(copy)
        assert copy.storage is None
        copies.prefetch(copy, Storage(runtime, "other", SIZE))
        copies.wait(copy)
        assert copies.host_bytes == 0
    assert runtime.num_pinned == 1  # the second step has the memory of the first
    out = ["copy waits for compute", "copy: device to host", "compute waits for what is on copy"]
    once = [
        *out, *out,  # the second time what may have been written since
        "copy waits for compute", "copy: host to other",
        "compute waits for what is on copy",
    ]  # fmt: skip
    assert runtime.calls == 2 * once


def test_host_memory_is_free_only_when_nothing_is_written_to_it():
    """A pass that is given up while its copy is under way: the next storage would get memory that is still written."""
    from mindswap.adapters.pynative.copies import StreamCopies

    runtime = Noted()
    copies = StreamCopies(runtime, runtime.pinned)
    copies.wait(copies.offload(Storage(runtime, "device", SIZE), SIZE))
    assert copies.host_bytes == 0 and runtime.calls[-1] == "compute waits for what is on copy"


def test_the_thread_does_the_same_in_the_same_order():
    """Copied out, let go of, copied into other memory."""
    import mindspore as ms
    import numpy as np

    from mindswap.adapters.pynative.copies import ThreadCopies

    tensor = ms.Tensor(np.arange(SIZE // 4, dtype=np.float32))
    storage, copies = tensor.untyped_storage(), ThreadCopies()
    copy = copies.offload(storage, SIZE)
    assert (copies.host_bytes, storage.size()) == (SIZE, SIZE)
    copy.pending.result()
    tensor.asnumpy()[0] = 7  # behind the copy: the values of now count
    copies.release(copy)
    assert copy.storage is None and tensor.asnumpy().tolist() == [7, *range(1, SIZE // 4)]  # others may still read it
    other = ms.mint.empty((SIZE // 4,), dtype=ms.float32)
    copies.prefetch(copy, other.untyped_storage(), poison=True)
    copies.wait(copy)
    assert copies.host_bytes == 0 and other.asnumpy().tolist() == [7, *range(1, SIZE // 4)]


def test_memory_that_is_freed_during_its_copy_stays_mapped():
    """Else the thread would read what is no memory. 64 MiB, as the C library gives those back to the system at once."""
    import mindspore as ms
    import numpy as np

    from mindswap.adapters.pynative.copies import ThreadCopies
    from mindswap.adapters.versions import pynative_executor

    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    size, copies = 64 << 20, ThreadCopies()
    storage = (ms.mint.ones((size // 4,)) * 2).untyped_storage()
    address = storage.data_ptr()
    copy = copies.offload(storage, size)
    storage.resize_(0)
    ms.runtime.empty_cache()
    ranges = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines()]
    assert any(int(begin, 16) <= address and address + size <= int(end, 16) for begin, end in ranges)
    copies.wait(copy)
    copy = copies.offload(storage, size)  # nothing is there to copy
    assert copy.pending is None
    tensor = ms.mint.ones((size // 4,)) * 3
    tensor.asnumpy()  # a copy between storages does not wait for it, nor is it waited for
    storage.resize_(size)
    storage.copy_(tensor.untyped_storage(), False)
    pynative_executor.sync()
    copies.release(copy)
    assert (np.frombuffer(copy.host, np.float32) == 3).all()


def test_where_nothing_was_run_copies_have_to_be_asked_for():
    """A thread would take an address on the device for one of the host."""
    from mindswap.adapters.pynative.copies import ThreadCopies, default_copies

    assert isinstance(default_copies("CPU"), ThreadCopies)
    with pytest.raises(ApplyError, match=r"never run on Ascend.*\n.*copies=StreamCopies\(\)"):
        default_copies("Ascend")


def test_what_nobody_could_write_since_is_copied_once():
    from mindswap.adapters.pynative.copies import StreamCopies

    runtime = Noted()
    copies = StreamCopies(runtime, runtime.pinned)
    copy = copies.offload(Storage(runtime, "device", SIZE), SIZE)
    copy.is_final = True
    copies.release(copy)
    assert runtime.calls == ["copy waits for compute", "copy: device to host", "compute waits for what is on copy"]


def test_a_copy_between_storages_that_waits_for_its_turn_is_there_when_memory_is_released():
    """MindSpore does not hold the memory of such a copy while operators before it run."""
    import mindspore as ms
    import numpy as np

    from mindswap.adapters.pynative.copies import ThreadCopies
    from mindswap.adapters.pynative.saved_tensors import SavedTensor

    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    tensor, other, slow = ms.Tensor(ms.mint.ones((SIZE,)) * 2), ms.mint.ones((SIZE,)) * 3, ms.mint.ones((2000, 2000))
    saved, copies = SavedTensor(tensor), ThreadCopies()
    copy = copies.offload(saved.storage, 4 * SIZE)
    source = other.untyped_storage()
    slow.asnumpy()
    slow = ms.mint.matmul(slow, slow)
    saved.storage.copy_(source, False)
    copies.release(copy)
    assert np.frombuffer(copy.host, np.float32).tolist() == [3] * SIZE
