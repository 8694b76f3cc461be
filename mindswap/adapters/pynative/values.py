"""Values of operators: types, and the memory that each tensor uses."""

import dataclasses
from collections.abc import Iterator, Mapping

import mindspore as ms

from mindswap.pynative.trace import Value


class ValueBook:
    """Numbers the memory of every tensor; it holds all tensors, so that no address is reused."""

    def __init__(self) -> None:
        self.memories: dict[int, int] = {}  # address -> number
        self.held: list[object] = []
        self.views: dict[tuple[int, ...], list[tuple[ms.Tensor, int]]] = {}  # shape -> views and their memory

    def of(self, tensors, is_output: bool = False) -> tuple[Value, ...]:
        """Return types and memory of the tensors in a value."""
        values = []
        for tensor in tensors_in(tensors):
            self.held.append(tensor)
            storage = tensor.untyped_storage()
            size_bytes = storage.size()
            # Empty storages have no address of their own.
            key = storage.data_ptr() if size_bytes else -len(self.held)
            weight = getattr(getattr(tensor, "param_info", None), "name", "")
            copy_of = None if key in self.memories or weight or is_output else self._view_with_bytes_of(tensor)
            memory = self.memories.setdefault(key, len(self.memories))
            values.append(Value(memory, size_bytes, tuple(tensor.shape), str(tensor.dtype).lower(), weight, copy_of))
        return tuple(values)

    def _view_with_bytes_of(self, tensor) -> int | None:
        """Return the memory of the last view with equal content; only the content identifies a copy by a CPU kernel.

        Kernels of other devices read views as they are, and tensors of a dry run have no content.
        """
        if ms.get_context("device_target") != "CPU":
            return None
        views = self.views.get(tuple(tensor.shape), ())
        content = tensor.asnumpy().tobytes() if views else b""
        return next((m for view, m in reversed(views) if view.asnumpy().tobytes() == content), None)

    def of_outputs(self, inputs: tuple[Value, ...], outputs) -> tuple[Value, ...]:
        """Return the values of an operator's outputs; an output in the memory of an input is a view of it."""
        memories = {value.memory for value in inputs}
        values = self.of(outputs, is_output=True)
        for tensor, value in zip(tensors_in(outputs), values, strict=True):
            if value.memory in memories:
                self.views.setdefault(value.shape, []).append((tensor, value.memory))
        return values


def tensors_in(values) -> Iterator[ms.Tensor]:
    """Yield the tensors in a value, inside tuples, lists, sets, mappings and dataclasses of any depth."""
    if isinstance(values, ms.Tensor):
        yield values
    elif isinstance(values, Mapping):
        yield from tensors_in(list(values.values()))
    elif isinstance(values, (tuple, list, set, frozenset)):
        for value in values:
            yield from tensors_in(value)
    elif dataclasses.is_dataclass(values) and not isinstance(values, type):
        yield from tensors_in([getattr(values, field.name) for field in dataclasses.fields(values)])


def address_of(tensor) -> int:
    """Return the start address of the storage of a tensor."""
    return tensor.untyped_storage().data_ptr()
