"""Recording of one step in PyNative mode as a trace.

`MsDispatchMode` (experimental in MindSpore 2.9.0) observes the operators, which slows down a recorded step. Autograd
saves the tensors of an operator right after it. Storages are identified by address. To keep addresses unique, the
outputs of a layer's operators are held until the layer ends, so a recorded step needs more memory. With `with_values`
the inputs and outputs of operators are recorded as well, and all of them are held until the step ends.
"""

import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import mindspore as ms
from mindspore import nn
from mindspore.ops import Primitive

from mindswap.adapters.pynative.paths import CallPaths
from mindswap.adapters.pynative.record_with import record_with
from mindswap.adapters.pynative.saved_tensors import SavedTensor
from mindswap.adapters.pynative.values import ValueBook, address_of, tensors_in
from mindswap.pynative.trace import BACKWARD_KINDS, HELD, Event, EventKind, Operator, Save, Trace, TracedStorage


class _RecordedStorage:
    """A saved storage while it is recorded; holding the tensor prevents reuse of its address."""

    def __init__(self, tensor, producer: int | None, protection: str):
        self.tensor = tensor
        self.size_bytes = tensor.untyped_storage().size()
        self.producer = producer
        self.protection = protection
        self.last_use = -1


class Recorder:
    """Observer that records one forward and backward pass.

    Args:
        network: the cell whose call is the forward pass.
        layers: its transformer layers.
        with_values: record the inputs and outputs of operators.
        has_passes_in_flight: other passes may run between forward and backward of the recorded one; their operators
            are not recorded.
    """

    def __init__(
        self,
        network: nn.Cell,
        layers: Sequence[nn.Cell],
        with_values: bool = False,
        has_passes_in_flight: bool = False,
    ):
        self.network = network
        self.has_passes_in_flight = has_passes_in_flight
        self.with_values = with_values
        self.num_layers = len(layers)
        self.paths = CallPaths(layers)
        self.trace: Trace | None = None
        self.thread: int | None = None  # observed thread; None for none
        self.foreign: set[int] = set()  # addresses of memory owned by the caller or by a cell
        self.weights: set[int] = set()  # addresses of weights, of which autograd also saves views; not on CPU
        self._clear()

    def _clear(self) -> None:
        self.operators: list[Operator] = []
        self.storages: list[_RecordedStorage] = []
        self.saves: list[Save] = []
        self.events: list[Event] = []
        self.by_address: dict[int, int] = {}  # index of each saved storage
        self.producers: dict[int, int] = {}  # address -> operator that produced its content
        self.held: list[object] = []  # outputs of operators since a layer began or ended
        self.open_inputs: set[int] | None = None  # addresses of inputs of the running operator; None if none is running
        self.num_before = 0  # storages saved before the current layer
        self.packed: set[int] = set()  # `id` of the tensors that autograd saves
        self.viewed: set[int] = set()  # addresses in the current layer with more than one tensor
        self.is_forward = True
        self.is_paused = False  # another pass runs
        self.pass_thread = threading.get_ident()
        self.paths.layer_index = None
        self.values = ValueBook()

    # -- called by the watch ------------------------------------------------------------------------

    def begin(self, inputs) -> None:
        """Start a pass, or one more forward of the same pass (micro-batches that share one backward pass).

        A new pass ends the previous one, which is discarded if it had no backward pass and saved nothing, or broke off.
        """
        self.finish()
        if self.is_forward or not self.saves or self.pass_thread != threading.get_ident():
            self._clear()
            self.foreign = {address_of(tensor) for tensor in _constant_tensors(self.network)}
            self.weights = set() if _is_on_cpu() else {address_of(weight) for weight in self.network.get_parameters()}
        self.is_forward = True
        self.foreign |= {address_of(tensor) for tensor in tensors_in(inputs)}

    def end_forward(self, outputs) -> None:
        """Protect the outputs of the network: the caller owns them, so they must stay on the device."""
        for tensor in tensors_in(outputs):
            index = self.by_address.get(address_of(tensor))
            if index is not None:
                self.storages[index].protection = "output"
        self.is_forward = False
        self.is_paused = self.has_passes_in_flight
        self.held = []

    @property
    def is_open(self) -> bool:
        """Return whether forward was recorded and backward has not begun."""
        return bool(self.saves) and not self.has_backward

    @property
    def has_backward(self) -> bool:
        """Return whether backward was recorded, or a part of it."""
        return any(event.kind in BACKWARD_KINDS for event in self.events)

    def pass_boundary(self, kind: EventKind, layer_index: int, tensors=()) -> None:
        """Record the start or end of a layer, whose inputs and outputs may be read by all of its operators."""
        if kind is EventKind.BACKWARD_BEGIN:
            self._begin_backward()
        self.events.append(Event(kind, layer_index, len(self.operators)))
        at_border = {address_of(tensor) for tensor in tensors_in(tensors)}
        if kind is EventKind.FORWARD_BEGIN:
            self.paths.begin_layer(layer_index)
            self.viewed = at_border
            self.num_before = len(self.storages)
        elif kind is EventKind.FORWARD_END:
            for address, index in self.by_address.items():
                storage = self.storages[index]
                is_new_copy = storage.producer is None and index >= self.num_before
                if is_new_copy or address in self.viewed or address in at_border:
                    storage.last_use = len(self.operators) - 1
        self.paths.layer_index = None if kind is EventKind.FORWARD_END else layer_index
        if self.is_forward:
            self.held = [tensors]
            stays = at_border | self.by_address.keys()
            self.producers = {address: producer for address, producer in self.producers.items() if address in stays}

    def between_operators(self) -> None:
        """Do nothing."""

    def save(self, tensor, layer_index: int) -> tuple[int, object]:
        """Return the number of the save and the replacement of the tensor."""
        address = address_of(tensor)
        index = self.by_address.get(address)
        if index is None:
            index = len(self.storages)
            producer = self.producers.get(address)
            if producer is None and self.open_inputs is not None and address not in self.open_inputs:
                producer = len(self.operators) - 1  # some operators save their output before they return
            is_weight = getattr(tensor, "param_info", None) is not None or address in self.weights
            protection = "weight" if is_weight else ""
            if producer is None and address in self.foreign:
                protection = protection or "input"
            self.storages.append(_RecordedStorage(tensor, producer, protection))
            self.by_address[address] = index
        self.packed.add(id(tensor))
        number = len(self.saves)
        last = len(self.operators) - 1
        self.storages[index].last_use = max(self.storages[index].last_use, last)
        self.saves.append(Save(index, layer_index, last, tuple(tensor.shape), str(tensor.dtype).lower()))
        self.events.append(Event(EventKind.SAVE, number, len(self.operators)))
        return number, SavedTensor(tensor)

    def _begin_backward(self) -> None:
        """Protect referenced storages at the first event of backward; with values the recorder itself holds all."""
        self.is_paused = False
        if not self.with_values and not self.has_backward:
            self._protect_referenced()

    def _protect_referenced(self) -> None:
        """Protect storages that the user's tensors reference at the end of forward: dropping them frees nothing."""
        recorder_tensors = self.packed | {id(storage.tensor) for storage in self.storages}
        user_tensors = [
            tensor_object
            for tensor_object in gc.get_objects()
            if issubclass(type(tensor_object), ms.Tensor) and id(tensor_object) not in recorder_tensors
        ]
        of_saved = {id(tensor): index for tensor in user_tensors if (index := self._index_of(tensor)) is not None}
        shown = [tensor for tensor in user_tensors if id(tensor) in of_saved]
        # MindSpore holds some of them, too; only references from Python objects count.
        for holder in gc.get_referrers(*shown) if shown else ():
            if holder is not user_tensors and holder is not shown:
                for index in (
                    of_saved[id(tensor_object)]
                    for tensor_object in gc.get_referents(holder)
                    if id(tensor_object) in of_saved
                ):
                    self.storages[index].protection = self.storages[index].protection or HELD

    def _index_of(self, tensor) -> int | None:
        """Return the saved storage of a tensor; None if it has none, or was never on the device."""
        try:
            return self.by_address.get(address_of(tensor))
        except RuntimeError:
            return None

    def read(self, packed):
        """Return the tensor of a save."""
        number, saved = packed
        self.note_read(number)
        saved.require_unmodified()
        return saved.tensor

    def note_read(self, number: int) -> None:
        """Record that backward reads a save."""
        self._begin_backward()
        self.events.append(Event(EventKind.READ, number, len(self.operators)))

    # -- called by the dispatch mode ----------------------------------------------------------------

    def begin_operator(self, name: str, args) -> None:
        """Record the start of an operator."""
        if self.is_paused:
            return
        primitive = next((arg for arg in args if isinstance(arg, Primitive)), None)
        path, alternative_names = self.paths.of_operator(name, primitive, self.is_forward)
        self.open_inputs = {address_of(tensor) for tensor in tensors_in(args)} if self.is_forward else set()
        for index in map(self.by_address.get, self.open_inputs):
            if index is not None:
                self.storages[index].last_use = len(self.operators)
        inputs = self.values.of(args) if self.with_values else ()
        self.operators.append(
            Operator(
                name, self.paths.layer_index, path, self.is_forward, inputs, alternative_names=tuple(alternative_names)
            )
        )

    def end_operator(self, outputs) -> None:
        """Record the outputs of an operator, which did not produce those in the memory of an input (views)."""
        if self.is_paused:
            return
        inputs = self.open_inputs or set()
        if self.with_values:
            values = self.values.of_outputs(self.operators[-1].inputs, outputs)
            self.operators[-1] = replace(self.operators[-1], outputs=values)
        if self.is_forward:
            self.held.append(outputs)
        for tensor in tensors_in(outputs) if self.is_forward else ():
            address = address_of(tensor)
            if address in inputs:
                self.viewed.add(address)
            else:
                self.producers[address] = len(self.operators) - 1
                self.viewed.discard(address)
        self.open_inputs = None

    def finish(self) -> None:
        """Complete the trace, if the pass had a backward pass."""
        if not self.has_backward:
            return
        memories = self.values.memories  # empty without values
        storages = tuple(
            TracedStorage(s.size_bytes, s.producer, s.last_use, s.protection, memories.get(address_of(s.tensor)))
            for s in self.storages
        )
        self.trace = Trace(
            self.num_layers, tuple(self.operators), storages, tuple(self.saves), tuple(self.events),
            ms.get_context("device_target"),
        )  # fmt: skip
        self._clear()


def record(network: nn.Cell, layers: Sequence[nn.Cell], step: Callable[[], object], with_values: bool = False) -> Trace:
    """Record one step as a trace.

    Args:
        network: the cell whose call is the forward pass.
        layers: its transformer layers.
        step: runs one forward and backward pass of `network`.
        with_values: record the inputs and outputs of operators, which `pynative.from_trace` needs.

    Raises:
        ApplyError: if the step has no backward pass through the layers.
    """
    return record_with(Recorder(network, layers, with_values), network, layers, step)


def _is_on_cpu() -> bool:
    """Return whether kernels copy views, so that no saved tensor shares the memory of a weight."""
    return ms.get_context("device_target") == "CPU"


def _constant_tensors(network: nn.Cell) -> Iterator[ms.Tensor]:
    """Yield the constants that cells hold, such as masks and rotary tables; weights are in a dict."""
    for _, cell in network.cells_and_names():
        yield from tensors_in([value for value in vars(cell).values() if not isinstance(value, dict)])
