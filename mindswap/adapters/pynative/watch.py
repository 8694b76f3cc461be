"""Hooks on a network in PyNative mode that tell an observer what a step does."""

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import mindspore as ms
from mindspore import nn

from mindswap.pynative.trace import EventKind, Value


class Observer(Protocol):
    """Methods that a `Watch` calls."""

    def begin(self, inputs) -> None:
        """The network begins forward."""

    def end_forward(self, outputs) -> None:
        """The network has ended forward."""

    def pass_boundary(self, kind: EventKind, layer_index: int, tensors=()) -> None:
        """A layer begins forward with some inputs, ends it with some outputs, or begins backward."""

    def save(self, tensor, layer_index: int):
        """Autograd keeps a tensor; gives what it shall keep instead."""

    def read(self, kept):
        """Backward takes what `save` gave; gives the tensor."""


class Watch:
    """Hooks on a network and its layers, until `remove`.

    Args:
        network: the cell that is called for a step.
        layers: its transformer layers.
        observer: who is told; may be replaced between steps.
        hooked_layers: layers whose saved tensors are told; default all.
        before_pass: called first, when the network begins forward; it may replace the observer.
    """

    def __init__(
        self, network: nn.Cell, layers: Sequence[nn.Cell], observer: Observer,
        hooked_layers: Iterable[int] | None = None, before_pass: Callable[[], None] = lambda: None,
    ):  # fmt: skip
        self.network = network
        self.layers = layers
        self.observer = observer
        self.before_pass = before_pass
        self.hooked_layers = frozenset(range(len(layers)) if hooked_layers is None else hooked_layers)
        self._handles: list[Any] = []
        self.install()

    def install(self) -> None:
        """Put the hooks on the network."""
        self._handles = [
            self.network.register_forward_pre_hook(self._begin),
            self.network.register_forward_hook(lambda cell, inputs, outputs: self.observer.end_forward(outputs)),
        ]
        for index, layer in enumerate(self.layers):
            self._handles += self._hook(layer, index)
        self.choose(self.hooked_layers)

    def _begin(self, cell, inputs) -> None:
        self.before_pass()
        self.observer.begin(inputs)

    def choose(self, hooked_layers: Iterable[int]) -> None:
        """Tell of the saved tensors of these layers only."""
        self.hooked_layers = frozenset(hooked_layers)
        for index, layer in enumerate(self.layers):
            if index in self.hooked_layers:
                # Who was told of a save is told of its reads, also if another observer has come meanwhile.
                layer.register_saved_tensors_hooks(
                    lambda tensor, index=index: (self.observer, self.observer.save(tensor, index)),
                    lambda kept: kept[0].read(kept[1]),
                )
            else:
                layer.register_saved_tensors_hooks(None, None)

    def remove(self) -> None:
        """Leave the network as it was."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        for layer in self.layers:
            layer.register_saved_tensors_hooks(None, None)

    def _hook(self, layer: nn.Cell, index: int) -> list[Any]:
        def begin(cell, inputs):
            self.observer.pass_boundary(EventKind.FORWARD_BEGIN, index, inputs)

        def end(cell, inputs, outputs):
            self.observer.pass_boundary(EventKind.FORWARD_END, index, outputs)
            first = outputs[0] if isinstance(outputs, tuple) else outputs
            # A backward hook of a cell puts a view around what goes in and out; one of a tensor does not.
            first.register_hook(begin_backward)

        own = weakref.ref(self)  # MindSpore never forgets the hooks of the last step: they must hold nothing

        def begin_backward(gradient):
            watch = own()
            if watch is not None:
                watch.observer.pass_boundary(EventKind.BACKWARD_BEGIN, index)

        return [layer.register_forward_pre_hook(begin), layer.register_forward_hook(end)]


# What operators take and give: types, and in which memory each value is.


class ValueBook:
    """Numbers the memory of every tensor that it sees; all are held, so that no address is used twice."""

    def __init__(self) -> None:
        self.memories: dict[int, int] = {}  # address -> number
        self.held: list[object] = []
        self.views: dict[tuple[int, ...], list[tuple[ms.Tensor, int]]] = {}  # shape -> views and their memory

    def of(self, tensors, is_output: bool = False) -> tuple[Value, ...]:
        """Types and memories."""
        found = []
        for tensor in tensors_in(tensors):
            self.held.append(tensor)
            storage = tensor.untyped_storage()
            size_bytes = storage.size()
            # Nothing has no address of its own.
            key = storage.data_ptr() if size_bytes else -len(self.held)
            weight = getattr(getattr(tensor, "param_info", None), "name", "")
            copy_of = None if key in self.memories or weight or is_output else self._view_with_bytes_of(tensor)
            memory = self.memories.setdefault(key, len(self.memories))
            found.append(Value(memory, size_bytes, tuple(tensor.shape), str(tensor.dtype).lower(), weight, copy_of))
        return tuple(found)

    def _view_with_bytes_of(self, tensor) -> int | None:
        """Memory of the last view with this content: a CPU kernel is given a copy, only bytes tell."""
        views = self.views.get(tuple(tensor.shape), ())
        content = tensor.asnumpy().tobytes() if views else b""
        return next((m for view, m in reversed(views) if view.asnumpy().tobytes() == content), None)

    def of_outputs(self, inputs: tuple[Value, ...], outputs) -> tuple[Value, ...]:
        """Of what an operator gives; what is in the memory of an input is a view of it."""
        memories = {value.memory for value in inputs}
        values = self.of(outputs, is_output=True)
        for tensor, value in zip(tensors_in(outputs), values, strict=True):
            if value.memory in memories:
                self.views.setdefault(value.shape, []).append((tensor, value.memory))
        return values


def tensors_in(values) -> Iterator[ms.Tensor]:
    """Tensors, in tuples, lists and dicts too."""
    if isinstance(values, ms.Tensor):
        yield values
    elif isinstance(values, dict):
        yield from tensors_in(list(values.values()))
    elif isinstance(values, (tuple, list)):
        for value in values:
            yield from tensors_in(value)


def address_of(tensor) -> int:
    """Address at which the storage of a tensor begins."""
    return tensor.untyped_storage().data_ptr()
