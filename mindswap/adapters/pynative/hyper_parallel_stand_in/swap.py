"""Swap of saved tensors between device and host memory, paired by layers.

As HyperParallel documents it, for a layer and the one `default_prefetch` layers later: the copies out start when the
forward of the layer ends; its memory is freed when the forward of the later layer ends; memory is allocated again and
the copies back start when the backward of the later layer begins; the backward of the layer waits for them.

Storages are emptied and filled again with `resize_`, so the tensors stay in the graph of autograd.
"""

import contextlib
import enum
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import mindspore as ms
from mindspore import mint, nn
from mindspore.graph.api import _no_grad

from mindswap.adapters.pynative.hyper_parallel_stand_in.applied import AppliedWrapper, CopyCounter, CopyCounts
from mindswap.adapters.pynative.values import tensors_in


class CheckpointPolicy(enum.Enum):
    """What happens to a saved tensor."""

    MUST_SAVE = 0
    PREFER_SAVE = 1
    MUST_RECOMPUTE = 2
    PREFER_RECOMPUTE = 3
    MUST_SWAP = 4


Policy = Callable[[ms.Tensor], CheckpointPolicy]


class Place(enum.Enum):
    """Where the content of a storage is."""

    DEVICE = enum.auto()
    BOTH = enum.auto()  # copied out, or on its way, and not freed
    HOST = enum.auto()
    RETURNING = enum.auto()  # allocated again, copy back on its way


@dataclass(eq=False)
class SwappedStorage:
    """A saved storage that moves.

    As in HyperParallel, a tensor that is a slice of its storage is copied as a tensor, which takes device memory for a
    contiguous copy. Of several slices the first one is copied: there are no values in a dry run.
    """

    tensor: ms.Tensor
    place: Place = Place.DEVICE
    host: ms.Tensor | None = None
    wrappers: list[AppliedWrapper] = field(default_factory=list)  # within which it was saved

    def __post_init__(self) -> None:
        self.size_bytes: int = self.tensor.untyped_storage().size()
        self.version: int = self.tensor._version
        self.is_slice: bool = self.size_bytes != self.tensor.nbytes

    def offload(self) -> None:
        """Copy to pinned host memory."""
        if self.tensor._version != self.version:
            raise RuntimeError(f"a saved tensor {self.tensor.shape} was changed before it was swapped")
        self.host = mint.empty_like(self.tensor, device="CPU", pin_memory=True)
        self._copy(self.tensor, self.host)
        self.place = Place.BOTH

    def release(self) -> None:
        """Free the device memory."""
        self.tensor.untyped_storage().resize_(0)
        self.place = Place.HOST

    def allocate(self) -> None:
        """Allocate the device memory again."""
        self.tensor.untyped_storage().resize_(self.size_bytes)

    def fetch(self) -> None:
        """Copy back to the device."""
        if self.host is None:
            raise AssertionError("a storage without a host copy")
        self._copy(self.host, self.tensor)
        self.place = Place.RETURNING

    def _copy(self, source: ms.Tensor, target: ms.Tensor) -> None:
        if self.is_slice:
            target.copy_(source, non_blocking=True)
        else:
            target.untyped_storage().copy_(source.untyped_storage(), True)


@dataclass(eq=False)
class Moved(CopyCounts):
    """Bytes and numbers of copies since the last reset."""

    host_bytes: int = 0  # pinned host memory now
    peak_host_bytes: int = 0

    def count_out(self, size_bytes: int) -> None:
        """Count a copy to the host."""
        super().count_out(size_bytes)
        self.host_bytes += size_bytes
        self.peak_host_bytes = max(self.peak_host_bytes, self.host_bytes)


moved = Moved()


@dataclass(eq=False)
class SwappedLayer:
    """A layer of a pair: what it saved in this pass, and its partners."""

    cell: nn.Cell
    later: "SwappedLayer | None" = None  # frees and fetches this layer's storages
    earlier: "SwappedLayer | None" = None
    storages: dict[int, SwappedStorage] = field(default_factory=dict)  # by address
    copied: Any = None  # event after the copies out, or back
    copies: CopyCounter = field(default_factory=CopyCounter)

    def add(self, tensor: ms.Tensor, wrapper: AppliedWrapper) -> None:
        """Swap the storage of a tensor; once, however many tensors share it."""
        storage = tensor.untyped_storage()
        if not storage.size():
            return
        address = storage.data_ptr()
        if address not in self.storages:
            self.storages[address] = SwappedStorage(tensor)
        if wrapper not in self.storages[address].wrappers:
            self.storages[address].wrappers.append(wrapper)

    def keep(self, tensors: Any) -> None:
        """Leave storages of the layer's outputs on the device: the next layer reads them."""
        for tensor in tensors_in(tensors):
            if self.storages:
                self.storages.pop(tensor.untyped_storage().data_ptr(), None)


class SwapManager:
    """The pairs of layers of this process; a singleton, as in HyperParallel."""

    _instance: "SwapManager | None" = None

    def __new__(cls) -> "SwapManager":
        """Return the manager of this process."""
        if cls._instance is None:
            cls._instance = super().__new__(cls)
            cls._instance.layers = {}
            cls._instance.current = None
        return cls._instance

    layers: dict[int, SwappedLayer]  # by the id of the cell
    current: SwappedLayer | None  # layer whose forward runs

    @functools.cached_property
    def stream(self) -> Any:
        """The copy stream."""
        return ms.runtime.Stream()

    def reset_copies(self) -> None:
        """Forget the copies of all layers."""
        for layer in self.layers.values():
            layer.copies = CopyCounter()

    def set_forward_prefetch_layer(self, cell: nn.Cell, later_cell: nn.Cell) -> None:
        """Free the storages of a layer after the forward of a later one, and fetch them before its backward."""
        layer, later = self._layer(cell), self._layer(later_cell)
        layer.later, later.earlier = later, layer

    def _layer(self, cell: nn.Cell) -> SwappedLayer:
        if id(cell) not in self.layers:
            layer = self.layers[id(cell)] = SwappedLayer(cell)
            cell.register_forward_pre_hook(lambda cell, inputs: self._begin_forward(layer))
            cell.register_forward_hook(lambda cell, inputs, outputs: self._end_forward(layer, outputs))
            cell.register_backward_pre_hook(lambda cell, gradients: self._begin_backward(layer))
            cell.register_backward_hook(lambda cell, inputs, outputs: layer.storages.clear())
        return self.layers[id(cell)]

    def _begin_forward(self, layer: SwappedLayer) -> None:
        layer.storages.clear()
        self.current = layer

    def _end_forward(self, layer: SwappedLayer, outputs: Any) -> None:
        self.current = None
        layer.keep(outputs)
        if layer.later is not None:
            self._offload(layer)
        if layer.earlier is not None:
            self._release(layer.earlier)
            layer.earlier.copies.released_by = layer.cell

    def _begin_backward(self, layer: SwappedLayer) -> None:
        if layer.earlier is not None:
            self._fetch(layer.earlier, layer.cell)
        self._await(layer)

    def _offload(self, layer: SwappedLayer) -> None:
        with self._copying(layer):
            for storage in layer.storages.values():
                storage.offload()
                moved.count_out(storage.size_bytes)
                layer.copies.count_out(storage.size_bytes)
                for wrapper in storage.wrappers:
                    wrapper.count_out(storage.size_bytes)

    def _release(self, layer: SwappedLayer) -> None:
        self._await(layer)
        with _no_grad():
            for storage in layer.storages.values():
                storage.release()

    def _fetch(self, layer: SwappedLayer, fetched_by: nn.Cell) -> None:
        storages = [storage for storage in layer.storages.values() if storage.place is Place.HOST]
        with _no_grad():  # on the compute stream, where the memory was freed
            for storage in storages:
                storage.allocate()
        with self._copying(layer):
            for storage in storages:
                storage.fetch()
                layer.copies.count_back(storage.size_bytes)
                layer.copies.fetched_by = fetched_by
                moved.count_back(storage.size_bytes)
                for wrapper in storage.wrappers:
                    wrapper.count_back(storage.size_bytes)

    def _await(self, layer: SwappedLayer) -> None:
        """Let the compute stream wait for the copies of a layer, and drop host copies that are back."""
        if layer.copied is not None:
            ms.runtime.current_stream().wait_event(layer.copied)
            layer.copied = None
        for storage in layer.storages.values():
            if storage.place is Place.RETURNING:
                storage.place, storage.host = Place.DEVICE, None
                moved.host_bytes -= storage.size_bytes

    @contextlib.contextmanager
    def _copying(self, layer: SwappedLayer) -> Iterator[None]:
        """Run copies on the copy stream, after what the compute stream has so far."""
        self.stream.wait_stream(ms.runtime.current_stream())
        with _no_grad(), ms.runtime.StreamCtx(self.stream):
            yield
            layer.copied = self.stream.record_event()


@contextlib.contextmanager
def saves_observed(manager: SwapManager, policy: Policy | None, wrapper: AppliedWrapper) -> Iterator[None]:
    """Swap what autograd saves within the context of a wrapper, but for weights and what the policy keeps."""

    def pack(tensor: Any) -> Any:
        is_weight = not isinstance(tensor, ms.Tensor) or tensor.param_info is not None
        if is_weight or manager.current is None:
            return tensor
        if policy is None or policy(tensor) is not CheckpointPolicy.MUST_SAVE:
            manager.current.add(tensor, wrapper)
        return tensor

    with ms.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield
